//! Launches on packed batches: one kernel computes all sequences, each by parameters and tensor maps of its own, which lie in
//! memory. They are those of a launch for that sequence alone, with its place in the packed tensors added.

use std::cell::LazyCell;
use std::ffi::CStr;
use std::sync::Arc;

use cubecl::client::Client;
use cubecl::server::Handle;
use cubecl_common::device::ServiceId;
use cubecl_environment::stream::StreamId;

use super::Cut;
use super::backward::{self, DeltaSlot, Parts, Workspace, works};
use super::compile::Cubin;
use super::forward::{self, ELEMENT};
use super::grid::{Grid, parameters};
use super::launch::{Argument, Buffer, DeviceInfo, Kernel, PLACE, launch};
use super::statistics::statistics_bytes;
use super::table::Contents;
use crate::view::KeyGradients;
use crate::{
    KernelError, KeyValue, MAX_RANK, Operands, Outputs, Packed, Pass, Saved, Sequence, Strided,
};

/// Bytes of a number of what lies in `f32`.
const FLOAT: usize = size_of::<f32>();

/// The kernels' `Launch`.
#[repr(C)]
#[derive(Clone, Copy)]
struct LaunchParams {
    pointers: [u64; 2],
    count: i32,
    all: i32,
    is_ahead: i32,
    unused: i32,
}

const _: () = assert!(size_of::<LaunchParams>() == 8 * 2 + 4 * 4);

/// Sequences for each tile of a CTA up to which a CTA acquires the maps of all sequences ahead of its tiles.
const AHEAD: usize = 4;

/// Words of a tensor map.
const WORDS: usize = PLACE / size_of::<u64>();

/// Buffers of a forward launch.
const FORWARD_BUFFERS: usize = forward::Slot::Sums as usize + 1;

/// What a launch is told of its sequences.
#[derive(Default)]
struct Table {
    /// Number of the first tile, or CTA, of each.
    first: Vec<i32>,
    all: usize,
    /// The arguments of each, as if it were alone.
    sequences: Vec<Vec<Argument>>,
}

impl Table {
    /// Adds a sequence of so many tiles. `places` are the bytes in front of it in each buffer.
    fn push(&mut self, tiles: usize, mut arguments: Vec<Argument>, places: &[usize]) {
        for number in 0..arguments.len() {
            // What a kernel takes in any case and has no use for is another map again, which need not be encoded.
            if is_again(&arguments, number) {
                arguments[number] = Argument::Struct { words: vec![0; WORDS], pointers: vec![] };
            }
        }
        for argument in &mut arguments {
            match argument {
                Argument::TensorMap(map) => map.offset += places[map.buffer],
                Argument::Struct { pointers, .. } => {
                    for (_, buffer, byte) in pointers {
                        *byte += places[*buffer];
                    }
                }
            }
        }
        self.first.push(self.all as i32);
        self.all += tiles;
        self.sequences.push(arguments);
    }

    /// Lays the table out.
    fn laid(self) -> Laid {
        let Self { first, all, sequences } = self;
        let word = |pair: &[i32]| {
            let half = |index: usize| u64::from(pair.get(index).map_or(0, |number| *number as u32));
            half(0) | half(1) << 32
        };
        let (words, count) = (first.chunks(2).map(word).collect(), first.len());
        let first = Argument::Struct { words, pointers: vec![] };
        let begin = first.places();
        let contents = [first].into_iter().chain(sequences.into_iter().flatten()).collect();
        Laid { contents: Arc::new(Contents::new(contents)), count, all, begin }
    }
}

/// A table as launches take it.
struct Laid {
    contents: Arc<Contents>,
    /// Sequences, and their tiles.
    count: usize,
    all: usize,
    /// Bytes in front of what there is of each sequence.
    begin: usize,
}

impl Laid {
    /// Enqueues a kernel of attention on these sequences.
    fn launch(
        &self,
        client: &Client,
        device: &DeviceInfo,
        (cut, cubin, entry): (&Cut, &Arc<Cubin>, &'static CStr),
        buffers: Vec<Buffer>,
    ) {
        let kernel = Kernel {
            cubin: cubin.clone(),
            entry,
            grid: self.all.min(device.multiprocessors as usize * cut.ctas) as u32,
            block: cut.threads as u32,
            shared_memory: cut.shared_memory as u32,
        };
        self.launch_kernel(client, kernel, buffers);
    }

    /// Enqueues a kernel on these sequences, which it finds in a further buffer.
    fn launch_kernel(&self, client: &Client, kernel: Kernel, mut buffers: Vec<Buffer>) {
        let is_ahead = self.count <= AHEAD * self.all.div_ceil(kernel.grid.max(1) as usize);
        let params = LaunchParams {
            pointers: [0; 2],
            count: self.count as i32,
            all: self.all as i32,
            is_ahead: is_ahead.into(),
            unused: 0,
        };
        let table = buffers.len();
        buffers.push(Buffer::table(client, &self.contents));
        // SAFETY: the assertion above counts every byte.
        let mut params = unsafe { parameters(params, &[table, table]) };
        if let Argument::Struct { pointers, .. } = &mut params {
            pointers[0].2 = self.begin;
        }
        launch(client, kernel, buffers, vec![params]);
    }
}

/// What a table depends on, besides the batch and the addresses of tensors.
#[derive(PartialEq)]
struct Of {
    /// The attention of a cut, or what prepares so many launches and reads so many elements of a row of the output.
    kernel: Result<Cut, (usize, usize)>,
    device: DeviceInfo,
    /// Of what is read.
    strides: Vec<[usize; 5]>,
    /// Tables of a stream are written and read in its order.
    service: ServiceId,
    stream: StreamId,
}

impl Of {
    fn new(
        client: &Client,
        device: &DeviceInfo,
        kernel: Result<Cut, (usize, usize)>,
        read: &[&Strided],
    ) -> Self {
        let strides = read.iter().map(|tensor| tensor.strides).collect();
        let (service, stream) = (client.service_id(), StreamId::current());
        Self { kernel, device: *device, strides, service, stream }
    }
}

/// Whether a tensor map is the same as one before it.
fn is_again(arguments: &[Argument], number: usize) -> bool {
    let map = |argument: &Argument| match argument {
        Argument::TensorMap(map) => Some(*map),
        Argument::Struct { .. } => None,
    };
    let own = map(&arguments[number]);
    own.is_some() && arguments[..number].iter().any(|other| map(other) == own)
}

/// Whether a launch can read and write these packed tensors.
///
/// # Errors
///
/// [`KernelError`] that says why not.
pub(super) fn check_forward(
    cut: &Cut,
    packed: &Packed,
    inputs: &Operands<Strided>,
    outputs: &Outputs<Handle>,
) -> Result<(), KernelError> {
    check_rows(packed)?;
    forward::check(cut, packed.line(), inputs, outputs)
}

/// The same for a backward pass.
///
/// # Errors
///
/// [`KernelError`] that says why not.
pub(super) fn check_backward(
    cuts: impl IntoIterator<Item = Cut>,
    packed: &Packed,
    inputs: &Saved<Strided>,
    outputs: &Operands<Option<Handle>>,
) -> Result<(), KernelError> {
    check_rows(packed)?;
    backward::check(cuts, packed.line(), inputs, outputs)
}

/// Tiles of all sequences are numbered in 32 bits.
fn check_rows(packed: &Packed) -> Result<(), KernelError> {
    let line = packed.line();
    let rows = line.queries().max(line.keys()).saturating_mul(line.heads);
    if rows < 1 << 31 {
        return Ok(());
    }
    Err(KernelError::Problem("there are 2^31 or more rows of packed tokens".into()))
}

/// Enqueues a forward pass on packed tensors that are [checked](check_forward).
pub(super) fn enqueue_forward(
    client: &Client,
    device: &DeviceInfo,
    (cut, cubin): (Cut, &Arc<Cubin>),
    packed: &Packed,
    inputs: &Operands<Strided>,
    outputs: &Outputs<Handle>,
) {
    let buffers = forward::buffers(inputs, outputs, None);
    let read = [&inputs.query, &inputs.key, &inputs.value];
    let of = Of::new(client, device, Ok(cut), &read);
    let laid = packed.known().find(of, |_| {
        let mut table = Table::default();
        for sequence in packed.sequences() {
            let (grid, operands, places) = forward_of(cut, device, packed, sequence, inputs);
            table.push(grid.tiles(), forward::arguments(&grid, &operands, None), &places);
        }
        table.laid()
    });
    laid.1.launch(client, device, (&cut, cubin, c"attention_forward"), buffers);
}

/// The launch that a sequence would be alone, what it reads, and the bytes in front of it in each buffer.
fn forward_of<'a>(
    cut: Cut,
    device: &DeviceInfo,
    packed: &Packed,
    sequence: &'a Sequence,
    inputs: &Operands<Strided>,
) -> (Grid<'a>, Operands<Strided>, [usize; FORWARD_BUFFERS]) {
    use forward::Slot;
    let line = packed.line();
    let mut places = [0; FORWARD_BUFFERS];
    let mut at = |slot: Slot, bytes: usize| places[slot as usize] = bytes;
    let row = sequence.query * line.heads;
    at(Slot::Out, ELEMENT * row * line.head_dim_v);
    at(Slot::Lse, FLOAT * row);
    let mut part = |slot, (tensor, bytes): (Strided, usize)| {
        at(slot, bytes);
        tensor
    };
    let operands = Operands::new(
        part(Slot::Query, queries(sequence, &inputs.query)),
        part(Slot::Key, keys(sequence, &inputs.key)),
        part(Slot::Value, keys(sequence, &inputs.value)),
    );
    (grid(cut, sequence, device), operands, places)
}

/// Enqueues a backward pass on packed tensors that are [checked](check_backward).
pub(super) fn enqueue_backward(
    client: &Client,
    device: &DeviceInfo,
    parts: &Parts,
    packed: &Packed,
    inputs: &Saved<Strided>,
    outputs: &Operands<Option<Handle>>,
) {
    let line = packed.line();
    let is_joint = parts.keys.iter().any(|part| part.is_joint);
    let of_keys = KeyGradients { client, problem: line, size: ELEMENT, is_joint };
    let keys = of_keys.own(outputs).map(|KeyValue { key, value }| [key, value]);
    let mut works = works(&parts.queries, outputs.query.clone().map(|dq| [dq.clone(), dq]));
    works.extend(self::works(&parts.keys, keys));
    if works.is_empty() {
        return;
    }
    let sequences = LazyCell::new(|| {
        let mut bytes = 0;
        let one = |sequence| {
            let one = One::new(sequence, inputs, bytes);
            bytes += statistics_bytes(&sequence.problem);
            one
        };
        packed.sequences().iter().map(one).collect::<Vec<_>>()
    });
    let bytes = packed.problems().map(statistics_bytes).sum();
    let workspace = Workspace::new(client, bytes, works.len(), None);
    let Saved { operands, outputs: results, gradients, .. } = inputs;
    let Operands { query, key, value, .. } = operands;
    let read = [query, key, value, &results.out, &gradients.out];
    let of = |kernel| Of::new(client, device, kernel, &read);
    let prepared = (works.len(), backward::delta_dim(line, inputs));
    let laid = packed.known().find(of(Err(prepared)), |_| {
        let mut table = Table::default();
        for one in sequences.iter() {
            let problem = &one.sequence.problem;
            let blocks = backward::delta_blocks(problem, &one.inputs, true);
            let argument = backward::delta_argument(problem, &one.inputs, works.len(), blocks);
            table.push(blocks, vec![argument], &one.delta_places());
        }
        table.laid()
    });
    let kernel = backward::delta_kernel(parts.delta(), laid.1.all);
    laid.1.launch_kernel(client, kernel, backward::delta_buffers(inputs, &workspace));

    for (number, work) in works.iter().enumerate() {
        let cut = work.part.cut;
        let buffers = backward::buffers(inputs, &work.outputs, &workspace, number);
        let laid = packed.known().find(of(Ok(cut)), |_| {
            let mut table = Table::default();
            for one in sequences.iter() {
                let grid = grid(cut, one.sequence, device);
                let arguments = backward::arguments(&grid, false, &one.inputs, None, 0);
                table.push(grid.tiles(), arguments, &one.places(cut.pass, buffers.len()));
            }
            table.laid()
        });
        let program = (&cut, &work.part.cubin, c"attention_backward");
        laid.1.launch(client, device, program, buffers);
    }
}

/// A sequence as a backward pass reads it.
struct One<'a> {
    sequence: &'a Sequence,
    /// The packed tensors with the strides of its own space.
    inputs: Saved<Strided>,
    /// Bytes in front of what it has of them.
    read: Operands<usize>,
    out: usize,
    dout: usize,
    statistics: usize,
}

impl<'a> One<'a> {
    fn new(sequence: &'a Sequence, packed: &Saved<Strided>, statistics: usize) -> Self {
        let Saved { operands, outputs, gradients, .. } = packed;
        let (query, query_at) = queries(sequence, &operands.query);
        let (key, key_at) = keys(sequence, &operands.key);
        let (value, value_at) = keys(sequence, &operands.value);
        let (out, out_at) = queries(sequence, &outputs.out);
        let (dout, dout_at) = queries(sequence, &gradients.out);
        let inputs = Saved {
            operands: Operands::new(query, key, value),
            outputs: Outputs { out, lse: outputs.lse.clone() },
            gradients: Outputs { out: dout, lse: gradients.lse.clone() },
            has_out: packed.has_out,
        };
        let read = Operands::new(query_at, key_at, value_at);
        Self { sequence, inputs, read, out: out_at, dout: dout_at, statistics }
    }

    /// Bytes in front of it in each buffer of the kernel that makes the statistics.
    fn delta_places(&self) -> [usize; 6] {
        let rows = FLOAT * self.sequence.query * self.sequence.problem.heads;
        let mut places = [0; 6];
        for (slot, bytes) in [
            (DeltaSlot::Statistics, self.statistics),
            (DeltaSlot::Out, self.out),
            (DeltaSlot::Dout, self.dout),
            (DeltaSlot::Lse, rows),
            (DeltaSlot::Dlse, rows),
        ] {
            places[slot as usize] = bytes;
        }
        places
    }

    /// The same of the kernels that sum gradients, of which there are `buffers`.
    fn places(&self, pass: Pass, buffers: usize) -> Vec<usize> {
        use backward::Slot;
        let Sequence { problem, query, key } = self.sequence;
        let written = match pass {
            Pass::Forward | Pass::Queries => [query * problem.heads * problem.head_dim; 2],
            Pass::Keys => {
                [problem.head_dim, problem.head_dim_v].map(|dim| key * problem.heads_kv * dim)
            }
        };
        let mut places = vec![0; buffers];
        for (slot, bytes) in [
            (Slot::Query, self.read.query),
            (Slot::Key, self.read.key),
            (Slot::Value, self.read.value),
            (Slot::Dout, self.dout),
            (Slot::Statistics, self.statistics),
            (Slot::First, ELEMENT * written[0]),
            (Slot::Second, ELEMENT * written[1]),
        ] {
            places[slot as usize] = bytes;
        }
        places
    }
}

/// A packed tensor with the strides of a sequence's own space, and the bytes in front of its queries.
fn queries(sequence: &Sequence, tensor: &Strided) -> (Strided, usize) {
    part(tensor, sequence.queries_in(tensor.strides))
}

/// The same of its keys.
fn keys(sequence: &Sequence, tensor: &Strided) -> (Strided, usize) {
    part(tensor, sequence.keys_in(tensor.strides))
}

fn part(tensor: &Strided, (first, strides): (usize, [usize; 5])) -> (Strided, usize) {
    (Strided { handle: tensor.handle.clone(), strides }, ELEMENT * first)
}

/// The launch that a sequence would be alone. Its dilations are steps of TMA: one launch has all of their groups.
fn grid<'a>(cut: Cut, sequence: &'a Sequence, device: &DeviceInfo) -> Grid<'a> {
    Grid::new(cut, &sequence.problem, device.multiprocessors as usize, [0; MAX_RANK])
}
