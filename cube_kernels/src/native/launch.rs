//! Enqueues a compiled kernel on CubeCL's own CUDA stream, or beside it, with CubeCL's own memory.
//!
//! These are the only files that know CubeCL's CUDA server. A launch is a task for the thread that
//! owns the device: there the buffers have addresses, tensor maps can be encoded, and the kernel
//! takes its place among CubeCL's own launches, which wait for it and it for them.

mod argument;
mod buffer;
mod context;
mod device;
mod lanes;

use std::collections::HashSet;
use std::ffi::{CStr, c_void};
use std::sync::Arc;

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

use self::argument::{Value, append, value};
use self::context::{function, make_current};
use self::lanes::in_lanes;
use super::compile::Cubin;
use super::stand_in;
use super::table::Contents;

pub use self::argument::{Argument, MapElement, TensorMap};
pub use self::buffer::{Buffer, PLACE};
pub use self::device::{DeviceInfo, device_info};

type Server = <CudaRuntime as Runtime>::Server;

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
