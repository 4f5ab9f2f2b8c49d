//! Launches of the backward kernels.
//!
//! First the statistics: what the kernels need of each query besides its vectors. Then the gradients, each
//! written once by one kernel that computes all scores it needs: nothing is summed in memory, so that
//! results are the same in every run, and the statistics are all the workspace there is, but for a counter
//! for each launch, from which its CTAs take their tiles.

use std::mem::offset_of;
use std::sync::Arc;

use cubecl::client::Client;
use cubecl::server::Handle;

use super::forward::{ELEMENT, check_layouts, hopper, more_strides, words};
use super::program::Program;
use super::{BackwardPlan, Element, Pass, Schedule, planned_backward};
use crate::native::bias::{Bias, BiasParams};
use crate::native::compile::Cubin;
use crate::native::dense;
use crate::native::grid::{Grid, Space, check_layout, grids, parameters, statistics_map};
use crate::native::launch::{Argument, Buffer, DeviceInfo, Kernel, launch};
use crate::native::statistics::{pitch, places, statistics_bytes};
use crate::tiling::Tiling;
use crate::view::{KeyGradients, check_gradients, check_saved};
use crate::{
    KernelError, KeyValue, MAX_RANK, Operand, Operands, Outputs, Problem, Saved, Shape, Strided,
};

/// The gradients of attention, by the schedules that are [planned](planned_backward). What sums none that is wanted, one that has a
/// buffer, is not launched.
///
/// Returns when the work is enqueued; the first use of a schedule compiles it.
///
/// # Errors
///
/// [`KernelError`] if nothing was launched.
pub fn backward(
    client: &Client,
    problem: &Problem,
    element: Element,
    tiling: Option<Tiling>,
    inputs: &Saved<Strided>,
    outputs: &Operands<Option<Handle>>,
) -> Result<(), KernelError> {
    let plan = planned_backward(problem, element, tiling).map_err(KernelError::Problem)?;
    backward_with(client, &plan, problem, inputs, outputs)
}

/// Compiles the kernels of a plan for a problem, so that their first launch does not wait.
///
/// # Errors
///
/// [`KernelError`] if they cannot run on the device.
pub fn warm_up_backward(
    client: &Client,
    plan: &BackwardPlan,
    problem: &Problem,
) -> Result<(), KernelError> {
    let device = hopper(client)?;
    for schedule in plan.schedules() {
        Program::Delta(schedule.element, problem.head_dim_v).load(&device)?;
        Program::Attention(*schedule).load(&device)?;
        if sums_bias(schedule) {
            Program::Bias(schedule.element).load(&device)?;
        }
    }
    Ok(())
}

/// [`backward()`] by given schedules, which have to be ones for the problem.
///
/// # Errors
///
/// [`KernelError`] if nothing was launched.
///
/// # Panics
///
/// If a schedule is none for the problem.
pub fn backward_with(
    client: &Client,
    plan: &BackwardPlan,
    problem: &Problem,
    inputs: &Saved<Strided>,
    outputs: &Operands<Option<Handle>>,
) -> Result<(), KernelError> {
    let device = hopper(client)?;
    check_saved(problem, inputs, ELEMENT)?;
    check_gradients(problem, outputs, ELEMENT)?;
    let Saved { operands, outputs: results, gradients } = inputs;
    for (name, tensor) in [("lse", &results.lse), ("dlse", &gradients.lse)] {
        tensor.contiguous_handle(name, Shape::lse(problem))?;
    }
    for schedule in plan.queries.iter().chain(&plan.keys) {
        let is_own = schedule.pass != Pass::Forward && schedule.fits(problem);
        assert!(is_own, "{schedule} is no backward schedule for {problem:?}");
        check_layouts(schedule, problem, operands)?;
        for (name, tensor) in [("out", &results.out), ("dout", &gradients.out)] {
            check_layout(name, tensor, Shape::out(problem), problem, &schedule.cut())?;
        }
    }
    let Some(element) = plan.schedules().next().map(|schedule| schedule.element) else {
        return Ok(());
    };
    let plan = plan.wanted(&outputs.as_ref().map(|_, gradient| gradient.is_some()));
    let is_joint =
        plan.schedules().any(|Schedule { gradients, .. }| gradients.width > 0 && gradients.value);
    let of_keys = KeyGradients { client, problem, size: ELEMENT, is_joint };
    let (keys, more) = (of_keys.own(outputs), of_keys.additional(outputs));
    let dense = match &more {
        Some(_) => additional_keys(&plan, problem, inputs)?,
        None => None,
    };
    let pair = |gradients: &Option<KeyValue<Handle>>| {
        gradients.as_ref().map(|KeyValue { key, value }| [key.clone(), value.clone()])
    };
    let dbias = outputs.bias.as_ref().and_then(Option::as_ref);
    assert!(
        dbias.is_none() || plan.queries.iter().any(sums_bias),
        "the plan sums no gradient of the bias"
    );
    // The kernel that sums a bias' gradient writes that of the queries, too, to memory of its own if nobody wants it.
    let unwanted = || client.empty(ELEMENT * Operand::Query.shape(problem).elements());
    let dq = outputs.query.clone().or_else(|| dbias.map(|_| unwanted()));
    let query = dq.map(|dq| [dq.clone(), dq]);
    let delta = Program::Delta(element, problem.head_dim_v).load(&device)?;
    let mut own = load(&plan.queries, query, &device)?;
    own.extend(load(&plan.keys, pair(&keys), &device)?);
    let more = load(&plan.additional, pair(&more), &device)?;
    let bias_sum = dbias.map(|_| Program::Bias(element).load(&device)).transpose()?;
    // From here on nothing fails.
    let run = |problem: &Problem, kernels: &[Work<'_>], inputs: &Saved<Strided>| {
        if kernels.is_empty() {
            return;
        }
        let launches: Vec<(Grid, &Work<'_>)> = kernels
            .iter()
            .flat_map(|work| {
                grids(work.schedule.cut(), problem, &device).map(move |grid| (grid, work))
            })
            .collect();
        let bias = inputs.operands.bias.as_ref().map(|bias| {
            let sums = launches.iter().filter(|(_, work)| sums_bias(work.schedule));
            let summing: Vec<_> = sums.map(|(grid, _)| grid).collect();
            Bias::new(client, problem, &bias.handle, &summing)
        });
        let workspace = Workspace {
            statistics: client.empty(statistics_bytes(problem)),
            taken: client.empty(size_of::<i32>() * launches.len()),
            bias,
        };
        launch_delta(client, &delta, problem, inputs, &workspace, launches.len());
        let mut row = 0;
        for (number, (grid, work)) in launches.iter().enumerate() {
            let kernel = grid.kernel(&work.cubin, c"attention_backward");
            let buffers = buffers(inputs, &work.outputs, &workspace, number);
            let bias = workspace.bias.as_ref();
            launch(client, kernel, buffers, arguments(grid, work.schedule, inputs, bias, row));
            row += if sums_bias(work.schedule) { grid.ctas() as usize } else { 0 };
        }
        if let (Some(bias), Some(cubin), Some(gradient)) = (&workspace.bias, &bias_sum, dbias) {
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
    plan: &BackwardPlan,
    problem: &Problem,
    inputs: &Saved<Strided>,
) -> Result<Option<(Problem, Saved<Strided>)>, KernelError> {
    let Saved { operands, outputs, gradients } = inputs;
    let (Some(dense), Some(more)) = (dense(problem), &operands.additional) else {
        return Ok(None);
    };
    let line = |name, tensor: &Strided| tensor.beside_additional(name, Shape::out(problem));
    let query = line("query", &operands.query)?;
    let inputs = Saved {
        operands: Operands::new(query, more.key.clone(), more.value.clone()),
        outputs: Outputs { out: line("out", &outputs.out)?, lse: outputs.lse.clone() },
        gradients: Outputs { out: line("dout", &gradients.out)?, lse: gradients.lse.clone() },
    };
    let mut own = plan.additional.iter();
    let fits = own.all(|schedule| schedule.pass == Pass::Keys && schedule.fits(&dense));
    assert!(fits && !plan.additional.is_empty(), "no schedules for {dense:?}");
    Ok(Some((dense, inputs)))
}

/// A kernel and where it writes.
struct Work<'a> {
    schedule: &'a Schedule,
    cubin: Arc<Cubin>,
    /// A kernel takes an address for the gradient that it does not write, too.
    outputs: [Handle; 2],
}

/// The programs of schedules; none of them where nothing is to be written.
fn load<'a>(
    schedules: &'a [Schedule],
    outputs: Option<[Handle; 2]>,
    device: &DeviceInfo,
) -> Result<Vec<Work<'a>>, KernelError> {
    let Some(outputs) = outputs else { return Ok(vec![]) };
    let load = |schedule: &'a Schedule| {
        let cubin = Program::Attention(*schedule).load(device)?;
        Ok(Work { schedule, cubin, outputs: outputs.clone() })
    };
    schedules.iter().map(load).collect()
}

/// What the kernels of a pass hand to each other.
struct Workspace {
    statistics: Handle,
    /// A counter for each launch.
    taken: Handle,
    bias: Option<Bias>,
}

fn sums_bias(schedule: &Schedule) -> bool {
    schedule.gradients.bias
}

/// Raw scores from which on rows are computed again; see `cuda/delta.cu`.
const UNTRUSTED_SCORE: f64 = (1 << 23) as f64;

/// `Params` of the kernel that makes the statistics.
#[repr(C)]
#[derive(Clone, Copy)]
struct DeltaParams {
    pointers: [u64; 6],
    strides: [[i64; 5]; 2],
    queries: [i32; 3],
    dilation: [i32; 3],
    pitch: [i32; 3],
    heads: i32,
    blocks: i32,
    launches: i32,
    untrusted: f32,
    padding: i32,
}

const _: () = assert!(size_of::<DeltaParams>() == 8 * (6 + 10) + 4 * 14);

fn launch_delta(
    client: &Client,
    cubin: &Arc<Cubin>,
    problem: &Problem,
    inputs: &Saved<Strided>,
    workspace: &Workspace,
    launches: usize,
) {
    const THREADS: usize = 256;
    let rows = places(problem).iter().product::<usize>() * problem.heads;
    let threads = rows * super::source::delta_lanes(problem.head_dim_v);
    let blocks = threads.div_ceil(THREADS);
    let kernel = Kernel {
        cubin: cubin.clone(),
        entry: c"attention_delta",
        grid: (blocks * problem.batch) as u32,
        block: THREADS as u32,
        shared_memory: 0,
    };
    let params = DeltaParams {
        pointers: [0; 6],
        strides: [words(&inputs.outputs.out), words(&inputs.gradients.out)],
        queries: problem.axes.map(|axis| axis.queries as i32),
        dilation: problem.axes.map(|axis| axis.dilation as i32),
        pitch: problem.axes.map(|axis| pitch(&axis) as i32),
        heads: problem.heads as i32,
        blocks: blocks as i32,
        launches: launches as i32,
        untrusted: (UNTRUSTED_SCORE * problem.scale * std::f64::consts::LOG2_E) as f32,
        padding: 0,
    };
    let Saved { outputs, gradients, .. } = inputs;
    let read = [&outputs.out, &gradients.out, &outputs.lse, &gradients.lse]
        .map(|tensor| Buffer::read(&tensor.handle));
    let [statistics, taken] = [&workspace.statistics, &workspace.taken].map(Buffer::written);
    let buffers = [statistics].into_iter().chain(read).chain([taken]).collect();
    // SAFETY: the assertion above counts every byte.
    let params = unsafe { parameters(params, &[0, 1, 2, 3, 4, 5]) };
    launch(client, kernel, buffers, vec![params]);
}

/// Buffers of a launch, in order.
#[derive(Clone, Copy)]
enum Slot {
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

fn buffers(
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
    let taken = workspace.taken.clone().offset_start((size_of::<i32>() * number) as u64);
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

fn arguments(
    grid: &Grid,
    schedule: &Schedule,
    inputs: &Saved<Strided>,
    bias: Option<&Bias>,
    row: usize,
) -> Vec<Argument> {
    use Slot::*;
    let has_additional = schedule.has_additional;
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
        group_size: problem.group_size() as i32,
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
