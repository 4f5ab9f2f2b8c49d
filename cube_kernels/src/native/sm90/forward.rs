//! Launches of the forward kernel.

use std::sync::{LazyLock, Mutex};

use cubecl::client::Client;
use cubecl::server::Handle;

use super::grid::{Grid, Space, check_layout, grids, parameters};
use super::program::Program;
use super::{Element, Schedule, plan, plan_tiled, unsupported};
use crate::choices::{Choices, remembered};
use crate::native::compile::{CompileError, has_compiler};
use crate::native::launch::{Argument, Buffer, DeviceInfo, device_info, launch};
use crate::tiling::Tiling;
use crate::{MAX_RANK, Problem};

/// Why nothing was launched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HopperError {
    /// The device is no NVIDIA GPU of compute capability 9.0.
    #[error("the device has no compute capability 9.0 (Hopper)")]
    Device,
    /// The kernels do not cover the problem.
    #[error("the Hopper kernels do not cover it: {0}")]
    Problem(String),
    /// A tensor is laid out as TMA cannot read it.
    #[error("{0} is laid out as TMA cannot read it")]
    Layout(&'static str),
    /// There is no program.
    #[error(transparent)]
    Compile(#[from] CompileError),
}

/// An input tensor `[batch, x, y, z, heads, vector]`, whose vectors are contiguous.
#[derive(Clone, Debug)]
pub struct Strided {
    /// The memory.
    pub handle: Handle,
    /// Elements between neighbors: batch, x, y, z, heads. Those of an axis of one element do not
    /// matter, but all five are zero only for a tensor that TMA cannot read at all.
    pub strides: [usize; 5],
}

impl Strided {
    /// A contiguous tensor `[batch, tokens.., heads, dim]`.
    pub fn contiguous(handle: Handle, tokens: [usize; MAX_RANK], heads: usize, dim: usize) -> Self {
        let z = heads * dim;
        let y = tokens[2] * z;
        let x = tokens[1] * y;
        Self { handle, strides: [tokens[0] * x, x, y, z, dim] }
    }

    /// The same with its tokens as one axis, the fastest; `None` where they lie in no such order.
    pub(super) fn line(&self, tokens: [usize; MAX_RANK]) -> Option<Self> {
        let [batch, x, y, z, head] = self.strides;
        // From the fastest to the slowest axis that has neighbors.
        let (mut step, mut length) = (0, 1);
        for (stride, size) in [(z, tokens[2]), (y, tokens[1]), (x, tokens[0])] {
            if size == 1 {
                continue;
            }
            if length > 1 && stride != step * length {
                return None;
            }
            step = if length == 1 { stride } else { step };
            length *= size;
        }
        let step = if length == 1 { head.max(z) } else { step };
        Some(Self { handle: self.handle.clone(), strides: [batch, batch, batch, step, head] })
    }

    /// The strides as the kernels take them.
    pub(super) fn words(&self) -> [i64; 5] {
        self.strides.map(|stride| stride as i64)
    }
}

/// What [`forward()`] reads. Elements are those of the schedule.
#[derive(Clone, Debug)]
pub struct ForwardInputs {
    /// `[batch, queries, heads, head_dim]`.
    pub query: Strided,
    /// `[batch, keys, heads_kv, head_dim]`.
    pub key: Strided,
    /// `[batch, keys, heads_kv, head_dim_v]`.
    pub value: Strided,
    /// Key and value of the additional tokens, `[batch, 1, 1, tokens, heads_kv, dim]`: there if, and
    /// only if, [`Problem::additional`] is not zero.
    pub additional: Option<(Strided, Strided)>,
}

/// What [`forward()`] writes; both contiguous.
#[derive(Clone, Debug)]
pub struct ForwardOutputs {
    /// `[batch, queries, heads, head_dim_v]`, in the schedule's element type.
    pub out: Handle,
    /// `[batch, queries, heads]`, `f32`.
    pub lse: Handle,
}

/// Attention with logsumexp, by the schedule that [`plan()`] chooses, or [`plan_tiled()`] where one has
/// the tiles that are asked for.
///
/// Returns when the work is enqueued; the first use of a schedule compiles it.
///
/// # Errors
///
/// [`HopperError`] if nothing was launched.
pub fn forward(
    client: &Client,
    problem: &Problem,
    element: Element,
    tiling: Option<Tiling>,
    inputs: &ForwardInputs,
    outputs: &ForwardOutputs,
) -> Result<(), HopperError> {
    let schedule = schedule(problem, element, tiling)?;
    forward_with(client, &schedule, problem, inputs, outputs)
}

/// Schedules are chosen by element type and by the tiles that are asked for.
pub(super) type How = (Element, Option<Tiling>);

/// What `choose` gives for a problem that the kernels cover, or gave.
pub(super) fn chosen<T: Clone>(
    choices: &Choices<How, T>,
    problem: &Problem,
    how: How,
    choose: impl FnOnce() -> Option<T>,
) -> Result<T, HopperError> {
    if let Some(reason) = unsupported(problem) {
        return Err(HopperError::Problem(reason));
    }
    remembered(choices, problem, how, choose)
        .ok_or_else(|| HopperError::Problem("no schedule fits".to_string()))
}

/// The schedule for a problem.
fn schedule(
    problem: &Problem,
    element: Element,
    tiling: Option<Tiling>,
) -> Result<Schedule, HopperError> {
    static KNOWN: Choices<How, Schedule> = LazyLock::new(Mutex::default);
    chosen(&KNOWN, problem, (element, tiling), || {
        tiling
            .and_then(|tiling| plan_tiled(problem, element, tiling))
            .or_else(|| plan(problem, element))
    })
}

/// Compiles what [`forward()`] will need for a problem, so that its first call does not wait.
///
/// # Errors
///
/// [`HopperError`] if the problem cannot run on the device.
pub fn warm_up(client: &Client, problem: &Problem, element: Element) -> Result<(), HopperError> {
    let device = hopper(client)?;
    Program::Attention(schedule(problem, element, None)?).load(&device)?;
    Ok(())
}

/// Whether the kernels can be compiled and run on the device of a client.
pub fn is_available(client: &Client) -> bool {
    hopper(client).is_ok() && has_compiler()
}

pub(super) fn hopper(client: &Client) -> Result<DeviceInfo, HopperError> {
    device_info(client).filter(|info| info.capability == 90).ok_or(HopperError::Device)
}

/// [`forward()`] by a given schedule, which has to be one of the problem's candidates.
///
/// # Errors
///
/// [`HopperError`] if nothing was launched.
///
/// # Panics
///
/// If the schedule is none for the problem.
pub fn forward_with(
    client: &Client,
    schedule: &Schedule,
    problem: &Problem,
    inputs: &ForwardInputs,
    outputs: &ForwardOutputs,
) -> Result<(), HopperError> {
    assert!(schedule.fits(problem), "{schedule} is no schedule for {problem:?}");
    let device = hopper(client)?;
    check_inputs(
        schedule,
        problem,
        [&inputs.query, &inputs.key, &inputs.value],
        &inputs.additional,
    )?;
    let cubin = Program::Attention(*schedule).load(&device)?;
    for grid in grids(schedule, problem, &device) {
        let kernel = grid.kernel(&cubin, c"attention_forward");
        launch(client, kernel, buffers(inputs, outputs), arguments(&grid, inputs));
    }
    Ok(())
}

/// The layouts of what both passes read.
pub(super) fn check_inputs(
    schedule: &Schedule,
    problem: &Problem,
    [query, key, value]: [&Strided; 3],
    additional: &Option<(Strided, Strided)>,
) -> Result<(), HopperError> {
    let queries = problem.axes.map(|axis| axis.queries);
    let keys = problem.axes.map(|axis| axis.keys);
    let (heads, heads_kv) = (problem.heads, problem.heads_kv);
    check_layout("query", query, queries, heads, problem, schedule)?;
    check_layout("key", key, keys, heads_kv, problem, schedule)?;
    check_layout("value", value, keys, heads_kv, problem, schedule)?;
    if let Some((key, value)) = additional {
        let tokens = [1, 1, problem.additional];
        check_layout("additional key", key, tokens, heads_kv, problem, schedule)?;
        check_layout("additional value", value, tokens, heads_kv, problem, schedule)?;
    }
    Ok(())
}

/// Buffers of a launch, in order.
#[derive(Clone, Copy)]
enum Slot {
    Query,
    Key,
    Value,
    MoreKey,
    MoreValue,
    Out,
    Lse,
}

fn buffers(inputs: &ForwardInputs, outputs: &ForwardOutputs) -> Vec<Buffer> {
    let ForwardInputs { query, key, value, additional } = inputs;
    // The kernel takes the maps of additional tokens in any case.
    let (more_key, more_value) =
        additional.as_ref().map_or((key, value), |(key, value)| (key, value));
    let read = [query, key, value, more_key, more_value].map(|tensor| Buffer::read(&tensor.handle));
    let written = [&outputs.out, &outputs.lse].map(Buffer::written);
    read.into_iter().chain(written).collect()
}

/// The kernel's `Params`. Addresses are filled in when it is enqueued.
#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    pointers: [u64; 7],
    strides: [[i64; 5]; 3],
    more_strides: [[i64; 3]; 2],
    space: Space,
    group_size: i32,
    additional: i32,
    scale_log2: f32,
    padding: i32,
}

// Seven addresses, 21 strides, and the space and 4 more words of four bytes.
const _: () = assert!(size_of::<Params>() == 8 * (7 + 21) + 4 * (34 + 4));

fn arguments(grid: &Grid, inputs: &ForwardInputs) -> Vec<Argument> {
    let ForwardInputs { query, key, value, additional } = inputs;
    let problem = grid.problem;
    let (dim, dim_v) = (problem.head_dim, problem.head_dim_v);
    let mut maps = vec![
        grid.query_map(Slot::Query as usize, query, dim),
        grid.key_map(Slot::Key as usize, key, dim),
        grid.key_map(Slot::Value as usize, value, dim_v),
    ];
    match additional {
        Some((key, value)) => maps.extend([
            grid.map_more(Slot::MoreKey as usize, key, dim),
            grid.map_more(Slot::MoreValue as usize, value, dim_v),
        ]),
        None => maps.extend([maps[1], maps[2]]),
    }
    let params = Params {
        pointers: [0; 7],
        strides: [query, key, value].map(Strided::words),
        more_strides: more_strides(additional),
        space: grid.space(),
        group_size: problem.group_size() as i32,
        additional: problem.additional as i32,
        scale_log2: (problem.scale * std::f64::consts::LOG2_E) as f32,
        padding: 0,
    };
    use Slot::*;
    let pointers = [Out, Lse, Query, Key, Value, MoreKey, MoreValue].map(|slot| slot as usize);
    // SAFETY: the assertion above counts every byte.
    let params = unsafe { parameters(params, &pointers) };
    maps.into_iter().map(Argument::TensorMap).chain([params]).collect()
}

/// Strides of the additional key and value: batch, token, head.
pub(super) fn more_strides(additional: &Option<(Strided, Strided)>) -> [[i64; 3]; 2] {
    let of = |tensor: &Strided| {
        let [batch, _, _, token, head] = tensor.words();
        [batch, token, head]
    };
    additional.as_ref().map_or([[0; 3]; 2], |(key, value)| [of(key), of(value)])
}
