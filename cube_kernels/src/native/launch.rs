//! Enqueues a compiled kernel on CubeCL's own CUDA stream, or beside it, with CubeCL's own memory.
//!
//! This is the only file that knows CubeCL's CUDA server. A launch is a task for the thread that
//! owns the device: there the buffers have addresses, tensor maps can be encoded, and the kernel
//! takes its place among CubeCL's own launches, which wait for it and it for them.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ffi::{CStr, c_void};
use std::hash::Hash;
use std::mem::MaybeUninit;
use std::sync::{Arc, LazyLock, Mutex};

use cubecl::client::Client;
use cubecl::server::Handle;
use cubecl_common::bytes::Bytes;
use cubecl_common::device_handle::DeviceHandle;
use cubecl_core::server::{BufferBinding, CopyDescriptor, LaunchError, Server as _, ServerError};
use cubecl_cuda::CudaRuntime;
use cubecl_environment::{backtrace::BackTrace, stream::StreamId};
use cubecl_server::id::KernelId;
use cubecl_server::runtime::Runtime;
use cubecl_server::stream::{ExecuteScope, FailureStore as _, WriteScoped};
use cudarc::driver::{result, sys};

use super::compile::Cubin;
use super::stand_in;
use super::table::Contents;

type Server = <CudaRuntime as Runtime>::Server;

/// What the native path has to know of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Compute capability: 90 for Hopper.
    pub capability: u32,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of the last level of cache.
    pub l2_bytes: usize,
    /// Version of the driver's CUDA interface, 13000 for 13.0.
    pub driver: i32,
}

/// The CUDA device behind a client; `None` for any other runtime.
pub fn device_info(client: &Client) -> Option<DeviceInfo> {
    if let Some(stand_in) = stand_in::current() {
        return Some(stand_in.info());
    }
    static KNOWN: LazyLock<Mutex<HashMap<u16, DeviceInfo>>> = LazyLock::new(Mutex::default);
    let service = client.service_id();
    if service.service != core::any::TypeId::of::<Server>() {
        return None;
    }
    let ordinal = service.device.index_id;
    let mut known = KNOWN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(info) = known.get(&ordinal) {
        return Some(*info);
    }
    let info =
        query_device(ordinal).inspect_err(|error| log::warn!("CUDA device {ordinal}: {error:?}"));
    known.extend(info.ok().map(|info| (ordinal, info)));
    known.get(&ordinal).copied()
}

fn query_device(ordinal: u16) -> Result<DeviceInfo, result::DriverError> {
    use sys::CUdevice_attribute::*;
    let device = result::device::get(i32::from(ordinal))?;
    // SAFETY: `device` comes from the driver, which the server has initialised.
    let attribute = |which| unsafe { result::device::get_attribute(device, which) };
    let mut driver = 0;
    // SAFETY: the driver writes one integer.
    unsafe { sys::cuDriverGetVersion(&mut driver).result()? };
    Ok(DeviceInfo {
        capability: (10 * attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?
            + attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?) as u32,
        multiprocessors: attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
        l2_bytes: attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as usize,
        driver,
    })
}

/// A kernel and the shape of its grid.
#[derive(Clone)]
pub struct Kernel {
    /// The compiled program.
    pub cubin: Arc<Cubin>,
    /// Name of the entry function.
    pub entry: &'static CStr,
    /// CTAs.
    pub grid: u32,
    /// Threads of a CTA.
    pub block: u32,
    /// Bytes of dynamic shared memory.
    pub shared_memory: u32,
}

/// A buffer that a kernel reads or writes.
#[derive(Clone)]
pub struct Buffer {
    /// The memory.
    pub handle: Handle,
    /// Whether the kernel writes to it.
    pub is_output: bool,
    /// Whether something of what was there before stays, though it is written.
    pub is_kept: bool,
    /// Whether it is filled with zeros ahead of the launch.
    pub is_cleared: bool,
    /// What it has to hold at the launch.
    table: Option<Arc<Contents>>,
}

/// Contents of buffers begin at multiples of this: the size of a tensor map.
pub const PLACE: usize = 128;

impl Buffer {
    /// One that the kernel reads.
    pub fn read(handle: &Handle) -> Self {
        Self {
            handle: handle.clone(),
            is_output: false,
            is_kept: false,
            is_cleared: false,
            table: None,
        }
    }

    /// A table with these contents, which the kernel reads.
    pub fn table(client: &Client, contents: &Arc<Contents>) -> Self {
        Self { table: Some(contents.clone()), ..Self::read(&contents.memory(client)) }
    }

    /// What it holds at the launch: each at a multiple of 128 bytes, behind the one before it. They name buffers of the same
    /// launch, as the kernel's arguments do.
    pub fn contents(&self) -> &[Argument] {
        self.table.as_ref().map_or(&[], |contents| contents.arguments())
    }

    /// One that the kernel writes.
    pub fn written(handle: &Handle) -> Self {
        Self { is_output: true, ..Self::read(handle) }
    }

    /// One of which the kernel writes a part, and the rest stays as it is.
    pub fn updated(handle: &Handle) -> Self {
        Self { is_kept: true, ..Self::written(handle) }
    }

    /// One of zeros, which are there ahead of the launch, and which the kernel writes.
    pub fn cleared(handle: &Handle) -> Self {
        Self { is_cleared: true, ..Self::written(handle) }
    }

    /// Where it begins.
    pub fn place(&self) -> impl Eq + Hash + use<> {
        (self.handle.clone().binding().memory.id(), self.handle.offset_start)
    }
}

/// The element type of a view for TMA, and how its boxes lie in shared memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapElement {
    /// Half precision, swizzled in rows of 128 or 64 bytes: as wide as the box is.
    F16,
    /// bfloat16, swizzled likewise.
    Bf16,
    /// Single precision, densely.
    F32,
}

/// A five-dimensional view for TMA; the innermost dimension comes first and is contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMap {
    /// Which of the launch's buffers.
    pub buffer: usize,
    /// Bytes from the buffer's start to the view's.
    pub offset: usize,
    /// Type of the elements.
    pub element: MapElement,
    /// Elements.
    pub sizes: [u64; 5],
    /// Bytes between neighbors of the outer dimensions.
    pub strides: [u64; 4],
    /// Elements that one load brings.
    pub tile: [u32; 5],
    /// Distance of the elements that a load brings.
    pub steps: [u32; 5],
}

impl TensorMap {
    /// Bytes of a row of shared memory within which pieces of 16 bytes change places; 0 for none.
    pub fn swizzle(&self) -> u32 {
        match self.element {
            MapElement::F16 | MapElement::Bf16 => 2 * self.tile[0],
            MapElement::F32 => 0,
        }
    }
}

/// An argument of a kernel.
#[derive(Clone)]
pub enum Argument {
    /// A tensor map, passed by value.
    TensorMap(TensorMap),
    /// A structure, passed by value as 8-byte words.
    Struct {
        /// Its contents.
        words: Vec<u64>,
        /// Words that are to hold the address of a buffer: (word, buffer, bytes from its start).
        pointers: Vec<(usize, usize, usize)>,
    },
}

impl Argument {
    /// The same with an address that lies so many bytes behind its buffer's start.
    pub fn behind(mut self, word: usize, bytes: usize) -> Self {
        if let Self::Struct { pointers, .. } = &mut self {
            pointers[word].2 = bytes;
        }
        self
    }

    /// Has a structure end with another one.
    ///
    /// # Panics
    ///
    /// If one of them is a map.
    pub fn append(&mut self, last: Self) {
        let (Self::Struct { words, pointers }, Self::Struct { words: more, pointers: places }) =
            (self, last)
        else {
            panic!("a map has no fields");
        };
        let begin = words.len();
        words.extend(more);
        pointers
            .extend(places.into_iter().map(|(word, buffer, byte)| (begin + word, buffer, byte)));
    }

    /// Bytes that it takes among the contents of a buffer.
    pub fn places(&self) -> usize {
        let bytes = match self {
            Self::TensorMap(_) => PLACE,
            Self::Struct { words, .. } => size_of::<u64>() * words.len(),
        };
        bytes.next_multiple_of(PLACE)
    }
}

/// A kernel with all that it takes.
pub struct Launch {
    /// Launches of a lane follow each other, and those of several lanes run beside each other: behind what the launching thread has
    /// launched before, and ahead of what it launches next.
    pub lane: usize,
    /// Whether it may begin before the launch ahead of it ends, for which the kernel waits by itself: from compute capability 9.0 on.
    pub is_early: bool,
    /// The kernel and its grid.
    pub kernel: Kernel,
    /// The memory.
    pub buffers: Vec<Buffer>,
    /// In the order of the kernel's parameters.
    pub arguments: Vec<Argument>,
}

/// Enqueues `kernel`, in order with all launches of the calling thread.
///
/// Returns at once. A failure is recorded by CubeCL and reported where results are read.
pub fn launch(client: &Client, kernel: Kernel, buffers: Vec<Buffer>, arguments: Vec<Argument>) {
    launch_all(client, vec![Launch { lane: 0, is_early: false, kernel, buffers, arguments }]);
}

/// The same of several kernels, one behind the other in each lane. They go to the device's thread together, which takes less of both threads' time
/// than one by one.
///
/// # Panics
///
/// If a launch of another lane than 0 has a table.
pub fn launch_all(client: &Client, launches: Vec<Launch>) {
    if let Some(stand_in) = stand_in::current() {
        return launches.into_iter().for_each(|launch| stand_in.launch(client, launch));
    }
    if cubecl_server::dry_run::launch_mode().is_skipped() {
        return;
    }
    let Some(first) = launches.first() else { return };
    let id = first.kernel.cubin.key.clone();
    let mut all = vec![];
    // Without handles of buffers but of tables: as long as there is one more of them, nobody else writes a tensor in place.
    let prepare = |Launch { lane, is_early, kernel, buffers, arguments }| {
        let table = |buffer: &Buffer| Some((buffer.table.clone()?, buffer.handle.clone()));
        let tables: Vec<_> = buffers.iter().map(table).collect();
        let numbered = buffers.iter().enumerate();
        let cleared: Vec<_> = numbered.filter(|(_, of)| of.is_cleared).map(|(at, _)| at).collect();
        assert!(lane == 0 || tables.iter().all(Option::is_none), "tables are written in lane 0");
        all.extend(buffers);
        (lane, is_early, kernel, tables, cleared, arguments)
    };
    let launches: Vec<_> = launches.into_iter().map(prepare).collect();
    // What one of several writes, and another one reads, is nothing that they wait for.
    if launches.len() > 1 {
        let outputs = all.iter().filter(|buffer| buffer.is_output);
        let written: HashSet<_> = outputs.map(Buffer::place).collect();
        all.iter_mut().for_each(|buffer| buffer.is_output |= written.contains(&buffer.place()));
    }
    let lanes = 1 + launches.iter().map(|(lane, ..)| *lane).max().unwrap_or(0);
    submit(client, id, all, move |server, ordinal, stream, bindings| {
        in_lanes(server, ordinal, stream, (lanes, bindings), |server, lanes| {
            let mut rest = bindings;
            for (lane, is_early, kernel, tables, cleared, arguments) in &launches {
                let own;
                (own, rest) = rest.split_at(tables.len());
                let mut bindings = own.to_vec();
                // SAFETY: runs on the thread that owns the device; kernel and arguments agree, which the callers of `launch` see to.
                unsafe {
                    for (number, table) in tables.iter().enumerate() {
                        if let Some(table) = table {
                            fill(server, ordinal, stream, &mut bindings, (number, table))?;
                        }
                    }
                    let beside = lanes.stream(*lane);
                    let how = How { kernel, cleared, is_early: *is_early, beside };
                    enqueue(server, ordinal, stream, how, &bindings, arguments)?;
                }
            }
            Ok(())
        })
    });
}

/// Enqueues what a library does, in order with all launches of the calling thread. On the thread that owns the device, with its context
/// current, `work` gets the ordinal of the device, the addresses of the buffers, whose contents are not written, and the stream.
///
/// Returns at once. A failure is recorded by CubeCL and reported where results are read.
pub(super) fn call(
    client: &Client,
    name: &'static str,
    buffers: Vec<Buffer>,
    work: impl FnOnce(u16, &[u64], sys::CUstream) -> Result<(), ServerError> + Send + 'static,
) {
    if cubecl_server::dry_run::launch_mode().is_skipped() {
        return;
    }
    submit(client, name.into(), buffers, move |server, ordinal, stream, bindings| {
        make_current(ordinal)?;
        with_addresses(server, stream, bindings, |addresses, stream| {
            work(ordinal, addresses, stream)
        })
    });
}

/// What `work` says on the thread that owns the device, with its context current; `None` where it cannot be asked.
pub(super) fn ask<R: Send>(client: &Client, work: impl FnOnce(u16) -> R + Send) -> Option<R> {
    let device = client.service_id().device;
    let asked = DeviceHandle::<Server>::new(device).submit_blocking(|_: &mut Server| {
        make_current(device.index_id).ok()?;
        Some(work(device.index_id))
    });
    asked.ok().flatten()
}

/// Has `work` done by the thread that owns the device, where buffers have addresses, after all that the calling thread has submitted.
fn submit(
    client: &Client,
    id: Arc<str>,
    buffers: Vec<Buffer>,
    work: impl FnOnce(&mut Server, u16, StreamId, &[BufferBinding]) -> Result<(), ServerError>
    + Send
    + 'static,
) {
    let device = client.service_id().device;
    let stream = StreamId::current();
    let bound = |buffer: Buffer| {
        let is_input = buffer.is_kept || !buffer.is_output;
        (buffer.handle.binding(), is_input, buffer.is_output)
    };
    let buffers: Vec<(BufferBinding, bool, bool)> = buffers.into_iter().map(bound).collect();
    DeviceHandle::<Server>::new(device).submit(move |server: &mut Server| {
        let mut written = server.write_set();
        let mut reads = vec![];
        for (binding, is_input, is_output) in &buffers {
            reads.extend(is_input.then(|| binding.clone()));
            written.extend(is_output.then(|| binding.clone()));
        }
        struct NativeKernel;
        let id = KernelId::new::<NativeKernel>().info(id);
        let bindings: Vec<BufferBinding> =
            buffers.into_iter().map(|(binding, ..)| binding).collect();
        let _ = ExecuteScope::launching(server, id, stream, reads.iter(), written)
            .execute(|server| work(server, device.index_id, stream, &bindings));
    });
}

pub(super) fn failed(what: &str, error: impl core::fmt::Debug) -> ServerError {
    let reason = format!("burn-natten, {what}: {error:?}");
    LaunchError::Unknown { reason, backtrace: BackTrace::capture() }.into()
}

/// Has `work` enqueue something with the addresses of buffers, on a stream that waits for other streams that wrote them, as CubeCL's own
/// launches do.
fn with_addresses<R>(
    server: &mut Server,
    stream: StreamId,
    buffers: &[BufferBinding],
    work: impl FnOnce(&[u64], sys::CUstream) -> Result<R, ServerError>,
) -> Result<R, ServerError> {
    let mut streams = server.write_streams().resolve(stream, buffers.iter())?;
    let mut addresses = Vec::with_capacity(buffers.len());
    for buffer in buffers {
        streams.current().capturing.touch(buffer.stream, buffer.memory.descriptor().location());
        let memory = &mut streams.get(&buffer.stream).memory_management_gpu;
        let (start, end) = (buffer.offset_start, buffer.offset_end);
        addresses.push(memory.get_resource(buffer.memory.clone(), start, end)?.ptr);
    }
    let stream = streams.current().sys;
    let result = work(&addresses, stream);
    // Not before: memory of other streams is theirs again once that has ended which is enqueued by now.
    drop(streams);
    result
}

/// Has buffer `number` be a table that holds its contents: one that does so already, or else its own, to which they are written as
/// CubeCL writes from the host, in the order of the stream, into a graph that is recorded as well.
///
/// # Safety
///
/// As of [`enqueue`].
unsafe fn fill(
    server: &mut Server,
    ordinal: u16,
    stream: StreamId,
    buffers: &mut [BufferBinding],
    (number, (contents, handle)): (usize, &(Arc<Contents>, Handle)),
) -> Result<(), ServerError> {
    make_current(ordinal)?;
    let is_recording = is_recording(server, stream, buffers)?;
    let (addresses, bytes) = with_addresses(server, stream, buffers, |addresses, _| {
        // Contents do not name their own buffer.
        let mut key = addresses.to_vec();
        key[number] = 0;
        // A graph is replayed when a table that stays now may be gone.
        if !is_recording && let Some(table) = contents.written(&key) {
            return Ok((key, Err(table)));
        }
        let all = contents.arguments();
        let mut bytes = Vec::with_capacity(all.iter().map(Argument::places).sum());
        for argument in all {
            bytes.resize(bytes.len().next_multiple_of(PLACE), 0);
            append(argument, addresses, &mut bytes)?;
        }
        Ok((key, Ok(bytes)))
    })?;
    let bytes = match bytes {
        Ok(bytes) => bytes,
        Err(table) => {
            buffers[number] = table.binding();
            return Ok(());
        }
    };
    let buffer = &buffers[number];
    let descriptor = CopyDescriptor {
        handle: buffer.clone(),
        shape: [bytes.len()].into(),
        strides: [1].into(),
        elem_size: 1,
    };
    server.write(vec![(descriptor, Bytes::from_bytes_vec(bytes))], stream);
    // A copy that fails is recorded for its buffer alone.
    if let Some(failure) = server.write_streams().read_failure([buffer].into_iter()) {
        return Err(failure.error);
    }
    // A graph writes it again whenever it is replayed.
    if !is_recording {
        contents.keep(handle.clone(), addresses);
    }
    Ok(())
}

/// Whether what is enqueued becomes part of a graph.
fn is_recording(
    server: &mut Server,
    stream: StreamId,
    buffers: &[BufferBinding],
) -> Result<bool, ServerError> {
    let mut streams = server.write_streams().resolve(stream, buffers.iter())?;
    Ok(streams.current().capturing.is_recording())
}

/// Streams beside one of CubeCL's.
#[derive(Default)]
struct Lanes(Vec<Lane>);

/// The stream of a lane other than 0, and an event for its end.
#[derive(Clone, Copy)]
struct Lane {
    stream: sys::CUstream,
    end: sys::CUevent,
}

impl Lanes {
    /// That of a lane; `None` for CubeCL's own.
    fn stream(&self, lane: usize) -> Option<sys::CUstream> {
        self.0.get(lane.wrapping_sub(1)).map(|lane| lane.stream)
    }

    /// As many as lanes besides 0, made at the first use of `stream` and never destroyed. They wait for what it has been given.
    fn fork(ordinal: u16, count: usize, stream: sys::CUstream) -> Result<Self, ServerError> {
        let known = |all: &mut HashMap<_, Vec<Lane>>| {
            let lanes = all.entry((ordinal, stream as usize)).or_default();
            while lanes.len() < count {
                lanes.push(Lane::beside(stream)?);
            }
            Ok(Self(lanes[..count].to_vec()))
        };
        let fork = || -> Result<Self, result::DriverError> {
            let lanes = LANES.with_borrow_mut(known)?;
            for lane in &lanes.0 {
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

    /// Has `stream` wait for all of them, or if that fails the calling thread, whose memory they have.
    fn join(&self, stream: sys::CUstream) -> Result<(), ServerError> {
        let join = |lane: &Lane| {
            // SAFETY: as in `fork`.
            unsafe {
                let joined = result::event::record(lane.end, lane.stream)
                    .and_then(|()| wait(stream, lane.end));
                joined.inspect_err(|_| _ = result::stream::synchronize(lane.stream))
            }
        };
        // Of all, whichever of them fails.
        let joined: Vec<_> = self.0.iter().map(join).collect();
        let joined: Result<(), _> = joined.into_iter().collect();
        joined.map_err(|error| failed("the end of streams beside one", error))
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

/// Has `work` enqueue launches in so many lanes, with all of their buffers. A graph that is recorded has them in one.
fn in_lanes(
    server: &mut Server,
    ordinal: u16,
    stream: StreamId,
    (count, buffers): (usize, &[BufferBinding]),
    work: impl FnOnce(&mut Server, &Lanes) -> Result<(), ServerError>,
) -> Result<(), ServerError> {
    make_current(ordinal)?;
    if count == 1 || is_recording(server, stream, buffers)? {
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

/// A kernel, and how it is launched.
struct How<'a> {
    kernel: &'a Kernel,
    /// Buffers that are filled with zeros ahead of it, by number.
    cleared: &'a [usize],
    is_early: bool,
    beside: Option<sys::CUstream>,
}

/// # Safety
///
/// Must run on the device's thread, with arguments that are those of the kernel.
unsafe fn enqueue(
    server: &mut Server,
    ordinal: u16,
    stream: StreamId,
    How { kernel, cleared, is_early, beside }: How<'_>,
    buffers: &[BufferBinding],
    arguments: &[Argument],
) -> Result<(), ServerError> {
    make_current(ordinal)?;
    let function = function(ordinal, kernel)?;
    with_addresses(server, stream, buffers, |addresses, stream| {
        let mut values: Vec<Value> = arguments
            .iter()
            .map(|argument| value(argument, addresses))
            .collect::<Result<_, _>>()?;
        let mut pointers: Vec<*mut c_void> = values
            .iter_mut()
            .map(|value| match value {
                Value::Map(map) => (&raw mut **map).cast(),
                Value::Words(words) => words.as_mut_ptr().cast(),
            })
            .collect();
        let stream = beside.unwrap_or(stream);
        for &number in cleared {
            let bytes = buffers[number].size_in_used() as usize;
            // SAFETY: all of the buffer, in the order of the stream.
            unsafe { result::memset_d8_async(addresses[number], 0, bytes, stream) }
                .map_err(|error| failed("cuMemsetD8Async", error))?;
        }
        let mut early = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
        };
        let config = sys::CUlaunchConfig {
            gridDimX: kernel.grid,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: kernel.block,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: kernel.shared_memory,
            hStream: stream,
            attrs: &raw mut early,
            numAttrs: u32::from(is_early),
        };
        // SAFETY: the driver copies the arguments before it returns; function and stream are of the
        // context that is current.
        unsafe {
            sys::cuLaunchKernelEx(&config, function, pointers.as_mut_ptr(), core::ptr::null_mut())
        }
        .result()
        .map_err(|error| failed("cuLaunchKernelEx", error))
    })
}

/// An argument with its addresses, in memory that the driver copies it from.
enum Value {
    Map(Box<sys::CUtensorMap>),
    Words(Vec<u64>),
}

/// Writes the bytes of an argument as the driver passes them to kernels.
fn append(argument: &Argument, addresses: &[u64], bytes: &mut Vec<u8>) -> Result<(), ServerError> {
    match argument {
        Argument::Struct { words, pointers } => {
            let begin = bytes.len();
            bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
            for &(word, buffer, offset) in pointers {
                let at = begin + size_of::<u64>() * word;
                let address = addresses[buffer] + offset as u64;
                bytes[at..at + size_of::<u64>()].copy_from_slice(&address.to_ne_bytes());
            }
        }
        Argument::TensorMap(map) => {
            let map = encoded(map, addresses)?;
            // SAFETY: a map is 128 bytes, all of which the driver wrote.
            let map = unsafe {
                core::slice::from_raw_parts(
                    (&raw const map).cast::<u8>(),
                    size_of::<sys::CUtensorMap>(),
                )
            };
            bytes.extend_from_slice(map);
        }
    }
    Ok(())
}

fn value(argument: &Argument, addresses: &[u64]) -> Result<Value, ServerError> {
    match argument {
        Argument::Struct { words, pointers } => {
            let mut words = words.clone();
            for &(word, buffer, offset) in pointers {
                words[word] = addresses[buffer] + offset as u64;
            }
            Ok(Value::Words(words))
        }
        Argument::TensorMap(map) => Ok(Value::Map(Box::new(encoded(map, addresses)?))),
    }
}

fn encoded(map: &TensorMap, addresses: &[u64]) -> Result<sys::CUtensorMap, ServerError> {
    encode(map, addresses[map.buffer] + map.offset as u64)
        .map_err(|error| failed(&format!("cuTensorMapEncodeTiled of {map:?}"), error))
}

fn encode(map: &TensorMap, address: u64) -> Result<sys::CUtensorMap, result::DriverError> {
    use sys::CUtensorMapDataType::*;
    use sys::CUtensorMapSwizzle::*;
    let dtype = match map.element {
        MapElement::F16 => CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
        MapElement::Bf16 => CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        MapElement::F32 => CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
    };
    let swizzle = match map.swizzle() {
        0 => CU_TENSOR_MAP_SWIZZLE_NONE,
        64 => CU_TENSOR_MAP_SWIZZLE_64B,
        _ => CU_TENSOR_MAP_SWIZZLE_128B,
    };
    let mut encoded = MaybeUninit::<sys::CUtensorMap>::uninit();
    // SAFETY: all arrays have the five (strides: four) elements that the rank promises, and the
    // driver writes the whole map when it succeeds.
    unsafe {
        sys::cuTensorMapEncodeTiled(
            encoded.as_mut_ptr(),
            dtype,
            5,
            address as *mut c_void,
            map.sizes.as_ptr(),
            map.strides.as_ptr(),
            map.tile.as_ptr(),
            map.steps.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        .result()?;
        Ok(encoded.assume_init())
    }
}

/// Functions by device, program and name, and the bytes of dynamic shared memory that each may be launched with.
type Functions = HashMap<(u16, Arc<str>, &'static CStr), (sys::CUfunction, u32)>;

thread_local! {
    /// The primary context of each device. The server retains it, too.
    static CONTEXTS: RefCell<HashMap<u16, sys::CUcontext>> = RefCell::default();
    /// The streams beside each stream of a device.
    static LANES: RefCell<HashMap<(u16, usize), Vec<Lane>>> = RefCell::default();
    /// Those that have been loaded.
    static FUNCTIONS: RefCell<Functions> = RefCell::default();
}

fn make_current(ordinal: u16) -> Result<(), ServerError> {
    let context = match CONTEXTS.with_borrow(|contexts| contexts.get(&ordinal).copied()) {
        Some(context) => context,
        None => {
            let device = result::device::get(i32::from(ordinal))
                .map_err(|error| failed("cuDeviceGet", error))?;
            // SAFETY: `device` comes from the driver; never released, as the server's own.
            let context = unsafe { result::primary_ctx::retain(device) }
                .map_err(|error| failed("cuDevicePrimaryCtxRetain", error))?;
            CONTEXTS.with_borrow_mut(|contexts| contexts.insert(ordinal, context));
            context
        }
    };
    // SAFETY: a primary context that is retained.
    unsafe { result::ctx::set_current(context) }.map_err(|error| failed("cuCtxSetCurrent", error))
}

/// The entry function of a kernel, loaded into the current context at its first use. Launches of one function may differ in shared memory.
fn function(ordinal: u16, kernel: &Kernel) -> Result<sys::CUfunction, ServerError> {
    let key = (ordinal, kernel.cubin.key.clone(), kernel.entry);
    let known = FUNCTIONS.with_borrow(|functions| functions.get(&key).copied());
    let function = match known {
        Some((function, most)) if kernel.shared_memory <= most => return Ok(function),
        Some((function, _)) => function,
        // SAFETY: the image is a whole cubin, which the driver copies; the module is never unloaded.
        None => unsafe {
            let module = result::module::load_data(kernel.cubin.image.as_ptr().cast())
                .map_err(|error| failed("cuModuleLoadData", error))?;
            result::module::get_function(module, kernel.entry.to_owned())
                .map_err(|error| failed("cuModuleGetFunction", error))?
        },
    };
    let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: `function` belongs to a module that stays loaded.
    unsafe {
        result::function::set_function_attribute(function, attribute, kernel.shared_memory as i32)
    }
    .map_err(|error| failed("cuFuncSetAttribute", error))?;
    FUNCTIONS.with_borrow_mut(|functions| functions.insert(key, (function, kernel.shared_memory)));
    Ok(function)
}
