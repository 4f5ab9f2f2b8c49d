//! Launches of the backward kernels, which all architectures' take alike.
//!
//! First the statistics: what the kernels need of each query besides its vectors, unless the first of the kernels
//! makes them itself. Then the gradients, each written once by one kernel that computes all scores it needs, or has what they give from
//! another one, see [`slopes`](super::slopes). Nothing is summed in memory but where CTAs
//! share the heads of a group, see [`splits`](super::splits), and in one order, so that results are the same in
//! every run. The statistics, slopes and those sums are all the workspace there is, but for counters for each launch,
//! from which its CTAs take their tiles: the program that makes the statistics sets them to zero, and where there is none the driver does, ahead of
//! the first launch.

use std::mem::offset_of;
use std::sync::Arc;

use cubecl::client::Client;
use cubecl::server::Handle;

use super::bias::{Bias, BiasParams};
use super::compile::Cubin;
use super::divisor::Divisor;
use super::forward::{ELEMENT, check_layouts, more_strides, words};
use super::grid::{COUNTERS, Grid, Space, check_layout, grids, parameters, statistics_map};
use super::launch::{Argument, Buffer, DeviceInfo, Kernel, Launch, launch, launch_all};
use super::slopes::Slopes;
use super::splits::Splits;
use super::statistics::{pitch, places, statistics_bytes};
use super::{Cut, delta, dense, runs};
use crate::tiling::Tiling;
use crate::view::{KeyGradients, check_gradients, check_saved};
use crate::{
    KernelError, KeyValue, MAX_RANK, Operand, Operands, Outputs, Pass, Problem, Saved, Shape,
    Strided,
};

/// A kernel of a backward pass.
pub(super) struct Part {
    pub cut: Cut,
    pub has_additional: bool,
    /// Whether it sums the gradient of the bias.
    pub sums_bias: bool,
    /// Whether it makes the statistics that it and those behind it need.
    pub makes_statistics: bool,
    /// Whether it writes the gradients of keys and of values.
    pub is_joint: bool,
    /// Whether it leaves slopes in memory, or sums those that another one left.
    pub keeps_slopes: bool,
    pub cubin: Arc<Cubin>,
    /// What adds up the gradients that several CTAs sum parts of, if any do.
    pub splits: Option<Splits>,
}

/// The kernels of a backward pass that sum a gradient that somebody wants.
pub(super) struct Parts {
    pub queries: Vec<Part>,
    pub keys: Vec<Part>,
    /// For additional keys and values.
    pub additional: Vec<Part>,
    /// The program that makes the statistics; `None` where it is not needed.
    pub delta: Option<Arc<Cubin>>,
    /// That which adds up the gradient of the bias, if that is wanted.
    pub bias_sum: Option<Arc<Cubin>>,
    /// Of kernels that keep slopes, their tiles, and the key heads of all samples that a launch has.
    pub slopes: Option<(Tiling, usize)>,
}

impl Parts {
    /// The program that makes the statistics.
    ///
    /// # Panics
    ///
    /// If there is none.
    pub fn delta(&self) -> &Arc<Cubin> {
        self.delta.as_ref().expect("nothing else makes the statistics")
    }
}

/// Whether launches can read and write these tensors.
///
/// # Errors
///
/// [`KernelError`] that says why not.
pub(super) fn check(
    cuts: impl IntoIterator<Item = Cut>,
    problem: &Problem,
    inputs: &Saved<Strided>,
    outputs: &Operands<Option<Handle>>,
) -> Result<(), KernelError> {
    check_saved(problem, inputs, ELEMENT)?;
    check_gradients(problem, outputs, ELEMENT)?;
    let Saved { operands, outputs: results, gradients, .. } = inputs;
    for (name, tensor) in [("lse", &results.lse), ("dlse", &gradients.lse)] {
        tensor.contiguous_handle(name, Shape::lse(problem))?;
    }
    for cut in cuts {
        check_layouts(&cut, problem, operands)?;
        let out = inputs.has_out.then_some(("out", &results.out));
        for (name, tensor) in out.into_iter().chain([("dout", &gradients.out)]) {
            check_layout(name, tensor, Shape::out(problem), problem, &cut)?;
        }
    }
    Ok(())
}

/// Enqueues a backward pass on tensors that are [checked](check).
///
/// # Errors
///
/// [`KernelError`] if the layout of a tensor is none for additional tokens. Nothing was launched then.
pub(super) fn enqueue(
    client: &Client,
    device: &DeviceInfo,
    parts: &Parts,
    problem: &Problem,
    inputs: &Saved<Strided>,
    outputs: &Operands<Option<Handle>>,
) -> Result<(), KernelError> {
    let all = || parts.queries.iter().chain(&parts.keys).chain(&parts.additional);
    let is_joint = all().any(|part| part.is_joint);
    let of_keys = KeyGradients { client, problem, size: ELEMENT, is_joint };
    let (keys, more) = (of_keys.own(outputs), of_keys.additional(outputs));
    let dense = match &more {
        Some(_) => additional_keys(problem, inputs)?,
        None => None,
    };
    assert!(dense.is_none() || !parts.additional.is_empty(), "no kernels for additional tokens");
    let pair = |gradients: &Option<KeyValue<Handle>>| {
        gradients.as_ref().map(|KeyValue { key, value }| [key.clone(), value.clone()])
    };
    let dbias = outputs.bias.as_ref().and_then(Option::as_ref);
    assert!(
        dbias.is_none() || parts.queries.iter().any(|part| part.sums_bias),
        "the plan sums no gradient of the bias"
    );
    // The kernel that sums a bias' gradient writes that of the queries, too, to memory of its own if nobody wants it.
    let unwanted = || client.empty(ELEMENT * Operand::Query.shape(problem).elements());
    let dq = outputs.query.clone().or_else(|| dbias.map(|_| unwanted()));
    let query = dq.map(|dq| [dq.clone(), dq]);
    let mut own = works(&parts.queries, query);
    own.extend(works(&parts.keys, pair(&keys)));
    let more = works(&parts.additional, pair(&more));
    let run = |problem: &Problem, works: &[Work<'_>], inputs: &Saved<Strided>| {
        if works.is_empty() {
            return;
        }
        // Where kernels write: to the gradients, or to memory for sums.
        let written: Vec<[Handle; 2]> = works
            .iter()
            .map(|work| match &work.part.splits {
                Some(splits) => splits.sums(client, problem),
                None => work.outputs.clone(),
            })
            .collect();
        let whole = || {
            works.iter().zip(&written).flat_map(|(work, written)| {
                grids(work.part.cut, problem, device).map(move |grid| (grid, work, written))
            })
        };
        let slopes = parts
            .slopes
            .as_ref()
            .map(|(tiling, heads)| Slopes::new(client, problem, tiling, *heads));
        let launches: Vec<(Grid, &Work<'_>, &[Handle; 2])> = match &slopes {
            None => whole().collect(),
            // Some heads after the others, or beside them, and of each the keys first.
            Some(slopes) => slopes
                .key_heads()
                .flat_map(|key_heads| {
                    let (queries, keys): (Vec<_>, Vec<_>) =
                        whole().partition(|(grid, ..)| grid.cut.pass == Pass::Queries);
                    keys.into_iter().chain(queries).map(move |(grid, work, written)| {
                        (Grid { key_heads: key_heads.clone(), ..grid }, work, written)
                    })
                })
                .collect(),
        };
        let bias = inputs.operands.bias.as_ref().map(|bias| {
            let sums = launches.iter().filter(|(_, work, _)| work.part.sums_bias);
            let summing: Vec<_> = sums.map(|(grid, ..)| grid).collect();
            Bias::new(client, problem, &bias.handle, &summing)
        });
        let bytes = statistics_bytes(problem);
        let makers = launches.iter().filter(|(_, work, _)| work.part.makes_statistics).count();
        let workspace = Workspace::new(client, bytes, launches.len(), bias);
        if makers == 0 {
            launch_delta(client, parts.delta(), problem, inputs, &workspace);
        }
        let mut row = 0;
        let mut all = vec![];
        for (number, (grid, work, written)) in launches.iter().enumerate() {
            let part = work.part;
            let kernel = grid.kernel(&part.cubin, c"attention_backward");
            let mut buffers = buffers(inputs, written, &workspace, number);
            let bias = workspace.bias.as_ref();
            let mut arguments = arguments(grid, part.has_additional, inputs, bias, row);
            arguments.extend(part.sums_bias.then(|| runs::argument(grid)));
            let mut lane = 0;
            if let (Some(slopes), true) = (&slopes, part.keeps_slopes) {
                lane = slopes.lane(grid);
                // Of the gradients, each launch writes some heads.
                for (slot, gradient) in [Slot::First, Slot::Second].into_iter().zip(*written) {
                    buffers[slot as usize] = Buffer::updated(gradient);
                }
                slopes.add(grid, &mut buffers, &mut arguments);
            }
            if part.makes_statistics {
                let statistics = &mut buffers[Slot::Statistics as usize];
                // Each launch makes those of its own dilation groups.
                *statistics = match makers {
                    1 => Buffer::written(&workspace.statistics),
                    _ => Buffer::updated(&workspace.statistics),
                };
                add_results(grid, inputs, &mut buffers, &mut arguments);
            }
            if makers > 0 && number == 0 {
                // Those of all launches at once: what is cleared between two keeps the second one from beginning early.
                buffers[Slot::Taken as usize] = Buffer::cleared(&workspace.taken);
            }
            // Such kernels wait for the statistics by themselves.
            let is_early = makers > 0 && grid.cut.pass == Pass::Keys && device.has_early_launches();
            // Without lanes one by one: the first runs while the others are prepared.
            let launch = Launch { lane, is_early, kernel, buffers, arguments };
            match &slopes {
                None => launch_all(client, vec![launch]),
                Some(_) => all.push(launch),
            }
            row += if part.sums_bias { grid.ctas() as usize } else { 0 };
        }
        launch_all(client, all);
        for (work, sums) in works.iter().zip(&written) {
            if let Some(splits) = &work.part.splits {
                splits.launch(client, problem, sums, &work.outputs);
            }
        }
        if let (Some(bias), Some(cubin), Some(gradient)) = (&workspace.bias, &parts.bias_sum, dbias)
        {
            bias.launch_sum(client, cubin, gradient);
        }
    };
    run(problem, &own, inputs);
    if let Some((problem, inputs)) = &dense {
        run(problem, &more, inputs);
    }
    Ok(())
}

/// The additional tokens as the keys of another problem on the same tensors; `None` if there are none.
fn additional_keys(
    problem: &Problem,
    inputs: &Saved<Strided>,
) -> Result<Option<(Problem, Saved<Strided>)>, KernelError> {
    let Saved { operands, outputs, gradients, .. } = inputs;
    let (Some(dense), Some(more)) = (dense(problem), &operands.additional) else {
        return Ok(None);
    };
    let line = |name, tensor: &Strided| tensor.beside_additional(name, Shape::out(problem));
    let query = line("query", &operands.query)?;
    let inputs = Saved {
        operands: Operands::new(query, more.key.clone(), more.value.clone()),
        outputs: Outputs { out: line("out", &outputs.out)?, lse: outputs.lse.clone() },
        gradients: Outputs { out: line("dout", &gradients.out)?, lse: gradients.lse.clone() },
        has_out: inputs.has_out,
    };
    Ok(Some((dense, inputs)))
}

/// A kernel and where it writes.
pub(super) struct Work<'a> {
    pub part: &'a Part,
    /// A kernel takes an address for the gradient that it does not write, too.
    pub outputs: [Handle; 2],
}

/// None where nothing is to be written.
pub(super) fn works(parts: &[Part], outputs: Option<[Handle; 2]>) -> Vec<Work<'_>> {
    let Some(outputs) = outputs else { return vec![] };
    parts.iter().map(|part| Work { part, outputs: outputs.clone() }).collect()
}

/// What the kernels of a pass hand to each other.
pub(super) struct Workspace {
    pub statistics: Handle,
    /// [`COUNTERS`] for each launch, which are zero when the first one begins.
    taken: Handle,
    launches: usize,
    pub bias: Option<Bias>,
}

impl Workspace {
    /// For so many launches, with statistics of so many bytes.
    pub fn new(client: &Client, bytes: usize, launches: usize, bias: Option<Bias>) -> Self {
        let taken = client.empty(counter_bytes(launches));
        Self { statistics: client.empty(bytes), taken, launches, bias }
    }
}

/// Bytes of the counters of so many launches.
fn counter_bytes(launches: usize) -> usize {
    size_of::<i32>() * COUNTERS * launches
}

/// Raw scores from which on rows are computed again; see `cuda/query_statistics.cuh`.
const UNTRUSTED_SCORE: f64 = (1 << 23) as f64;

/// `Params` of the kernel that makes the statistics.
#[repr(C)]
#[derive(Clone, Copy)]
struct DeltaParams {
    pointers: [u64; 6],
    strides: [[i64; 5]; 2],
    heads: Divisor,
    extent: [Divisor; 3],
    pitch: [Divisor; 3],
    queries: [i32; 3],
    dilation: [i32; 3],
    blocks: i32,
    counters: i32,
    untrusted: f32,
    padding: i32,
}

const _: () = assert!(size_of::<DeltaParams>() == 8 * (6 + 10) + 16 * 7 + 4 * 10);

pub(super) fn launch_delta(
    client: &Client,
    cubin: &Arc<Cubin>,
    problem: &Problem,
    inputs: &Saved<Strided>,
    workspace: &Workspace,
) {
    let blocks = delta_blocks(problem, inputs, false);
    let kernel = delta_kernel(cubin, blocks * problem.batch);
    let params = delta_argument(problem, inputs, workspace.launches, blocks);
    launch(client, kernel, delta_buffers(inputs, workspace), vec![params]);
}

const DELTA_THREADS: usize = 256;

/// Elements that the kernel reads of a row of the output and of its gradient.
pub(super) fn delta_dim(problem: &Problem, inputs: &Saved<Strided>) -> usize {
    if inputs.has_out { problem.head_dim_v } else { 0 }
}

/// All that it may be, of which a warm-up compiles each.
pub(super) fn delta_dims(head_dim_v: usize) -> [usize; 2] {
    [head_dim_v, 0]
}

/// CTAs of a sample.
pub(super) fn delta_blocks(problem: &Problem, inputs: &Saved<Strided>, is_packed: bool) -> usize {
    let rows = places(problem).iter().product::<usize>() * problem.heads;
    let lanes = delta::lanes(delta_dim(problem, inputs));
    (rows * lanes).div_ceil(DELTA_THREADS * delta::rows(is_packed))
}

pub(super) fn delta_kernel(cubin: &Arc<Cubin>, blocks: usize) -> Kernel {
    Kernel {
        cubin: cubin.clone(),
        entry: c"attention_delta",
        grid: blocks as u32,
        block: DELTA_THREADS as u32,
        shared_memory: 0,
    }
}

/// Buffers of the kernel that makes the statistics, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeltaSlot {
    Statistics,
    Out,
    Dout,
    Lse,
    Dlse,
    Taken,
}

pub(super) fn delta_buffers(inputs: &Saved<Strided>, workspace: &Workspace) -> Vec<Buffer> {
    let Saved { outputs, gradients, .. } = inputs;
    let read = [&outputs.out, &gradients.out, &outputs.lse, &gradients.lse]
        .map(|tensor| Buffer::read(&tensor.handle));
    let [statistics, taken] = [&workspace.statistics, &workspace.taken].map(Buffer::written);
    [statistics].into_iter().chain(read).chain([taken]).collect()
}

pub(super) fn delta_argument(
    problem: &Problem,
    inputs: &Saved<Strided>,
    launches: usize,
    blocks: usize,
) -> Argument {
    let params = DeltaParams {
        pointers: [0; 6],
        strides: [words(&inputs.outputs.out), words(&inputs.gradients.out)],
        heads: Divisor::new(problem.heads),
        extent: places(problem).map(|extent| Divisor::new(extent.max(1))),
        pitch: problem.axes.map(|axis| Divisor::new(pitch(&axis).max(1))),
        queries: problem.axes.map(|axis| axis.queries as i32),
        dilation: problem.axes.map(|axis| axis.dilation as i32),
        blocks: blocks as i32,
        counters: (COUNTERS * launches) as i32,
        untrusted: untrusted(problem),
        padding: 0,
    };
    use DeltaSlot::*;
    let pointers = [Statistics, Out, Dout, Lse, Dlse, Taken].map(|slot| slot as usize);
    // SAFETY: the assertion above counts every byte.
    unsafe { parameters(params, &pointers) }
}

/// `Results` of a kernel that makes the statistics itself.
#[repr(C)]
#[derive(Clone, Copy)]
struct Results {
    pointers: [u64; 2],
    untrusted: f32,
    padding: i32,
}

const _: () = assert!(size_of::<Results>() == 8 * 2 + 4 * 2);

/// Has a kernel make the statistics itself, for which it takes the output and the logsumexp as well.
fn add_results(
    grid: &Grid<'_>,
    inputs: &Saved<Strided>,
    buffers: &mut Vec<Buffer>,
    arguments: &mut Vec<Argument>,
) {
    let Saved { outputs, gradients, .. } = inputs;
    let out = buffers.len();
    let read = [&outputs.out, &outputs.lse, &gradients.lse];
    buffers.extend(read.map(|tensor| Buffer::read(&tensor.handle)));
    // A kernel for queries has no statistics to load.
    arguments[STATISTICS_MAP] =
        Argument::TensorMap(grid.query_map(out, &outputs.out, grid.problem.head_dim_v));
    let results = Results { pointers: [0; 2], untrusted: untrusted(grid.problem), padding: 0 };
    // SAFETY: the assertion above counts every byte.
    arguments.push(unsafe { parameters(results, &[out + 1, out + 2]) });
}

/// The argument that is the map of the statistics, where there are some to load; or of the output, or of slopes.
pub(super) const STATISTICS_MAP: usize = 6;

/// The logsumexp, in base 2, from which on rows are computed again.
fn untrusted(problem: &Problem) -> f32 {
    (UNTRUSTED_SCORE * problem.scale * std::f64::consts::LOG2_E) as f32
}

/// Buffers of a launch, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    Query,
    Key,
    Value,
    Dout,
    MoreKey,
    MoreValue,
    Statistics,
    Taken,
    First,
    Second,
    Entries,
    Sums,
}

pub(super) fn buffers(
    inputs: &Saved<Strided>,
    [first, second]: &[Handle; 2],
    workspace: &Workspace,
    number: usize,
) -> Vec<Buffer> {
    let Operands { query, key, value, additional, .. } = &inputs.operands;
    let dout = &inputs.gradients.out;
    let (more_key, more_value) =
        additional.as_ref().map_or((key, value), |more| (&more.key, &more.value));
    let read = [query, key, value, dout, more_key, more_value];
    let read = read.map(|tensor| Buffer::read(&tensor.handle));
    let taken = workspace.taken.clone().offset_start(counter_bytes(number) as u64);
    let written = [&taken, first, second].map(Buffer::written);
    let bias = Bias::buffers(workspace.bias.as_ref(), &query.handle);
    let read = read.into_iter().chain([Buffer::read(&workspace.statistics)]);
    read.chain(written).chain(bias).collect()
}

/// The kernel's `Params`. Addresses are filled in when it is enqueued.
#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    pointers: [u64; 10],
    strides: [[i64; 5]; 4],
    more_strides: [[i64; 3]; 2],
    space: Space,
    heads: i32,
    group_size: i32,
    additional: i32,
    scale: f32,
    scale_log2: f32,
    shift: [i32; MAX_RANK],
    bias: BiasParams,
}

const _: () =
    assert!(size_of::<Params>() == 8 * (10 + 26) + 4 * (34 + 8) + size_of::<BiasParams>());

pub(super) fn arguments(
    grid: &Grid,
    has_additional: bool,
    inputs: &Saved<Strided>,
    bias: Option<&Bias>,
    row: usize,
) -> Vec<Argument> {
    use Slot::*;
    let Operands { query, key, value, additional, .. } = &inputs.operands;
    let dout = &inputs.gradients.out;
    let problem = grid.problem;
    let (dim, dim_v) = (problem.head_dim, problem.head_dim_v);
    let queries =
        [grid.query_map(Query as usize, query, dim), grid.query_map(Dout as usize, dout, dim_v)];
    let keys = [grid.key_map(Key as usize, key, dim), grid.key_map(Value as usize, value, dim_v)];
    let mut maps = match grid.cut.pass {
        Pass::Forward | Pass::Queries => [queries, keys].concat(),
        Pass::Keys => [keys, queries].concat(),
    };
    match additional {
        Some(KeyValue { key, value }) if has_additional => maps.extend([
            grid.map_more(MoreKey as usize, key, dim),
            grid.map_more(MoreValue as usize, value, dim_v),
        ]),
        _ => maps.extend(keys),
    }
    maps.push(match grid.cut.pass {
        Pass::Forward | Pass::Queries => queries[0],
        Pass::Keys => statistics_map(Statistics as usize, &grid.cut, problem),
    });
    let params = Params {
        pointers: [0; 10],
        strides: [query, key, value, dout].map(words),
        more_strides: more_strides(additional),
        space: grid.space(),
        heads: problem.heads as i32,
        group_size: (problem.group_size() / grid.cut.splits) as i32,
        additional: if has_additional { problem.additional as i32 } else { 0 },
        scale: problem.scale as f32,
        scale_log2: (problem.scale * std::f64::consts::LOG2_E) as f32,
        shift: grid.shift(),
        bias: Bias::params(bias, grid),
    };
    let pointers = [First, Second, Query, Key, Value, Dout, MoreKey, MoreValue, Statistics, Taken];
    // SAFETY: the assertion above counts every byte.
    let params = unsafe { parameters(params, &pointers.map(|slot| slot as usize)) };
    let (at, slots) = (offset_of!(Params, bias), [Entries as usize, Sums as usize]);
    let params = Bias::address(bias, params, at, slots, row);
    maps.into_iter().map(Argument::TensorMap).chain([params]).collect()
}
