//! From a problem to a schedule.

use std::sync::{Arc, LazyLock, Mutex};

use super::Schedule;
use super::schedule::TILE;
use crate::choices::{Choices, remembered};
use crate::cost::{Cost, DeviceModel};
use crate::native::{Element, dense, limits};
use crate::tiling::{TileCount, Tiling};
use crate::{MAX_RANK, Pass, Problem};

#[cfg(test)]
mod tests;

/// Elements of the longest vectors: their sum takes half of tensor memory.
const LONGEST: usize = 256;
/// As on Hopper, so that the statistics of a backward pass are the same.
const MIN_SCALE: f64 = 1e-6;

// What a B200 is expected to do: rates of its data sheet, instructions of compiled kernels. Nothing has been measured.

/// Multiprocessors, and their cycles a second.
const MULTIPROCESSORS: f64 = 148.0;
const CLOCK: f64 = 1.85e9;
/// Cycles of a product of 128 x 128 x 16.
const PRODUCT: f64 = 64.0;
/// Instructions that the softmax of 128 scores takes a thread; those of a mask; the same of weights and slopes. A multiprocessor
/// issues one a cycle for each quarter of its threads.
const SOFTMAX: f64 = 659.0;
const MASK: f64 = 266.0;
const SLOPES: f64 = 900.0;
/// Share of the bound that a first version reaches on whole blocks.
const REACHED: f64 = 0.5;
/// Cycles of a tile besides its steps.
const TILE_LATENCY: f64 = 3000.0;
/// Time added where blocks hold 4 neighbors along the fastest axis instead of 8, as seen on an H200; three times as much for 2.
const SHORT_LINES: f64 = 0.04;

/// Why the kernels cannot compute a problem; `None` if they can.
pub fn unsupported(problem: &Problem) -> Option<String> {
    if problem.has_bias {
        return Some("its kernels know no position bias".into());
    }
    limits::unsupported(problem, LONGEST, MIN_SCALE)
}

/// The schedule of the forward pass with the least [`estimate`]d time; `None` where [`unsupported`] says why not.
///
/// ```rust
/// use burn_natten_kernels::native::{Element, sm100};
/// use burn_natten_kernels::{Axis, Problem};
///
/// let axis = |length, kernel_size| Axis::neighborhood(length, kernel_size);
/// let problem = Problem::new([axis(30, 18), axis(48, 24), axis(80, 24)], 24, 128);
/// let schedule = sm100::plan(&problem, Element::Bf16).expect("a head_dim of 128 is supported");
/// assert_eq!(schedule.q_tile.iter().product::<usize>(), 128);
/// ```
pub fn plan(problem: &Problem, element: Element) -> Option<Schedule> {
    best(problem, candidates(problem, element), None)
}

/// What runs: [`plan()`]'s schedule, or that with the tiles that are asked for where there is one, chosen once for a problem.
///
/// # Errors
///
/// Why there is none.
pub fn planned(
    problem: &Problem,
    element: Element,
    tiling: Option<Tiling>,
) -> Result<Schedule, String> {
    static KNOWN: Choices<How, Schedule> = LazyLock::new(Mutex::default);
    chosen(&KNOWN, problem, (element, tiling), || {
        best(problem, candidates(problem, element), tiling)
    })
}

/// Schedules are chosen by element type and by the tiles that are asked for.
type How = (Element, Option<Tiling>);

/// What `choose` gives for a problem that the kernels cover, or gave.
fn chosen<T: Clone>(
    choices: &Choices<How, T>,
    problem: &Problem,
    how: How,
    choose: impl FnOnce() -> Option<T>,
) -> Result<T, String> {
    if let Some(reason) = unsupported(problem) {
        return Err(reason);
    }
    remembered(choices, problem, how, choose).ok_or_else(|| "no schedule fits".to_string())
}

/// The kernels of a backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackwardPlan {
    /// For the gradient of the queries.
    pub queries: Schedule,
    /// For the gradients of keys and values.
    pub keys: Schedule,
    /// For those of additional keys and values, which are the keys of a dense problem in one axis.
    pub additional: Option<Schedule>,
}

impl BackwardPlan {
    /// All kernels, in the order of their launches.
    pub fn schedules(&self) -> impl Iterator<Item = &Schedule> {
        [&self.queries, &self.keys].into_iter().chain(&self.additional)
    }

    /// All kernels, each with what it computes: `problem`, or for [`additional`](Self::additional) the
    /// dense one.
    pub fn kernels(&self, problem: &Problem) -> Vec<(Schedule, Problem)> {
        let own = [(self.queries, *problem), (self.keys, *problem)];
        let more = self.additional.zip(dense(problem));
        own.into_iter().chain(more).collect()
    }
}

/// For each kernel of the backward pass the schedule with the least [`estimate`]d time, among those with the tiles that are asked
/// for where there are some; `None` where [`unsupported`] says why not.
pub fn plan_backward(
    problem: &Problem,
    element: Element,
    tiling: Option<Tiling>,
) -> Option<BackwardPlan> {
    let of = |problem: &Problem, pass| {
        best(problem, backward_candidates(problem, element, pass), tiling)
    };
    let additional = match dense(problem) {
        Some(dense) => Some(of(&dense, Pass::Keys)?),
        None => None,
    };
    Some(BackwardPlan {
        queries: of(problem, Pass::Queries)?,
        keys: of(problem, Pass::Keys)?,
        additional,
    })
}

/// What runs: what [`plan_backward()`] gives, chosen once for a problem.
///
/// # Errors
///
/// Why there is none.
pub fn planned_backward(
    problem: &Problem,
    element: Element,
    tiling: Option<Tiling>,
) -> Result<Arc<BackwardPlan>, String> {
    static KNOWN: Choices<How, Arc<BackwardPlan>> = LazyLock::new(Mutex::default);
    chosen(&KNOWN, problem, (element, tiling), || {
        plan_backward(problem, element, tiling).map(Arc::new)
    })
}

/// The fastest of these schedules, or of those with the tiles that are asked for if there are any.
fn best(problem: &Problem, all: Vec<Schedule>, tiling: Option<Tiling>) -> Option<Schedule> {
    let fastest = |schedules: Vec<Schedule>| {
        let timed = schedules.into_iter().map(|schedule| (estimate(&schedule, problem), schedule));
        timed.min_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, schedule)| schedule)
    };
    let tiled = all.iter().filter(|schedule| Some(schedule.tiling()) == tiling).copied();
    fastest(tiled.collect()).or_else(|| fastest(all))
}

/// Every schedule of the forward pass of a problem; none where [`unsupported`] says why.
pub fn candidates(problem: &Problem, element: Element) -> Vec<Schedule> {
    schedules(problem, element, Pass::Forward)
}

/// Every schedule of a kernel of the backward pass.
pub fn backward_candidates(problem: &Problem, element: Element, pass: Pass) -> Vec<Schedule> {
    schedules(problem, element, pass)
}

fn schedules(problem: &Problem, element: Element, pass: Pass) -> Vec<Schedule> {
    if unsupported(problem).is_some() {
        return vec![];
    }
    let rank = problem.rank();
    let schedule = |q_tile, kv_tile, stack| Schedule {
        pass,
        element,
        head_dim: problem.head_dim,
        head_dim_v: problem.head_dim_v,
        rank,
        is_causal: problem.axes.map(|axis| axis.is_causal),
        is_strided: problem.axes.iter().any(|axis| axis.stride > 1),
        is_dilated: problem.axes.iter().any(|axis| axis.dilation > 1),
        has_origin: problem.has_origin(),
        has_additional: problem.additional > 0 && pass != Pass::Keys,
        q_tile,
        kv_tile,
        stack,
        stages: 0,
    };
    // A single tile of rows is stacked nowhere: the axis is no more than the slowest of the walk over its blocks.
    let first = MAX_RANK - rank;
    let is_stacked =
        pass == Pass::Forward && schedule([1; MAX_RANK], [1; MAX_RANK], first).tiles() > 1;
    let stacks = if is_stacked { first..MAX_RANK } else { first..first + 1 };
    let boxes = boxes(rank);
    let mut schedules = vec![];
    for q_tile in boxes {
        for kv_tile in boxes {
            for stack in stacks.clone() {
                schedules.push(schedule(*q_tile, *kv_tile, stack).with_stages());
            }
        }
    }
    schedules
}

/// Boxes of 128 queries or keys.
fn boxes(rank: usize) -> &'static [[usize; MAX_RANK]] {
    match rank {
        1 => &[[1, 1, TILE]],
        2 => &[[1, 8, 16], [1, 16, 8], [1, 4, 32], [1, 32, 4]],
        _ => &[
            [2, 8, 8],
            [4, 4, 8],
            [8, 4, 4],
            [4, 8, 4],
            [8, 2, 8],
            [2, 4, 16],
            [4, 2, 16],
            [1, 8, 16],
            [1, 16, 8],
            [8, 1, 16],
            [16, 1, 8],
            [8, 16, 1],
            [16, 8, 1],
        ],
    }
}

/// The tiles that a schedule meets when `rows` are kept together.
fn count(schedule: &Schedule, rows: [usize; MAX_RANK], problem: &Problem) -> TileCount {
    let columns = schedule.column_tile();
    match schedule.pass {
        Pass::Forward | Pass::Queries => Tiling { q_tile: rows, kv_tile: columns }.count(problem),
        Pass::Keys => Tiling { q_tile: columns, kv_tile: rows }.count_visitors(problem),
    }
}

/// Seconds that a schedule is expected to take on a B200.
///
/// The largest of three times: for the products and the instructions of the steps; for reading tiles of columns from the cache; for
/// reading and writing memory once. The last round of CTAs counts as a whole one.
pub fn estimate(schedule: &Schedule, problem: &Problem) -> f64 {
    let device = DeviceModel::B200;
    // Blocks are counted for each head of the queries; keys' tiles visit those of a group in turn.
    let heads = (problem.batch * problem.heads) as f64;
    let passes = if schedule.pass == Pass::Keys { problem.group_size() as f64 } else { 1.0 };
    let steps = count(schedule, schedule.row_tile(), problem);
    let ctas = count(schedule, schedule.cta_tile(), problem);
    let (visited, mixed) = (steps.visited as f64 * heads, steps.mixed() as f64 * heads);
    let tiles = ctas.q_tiles as f64 * heads / passes;

    let products = schedule.multiply_adds() as f64 / 16.0;
    let instructions = if schedule.pass == Pass::Forward { SOFTMAX } else { SLOPES };
    let step = (PRODUCT * products).max(instructions);
    let rounds = tiles / MULTIPROCESSORS;
    let unevenness = rounds.ceil() / rounds.max(1e-9);
    let cycles = (visited * step + mixed * MASK) / REACHED + tiles * TILE_LATENCY;
    let work = cycles / (MULTIPROCESSORS * CLOCK) * unevenness;

    let bytes_of =
        |count: f64| count * (2 * TILE * (schedule.head_dim + schedule.head_dim_v)) as f64;
    let cache = bytes_of(ctas.visited as f64 * heads + tiles) / device.l2_bandwidth;
    let bytes = Cost::forward(problem, None, 2, &device).bytes as f64;
    let mut time = work.max(cache).max(bytes / device.bandwidth);
    if schedule.rank > 1 {
        let line = schedule.column_tile()[MAX_RANK - 1].min(8) as f64;
        time *= 1.0 + SHORT_LINES * (8.0 / line - 1.0);
    }
    time
}
