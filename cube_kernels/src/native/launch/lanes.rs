//! Streams beside one of CubeCL's.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};

use cubecl_core::server::{BufferBinding, ServerError};
use cubecl_environment::stream::StreamId;
use cudarc::driver::{result, sys};

use super::context::make_current;
use super::{Server, failed, with_addresses};

thread_local! {
    /// The streams beside each stream of a device.
    static LANES: RefCell<HashMap<(u16, usize), Vec<Lane>>> = RefCell::default();
}

/// Streams beside one of CubeCL's, which joins them. If it does not, whoever drops them waits for what has their memory.
#[derive(Default)]
pub(super) struct Lanes {
    all: Vec<Lane>,
    is_joined: Cell<bool>,
}

/// The stream of a lane other than 0, and an event for its end.
#[derive(Clone, Copy)]
struct Lane {
    stream: sys::CUstream,
    end: sys::CUevent,
}

impl Lanes {
    /// That of a lane; `None` for CubeCL's own.
    pub fn stream(&self, lane: usize) -> Option<sys::CUstream> {
        self.all.get(lane.wrapping_sub(1)).map(|lane| lane.stream)
    }

    /// As many as lanes besides 0, made at the first use of `stream` and never destroyed. They wait for what it has been given.
    fn fork(ordinal: u16, count: usize, stream: sys::CUstream) -> Result<Self, ServerError> {
        let known = |all: &mut HashMap<_, Vec<Lane>>| {
            let lanes = all.entry((ordinal, stream as usize)).or_default();
            while lanes.len() < count {
                lanes.push(Lane::beside(stream)?);
            }
            Ok(Self { all: lanes[..count].to_vec(), is_joined: Cell::new(false) })
        };
        let fork = || -> Result<Self, result::DriverError> {
            let lanes = LANES.with_borrow_mut(known)?;
            for lane in &lanes.all {
                // SAFETY: event and streams are of the context that is current. An event may be recorded again while streams wait for what it was
                // before.
                unsafe {
                    result::event::record(lane.end, stream)?;
                    wait(lane.stream, lane.end)?;
                }
            }
            Ok(lanes)
        };
        fork().map_err(|error| failed("streams beside one", error))
    }

    /// Has `stream` wait for all of them.
    fn join(&self, stream: sys::CUstream) -> Result<(), ServerError> {
        let join = |lane: &Lane| {
            // SAFETY: as in `fork`.
            unsafe {
                result::event::record(lane.end, lane.stream)?;
                wait(stream, lane.end)
            }
        };
        let joined: Result<(), _> = self.all.iter().try_for_each(join);
        self.is_joined.set(joined.is_ok());
        joined.map_err(|error| failed("the end of streams beside one", error))
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        if self.is_joined.get() {
            return;
        }
        for lane in &self.all {
            // SAFETY: a stream that is never destroyed. One that fails has nothing at work.
            _ = unsafe { result::stream::synchronize(lane.stream) };
        }
    }
}

impl Lane {
    /// With the priority of `stream`.
    fn beside(stream: sys::CUstream) -> Result<Self, result::DriverError> {
        let mut priority = 0;
        // SAFETY: the driver writes one integer; the stream is of the context that is current.
        unsafe { sys::cuStreamGetPriority(stream, &mut priority).result()? };
        let kind = result::stream::StreamKind::NonBlocking;
        Ok(Self {
            stream: result::stream::create_with_priority(kind, priority)?,
            end: result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING)?,
        })
    }
}

/// # Safety
///
/// Both have to be of the context that is current.
unsafe fn wait(stream: sys::CUstream, event: sys::CUevent) -> Result<(), result::DriverError> {
    let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
    // SAFETY: says the caller.
    unsafe { result::stream::wait_event(stream, event, flags) }
}

/// Has `work` enqueue launches in so many lanes, with all of their buffers. Where a graph is recorded, lanes become branches of it.
pub(super) fn in_lanes(
    server: &mut Server,
    ordinal: u16,
    stream: StreamId,
    (count, buffers): (usize, &[BufferBinding]),
    work: impl FnOnce(&mut Server, &Lanes) -> Result<(), ServerError>,
) -> Result<(), ServerError> {
    make_current(ordinal)?;
    if count == 1 {
        return work(server, &Lanes::default());
    }
    // Once each: most launches have the same ones.
    let mut known = HashSet::new();
    let buffers: Vec<_> =
        buffers.iter().filter(|buffer| known.insert(buffer.memory.id())).cloned().collect();
    // With all buffers: lanes wait for other streams that wrote them, and these for the lanes before memory of theirs is used again.
    let lanes = with_addresses(server, stream, &buffers, |_, stream| {
        Lanes::fork(ordinal, count - 1, stream)
    })?;
    let done = work(server, &lanes);
    let joined = with_addresses(server, stream, &buffers, |_, stream| lanes.join(stream));
    done.and(joined)
}
