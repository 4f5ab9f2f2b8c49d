//! From a problem to a schedule.

use super::schedule::TILE;
use super::{Element, Gradients, Mask, Pass, Schedule};
use std::hash::Hash;
use std::iter::Sum;
use std::sync::{LazyLock, Mutex};

use crate::choices::{Choices, remembered};
use crate::cost::{Cost, DeviceModel};
use crate::native::limits;
use crate::native::slopes::{BLOCK_BYTES, Blocks};
use crate::tiling::{TileCount, Tiling};
use crate::{Axis, MAX_RANK, Problem};

mod backward;
mod blocks;
mod packed;
mod parts;
mod splits;
#[cfg(test)]
mod tests;
mod timeline;

pub(super) use blocks::unsupported_lists;
pub use blocks::{block_candidates, planned_blocks, planned_blocks_backward, unsupported_blocks};
pub use packed::{PackedPart, planned_packed, planned_packed_backward};

pub use backward::{
    BackwardPlan, SLOPES_BYTES, Slopes, backward_candidates, plan_backward, plan_backward_within,
    planned_backward,
};

/// One-hot coordinates that a block may have over all axes, and one that has a step for itself.
const SLOTS: usize = 16;
const MORE_SLOTS: usize = 32;
/// Scales below this would let masked scores through; see `cuda/mask.cuh`.
const MIN_SCALE: f64 = 1e-6;
/// Elements of the longest vectors.
const LONGEST: usize = 256;
/// Most entries of a head's bias: each warp of a backward kernel sums as many in shared memory, beside a table of them and two steps.
const MOST_BIAS: usize = 860;
/// Multiprocessors of an H100 or H200.
const MULTIPROCESSORS: f64 = 132.0;

// Times on one multiprocessor, fitted to an H200; NOTES.md has the measurements.

/// Seconds from the scores of 64 queries and 64 keys to their weights, for one warpgroup alone.
const SOFTMAX_LATENCY: f64 = 0.48e-6;
/// Share of a step's time that is left without columns.
const FIXED: f64 = 0.85;
/// Time of a step of more than 128 columns, relative to theirs in steps of 128.
const WIDE_STEP: f64 = 0.965;
/// Time of a step of up to 64 columns with more than [`SLOTS`], relative to one with fewer.
const SLOTS_STEP: f64 = 1.06;
/// By how much longer a step of one block takes a CTA's only warpgroup.
const SHORT_STEP: f64 = 0.355e-6;
/// The same where enough warpgroups overlap: what exponentials and their arithmetic take.
const SOFTMAX: f64 = 0.28e-6;
/// Seconds that a warpgroup alone spends on a tile besides its steps: waiting for Q and the first
/// keys, the first and the last product, writing the results.
const TILE_LATENCY: f64 = 4.0e-6;
/// The same of a CTA's only warpgroup, and of each of four that are pipelines of a CTA.
const TILE_LATENCY_ALONE: f64 = 2.0e-6;
const TILE_LATENCY_IN_TEAMS: f64 = 2.84e-6;
/// Share of the tensor cores' measured rate that a pipeline of two products reaches.
const PRODUCTS: f64 = 0.9;
/// Time added where blocks hold 4 neighbors along the fastest axis instead of 8; three times as much
/// for 2, seven times for 1. Shorter pieces of memory come slower from the cache.
const SHORT_LINES: f64 = 0.04;
/// Time added where warpgroups are stacked along the fastest axis, which then is the slowest of the
/// walk over the blocks.
const FASTEST_STACKED: f64 = 0.03;

/// Seconds of a step of the backward pass in which a warpgroup alone leaves the tensor cores to others.
const BACKWARD_LATENCY: f64 = 0.65e-6;
/// Share of a step's time, in the backward pass, that a warpgroup's step costs which it skips itself.
const ALONE: f64 = 0.8;
/// The same as [`BACKWARD_LATENCY`] of a kernel that reads slopes and multiplies nothing else.
const SUMMING_LATENCY: f64 = 0.4e-6;
/// Seconds by which a byte of slopes that is left in memory prolongs a kernel for keys.
const LEAVING_SLOPES: f64 = 7.7e-14;

/// Why the kernels cannot compute a problem; `None` if they can.
pub fn unsupported(problem: &Problem) -> Option<String> {
    if let Some(reason) = limits::unsupported(problem, LONGEST, MIN_SCALE) {
        return Some(reason);
    }
    // With a bias it makes a difference where all keys are seen, too.
    if problem.has_bias && problem.axes.iter().any(|axis| axis.origin != 0) {
        return Some("there is a position bias, and queries stand elsewhere than keys".into());
    }
    if problem.has_bias && problem.bias_extents().iter().product::<usize>() > MOST_BIAS {
        return Some(format!("the position bias has more than {MOST_BIAS} entries for a head"));
    }
    if problem.has_bias && !has_room_for_bias(problem) {
        return Some("shared memory has no room for the position bias beside vectors of more than 192 elements".into());
    }
    None
}

/// The schedule with the least [`estimate`]d time; `None` where [`unsupported`] says why not.
///
/// ```rust
/// use burn_natten_kernels::native::sm90::{Element, plan};
/// use burn_natten_kernels::{Axis, Problem};
///
/// let axis = |length, kernel_size| Axis::neighborhood(length, kernel_size);
/// let problem = Problem::new([axis(30, 18), axis(48, 24), axis(80, 24)], 24, 128);
/// let schedule = plan(&problem, Element::Bf16).expect("a head_dim of 128 is supported");
/// assert_eq!(schedule.q_tile.iter().product::<usize>(), 64);
/// ```
pub fn plan(problem: &Problem, element: Element) -> Option<Schedule> {
    fastest(candidates(problem, element), problem)
}

/// The schedule with these tiles and the least [`estimate`]d time; `None` if there is none.
pub fn plan_tiled(problem: &Problem, element: Element, tiling: Tiling) -> Option<Schedule> {
    let mut schedules = candidates(problem, element);
    schedules.retain(|schedule| schedule.tiling() == tiling);
    fastest(schedules, problem)
}

/// What runs: the schedule that [`plan_tiled()`] has for the tiles that are asked for, or else [`plan()`]'s, chosen once for a
/// problem.
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
        tiling
            .and_then(|tiling| plan_tiled(problem, element, tiling))
            .or_else(|| plan(problem, element))
    })
}

/// Schedules are chosen by element type and by the tiles that are asked for.
type How = (Element, Option<Tiling>);

/// What `choose` gives for a problem that the kernels cover, or gave.
fn chosen<How: Clone + Eq + Hash, T: Clone>(
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

fn fastest(schedules: Vec<Schedule>, problem: &Problem) -> Option<Schedule> {
    let timed = schedules.into_iter().map(|schedule| (estimate(&schedule, problem), schedule));
    timed.min_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, schedule)| schedule)
}

/// Whether shared memory has room for a bias and the sums of its gradient. Up to [`MOST_BIAS`] entries it has, beside vectors that are
/// not of the longest.
fn has_room_for_bias(problem: &Problem) -> bool {
    let dim = problem.head_dim.max(problem.head_dim_v);
    let has_forward = || {
        !schedules(problem, Element::F16, Pass::Forward, Gradients::NONE, &shapes(dim)).is_empty()
    };
    dim <= 192 || has_forward() && backward::has_schedules(problem)
}

/// Every schedule that computes the problem; none where [`unsupported`] says why.
pub fn candidates(problem: &Problem, element: Element) -> Vec<Schedule> {
    let shapes = shapes(problem.head_dim.max(problem.head_dim_v));
    candidates_of(problem, element, Pass::Forward, Gradients::NONE, &shapes)
}

fn candidates_of(
    problem: &Problem,
    element: Element,
    pass: Pass,
    gradients: Gradients,
    shapes: &[Shape],
) -> Vec<Schedule> {
    match unsupported(problem) {
        None => schedules(problem, element, pass, gradients, shapes),
        Some(_) => vec![],
    }
}

/// The same of a problem that is supported.
fn schedules(
    problem: &Problem,
    element: Element,
    pass: Pass,
    gradients: Gradients,
    shapes: &[Shape],
) -> Vec<Schedule> {
    let plain = Schedule {
        is_strided: problem.axes.iter().any(|axis| axis.stride > 1),
        is_dilated: problem.axes.iter().any(|axis| axis.dilation > 1),
        has_origin: problem.has_origin(),
        has_additional: problem.additional > 0 && pass != Pass::Keys,
        bias: problem.has_bias.then(|| problem.bias_extents()),
        ..Schedule::plain(problem, element, pass, gradients)
    };
    let mut schedules = vec![];
    for shape in shapes {
        for (q_tile, kv_tile, stack) in tiles(problem, pass) {
            let schedule = Schedule {
                q_tile,
                kv_tile,
                stack,
                warpgroups: shape.warpgroups,
                teams: shape.teams,
                blocks: shape.blocks,
                ctas: shape.ctas,
                is_late: shape.is_late,
                ..plain
            };
            let mask = mask(&schedule, problem);
            let is_strided = schedule.is_strided || backward::needs_strides(&schedule, problem);
            let sum_slots = if gradients.bias { schedule.slots_wanted(problem) } else { 1 };
            // Not where there is a bias, whose walk is another one.
            let can_stand = mask == Mask::OneHot && !problem.has_bias;
            let one_block = std::array::from_fn(|axis| {
                can_stand
                    && axis >= MAX_RANK - schedule.rank
                    && schedule.has_one_block(problem, axis)
            });
            let schedule = Schedule { mask, one_block, is_strided, sum_slots, ..schedule };
            let fits = schedule.sums_bias()
                && (schedule.teams == 1 || has_teams(&schedule))
                && has_slots(&schedule)
                && has_columns(&schedule, shape)
                && !spills(&schedule);
            schedules.extend(schedule.with_stages().filter(|_| fits));
        }
    }
    schedules
}

/// Whether the compiler is known to run out of registers.
fn spills(schedule: &Schedule) -> bool {
    let is_forward = schedule.pass == Pass::Forward
        && schedule.warpgroups == 3
        && schedule.mask == Mask::OneHot
        && schedule.has_additional;
    // Of longer vectors. Some bytes are worth it in planes, see `examples/sm90_report`.
    let sums_bias = schedule.gradients.bias
        && schedule.ctas == 3
        && (schedule.rank > 2 || schedule.rank > 1 && schedule.is_strided)
        && schedule.head_dim.max(schedule.head_dim_v) > 32;
    is_forward || sums_bias
}

/// Whether four pipelines in a CTA have registers enough, and the kernel has them.
fn has_teams(schedule: &Schedule) -> bool {
    !schedule.has_additional && !schedule.has_origin
}

/// How much of a multiprocessor a CTA is.
struct Shape {
    warpgroups: usize,
    teams: usize,
    blocks: usize,
    ctas: usize,
    is_late: bool,
    /// Whether its blocks are those of [`WIDE`].
    is_wide: bool,
}

impl Shape {
    fn new(warpgroups: usize, blocks: usize, ctas: usize) -> Self {
        Self { warpgroups, teams: 1, blocks, ctas, is_late: false, is_wide: false }
    }
}

/// The shapes for vectors of up to `dim` elements: accumulators have to fit into registers, and two
/// steps into shared memory.
fn shapes(dim: usize) -> Vec<Shape> {
    let shape = Shape::new;
    let four = Shape { teams: 4, ..shape(1, 1, 1) };
    match dim {
        // Long rows of keys, and tiles of few steps: more pipelines hide each other's ends.
        ..=64 => vec![shape(3, 2, 1), shape(1, 2, 2), shape(1, 1, 3), shape(2, 2, 1), four],
        65..=128 => vec![shape(2, 2, 1), Shape { is_wide: true, ..shape(2, 1, 1) }],
        _ => vec![shape(2, 1, 1)],
    }
}

/// Rows of a warpgroup that has a few less than it could: windows that are short along three axes are seen by less beside.
const SHORT_ROWS: [[usize; MAX_RANK]; 6] =
    [[2, 5, 6], [2, 6, 5], [6, 2, 5], [6, 5, 2], [1, 6, 10], [1, 10, 6]];
/// Blocks of four lines, of which short windows in planes are fewer steps than of squares.
const LINES: [[usize; MAX_RANK]; 8] = [
    [1, 4, 10],
    [1, 4, 12],
    [1, 4, 14],
    [1, 4, 16],
    [1, 10, 4],
    [1, 12, 4],
    [1, 14, 4],
    [1, 16, 4],
];
/// Blocks that are more than two of 64, in two and three axes: a line's last one is too long. Not of dilated axes, which take longer with
/// them.
const WIDE: [[usize; MAX_RANK]; 5] = [[1, 8, 20], [1, 20, 8], [1, 8, 22], [1, 22, 8], [3, 6, 8]];

/// Tiles of queries and keys and the stacking axis.
fn tiles(problem: &Problem, pass: Pass) -> Vec<([usize; 3], [usize; 3], usize)> {
    let rank = problem.rank();
    if let Some(queries) = queries_of_key(problem) {
        return vec![([1, TILE / queries, queries], [1, TILE, 1], 1)];
    }
    let shapes: Vec<[usize; MAX_RANK]> = match rank {
        1 => vec![[1, 1, TILE]],
        2 => vec![[1, 8, 8]],
        _ => vec![
            [4, 4, 4],
            [2, 4, 8],
            [2, 8, 4],
            [4, 2, 8],
            [8, 2, 4],
            [4, 8, 2],
            [8, 4, 2],
            [1, 8, 8],
            [8, 1, 8],
            [8, 8, 1],
        ],
    };
    let (mut rows, mut columns) = (shapes.clone(), shapes);
    if !problem.has_bias && problem.additional == 0 {
        let is_short = problem.head_dim.max(problem.head_dim_v) <= 64;
        let of_rank =
            |tile: &&[usize; MAX_RANK]| tile.iter().filter(|side| **side > 1).count() == rank;
        let is_dilated = problem.axes.iter().any(|axis| axis.dilation > 1);
        match (is_short, rank) {
            (false, _) if is_dilated => {}
            (false, _) => columns.extend(WIDE.iter().filter(of_rank)),
            (true, 1) => {}
            (true, 2) => columns.extend(LINES),
            (true, _) => {
                rows.extend(SHORT_ROWS);
                if pass == Pass::Keys {
                    let is_full =
                        |tile: &&[usize; MAX_RANK]| tile.iter().product::<usize>() == TILE;
                    columns.extend(LINES.iter().filter(is_full));
                }
            }
        }
    }
    let (queries, keys) = match pass {
        Pass::Forward | Pass::Queries => (&rows, &columns),
        Pass::Keys => (&columns, &rows),
    };
    let mut tiles = vec![];
    for q_tile in queries {
        for kv_tile in keys {
            for stack in MAX_RANK - rank..MAX_RANK {
                tiles.push((*q_tile, *kv_tile, stack));
            }
        }
    }
    tiles
}

/// How many queries there are along the fast axis of a plane where all of them see the one key that it has there, if a tile holds them: the
/// slanted edge of compressed attention. Squares of columns would be empty but for one in eight.
fn queries_of_key(problem: &Problem) -> Option<usize> {
    let [_, slow, fast] = problem.axes;
    let divides = fast.queries > 1 && TILE.is_multiple_of(fast.queries);
    let is_one = fast == Axis::dense(fast.queries, 1, false);
    // A slow axis that repeats or skips keys keeps to squares, which are known to have registers enough.
    let is_plain = slow.stride == 1 && slow.dilation == 1 && !problem.has_bias;
    (problem.rank() == 2 && divides && is_one && is_plain).then_some(fast.queries)
}

/// Whether a product with one-hot coordinates has room for those of a step.
fn has_slots(schedule: &Schedule) -> bool {
    let most = if takes_any_columns(schedule) { MORE_SLOTS } else { SLOTS };
    schedule.mask != Mask::OneHot || slots(schedule) <= most
}

/// Whether blocks have as many columns as the shape is for.
fn has_columns(schedule: &Schedule, shape: &Shape) -> bool {
    let columns = schedule.columns() / schedule.blocks;
    let is_one = if shape.is_wide { columns > TILE } else { columns < TILE };
    columns == TILE && !shape.is_wide || is_one && takes_any_columns(schedule)
}

/// Whether its blocks may have other numbers of columns than 64, and more coordinates: each has a step for itself then, and registers are left.
fn takes_any_columns(schedule: &Schedule) -> bool {
    let has_lines =
        LINES.contains(&schedule.column_tile()) && schedule.head_dim.max(schedule.head_dim_v) <= 64;
    schedule.blocks == 1 && !schedule.is_packed && (has_lines || schedule.columns() > TILE)
}

/// One-hot coordinates of a block, as the kernel lays them out.
fn slots(schedule: &Schedule) -> usize {
    let (rows, columns) = (schedule.row_tile(), schedule.column_tile());
    let of = |axis: usize| {
        let is_single = rows[axis] == 1 && columns[axis] == 1 && schedule.stack != axis;
        let may_be_blind = schedule.has_origin && schedule.pass != Pass::Keys;
        let has_none = axis < MAX_RANK - schedule.rank || is_single && !may_be_blind;
        if has_none { 0 } else { columns[axis].next_multiple_of(4) }
    };
    (0..MAX_RANK).map(of).sum()
}

fn mask(schedule: &Schedule, problem: &Problem) -> Mask {
    if sees_all(schedule, problem) {
        return Mask::None;
    }
    match schedule.rank == 1 || queries_of_key(problem).is_some() {
        true => Mask::Linear,
        false => Mask::OneHot,
    }
}

/// Whether every row of a CTA sees every column that the CTA visits.
fn sees_all(schedule: &Schedule, problem: &Problem) -> bool {
    // A tile of queries that see nothing is visited all the same.
    if problem.axes.iter().any(|axis| axis.window(0).1 == 0) {
        return false;
    }
    // So may one be of keys that nobody sees.
    if schedule.pass == Pass::Keys && problem.axes.iter().any(has_unseen_keys) {
        return false;
    }
    let windows = problem.with_additional(0);
    let (tiling, count) = count(schedule, schedule.cta_tile(), &windows);
    // A step of two blocks must not be left half empty.
    let even = |(index, axis): (usize, &Axis)| match schedule.pass {
        Pass::Forward | Pass::Queries => {
            tiling.axis_tiles(axis, index).all(|tile| tile.kv_tiles % schedule.blocks == 0)
        }
        // Steps of keys' kernels are single blocks.
        Pass::Keys => true,
    };
    count.visited == count.unmasked && problem.axes.iter().enumerate().any(even)
}

/// Whether there are keys that no query sees: the first or the last ones of a dilation group, where queries are not those of the keys.
fn has_unseen_keys(axis: &Axis) -> bool {
    let ends = axis.dilation.min(axis.keys);
    let is_unseen = |key: usize| axis.visitors(key).1 == 0;
    let is_own = axis.origin == 0 && axis.queries == axis.keys;
    !is_own && (0..ends).chain(axis.keys - ends..axis.keys).any(is_unseen)
}

/// The tiles that a schedule meets when `rows` are kept together.
fn count(schedule: &Schedule, rows: [usize; MAX_RANK], problem: &Problem) -> (Tiling, TileCount) {
    let tiling = schedule.tiling_of(rows);
    match schedule.pass {
        Pass::Forward | Pass::Queries => (tiling, tiling.count(problem)),
        Pass::Keys => (tiling, tiling.count_visitors(problem)),
    }
}

/// Seconds that a schedule is expected to take on an H200.
///
/// The largest of three times: for the steps and tiles of the warpgroups, which share the tensor
/// cores and hide each other's softmax; for reading tiles of columns from the cache; for reading and
/// writing memory once. The last round of CTAs counts as a whole one.
pub fn estimate(schedule: &Schedule, problem: &Problem) -> f64 {
    let load = Load::new(schedule, problem);
    load.seconds(schedule, load.unevenness(schedule))
}

/// What a launch of a schedule has to do for a problem, which adds up over the sequences of a packed batch.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    /// Tiles of CTAs.
    tiles: f64,
    /// Seconds for the steps and tiles of the warpgroups, in equal shares.
    work: f64,
    /// Seconds for reading tiles of columns from the cache.
    cache: f64,
    /// Seconds for reading and writing memory once.
    memory: f64,
}

impl Load {
    fn new(schedule: &Schedule, problem: &Problem) -> Self {
        let device = DeviceModel::H200;
        // Blocks are counted for each head of the queries; keys' tiles visit those of a group, or of one of its splits, in turn.
        let heads = (problem.batch * problem.heads) as f64;
        let passes = match schedule.pass {
            Pass::Keys => (problem.group_size() / schedule.splits) as f64,
            Pass::Forward | Pass::Queries => 1.0,
        };
        let blocks = schedule.blocks as f64;
        let columns = schedule.columns();
        // Of a step, in blocks of 64 columns that would take as long.
        let share = columns as f64 / TILE as f64;
        let size = match schedule.blocks {
            1 if columns < TILE => FIXED + (1.0 - FIXED) * share,
            1 if columns > 2 * TILE => WIDE_STEP * share,
            _ => share,
        };
        let has_more_slots = schedule.mask == Mask::OneHot && slots(schedule) > SLOTS;
        let size = if has_more_slots && columns <= TILE { SLOTS_STEP * size } else { size };
        let count = |rows: [usize; MAX_RANK]| {
            let (tiling, count) = count(schedule, rows, problem);
            // Slopes have boxes at multiples of their extents, which may be more than there are from the first query on that sees a key.
            let boxes = (schedule.keeps_slopes && schedule.pass == Pass::Keys && schedule.rank > 1)
                .then(|| Blocks::visited(problem, &tiling))
                .flatten();
            let visited = boxes.map_or(count.visited as f64, |boxes| boxes as f64);
            let tiles = count.q_tiles as f64;
            // A range of blocks begins and ends within a step of two as often as not.
            let steps = visited / blocks + tiles * (blocks - 1.0) / 2.0;
            (tiles * heads / passes, steps * heads)
        };
        let (_, mut warpgroup_steps) = count(schedule.row_tile());
        let (tiles, loads) = count(schedule.cta_tile());
        if schedule.pass != Pass::Forward {
            // A warpgroup that works while the others of its CTA skip a step has nobody to hide behind.
            let all = loads * schedule.warpgroups as f64;
            warpgroup_steps += ALONE * (all - warpgroup_steps).max(0.0);
        }

        let together = (schedule.warpgroups * schedule.teams * schedule.ctas) as f64;
        let one_hot = if schedule.mask == Mask::OneHot { 16 } else { 0 };
        let depth = one_hot + schedule.multiply_adds();
        let rate = device.matmul_flops / MULTIPROCESSORS;
        let products = size * (2 * TILE * TILE * depth) as f64 / rate;
        let latency = match schedule.pass {
            Pass::Forward if schedule.warpgroups * schedule.blocks == 1 => {
                size * SOFTMAX_LATENCY + SHORT_STEP
            }
            Pass::Forward => size * SOFTMAX_LATENCY,
            _ if schedule.sums_slopes() => size * SUMMING_LATENCY,
            Pass::Queries | Pass::Keys => size / blocks * BACKWARD_LATENCY,
        };
        let step = (products / PRODUCTS).max((products + latency) / together).max(size * SOFTMAX);
        let slots = tiles * schedule.warpgroups as f64;
        let tile = match (schedule.pass, schedule.teams, schedule.warpgroups) {
            (Pass::Forward, 1, 1) => TILE_LATENCY_ALONE,
            (Pass::Forward, 2.., _) => TILE_LATENCY_IN_TEAMS,
            _ => TILE_LATENCY,
        };
        let work = (warpgroup_steps * step + slots * tile / together) / MULTIPROCESSORS;

        let column_dims = match schedule.sums_slopes() {
            true => problem.head_dim,
            false => problem.head_dim + problem.head_dim_v,
        };
        let column_bytes = (2 * columns * column_dims) as f64;
        let row_dims = match schedule.pass {
            Pass::Forward => problem.head_dim,
            _ if schedule.sums_slopes() => 0,
            Pass::Queries | Pass::Keys => problem.head_dim + problem.head_dim_v,
        };
        let row_bytes = (2 * TILE * schedule.warpgroups * row_dims) as f64;
        let cache = (loads * column_bytes + tiles * row_bytes) / device.l2_bandwidth;
        let bytes = Cost::forward(problem, None, 2, &device).bytes as f64;
        let work = work + splits::seconds(schedule, problem);
        let slopes = match (schedule.keeps_slopes, Blocks::of(problem, &schedule.tiling())) {
            (true, Some(blocks)) => heads * (blocks.count() * BLOCK_BYTES) as f64,
            _ => 0.0,
        };
        let (work, bytes) = match schedule.pass {
            Pass::Keys => (work + slopes * LEAVING_SLOPES, bytes),
            Pass::Forward | Pass::Queries => (work, bytes + slopes),
        };
        Self { tiles, work, cache, memory: bytes / device.bandwidth }
    }

    /// So many of it.
    fn times(self, count: usize) -> Self {
        let count = count as f64;
        let Self { tiles, work, cache, memory } = self;
        Self {
            tiles: tiles * count,
            work: work * count,
            cache: cache * count,
            memory: memory * count,
        }
    }

    /// By how much a last round of CTAs, of which some have nothing to do, prolongs the work.
    fn unevenness(&self, schedule: &Schedule) -> f64 {
        let rounds = self.tiles / (MULTIPROCESSORS * (schedule.teams * schedule.ctas) as f64);
        rounds.ceil() / rounds.max(1e-9)
    }

    fn seconds(&self, schedule: &Schedule, unevenness: f64) -> f64 {
        let mut time = (self.work * unevenness).max(self.cache).max(self.memory);
        if schedule.rank > 1 && schedule.mask != Mask::Linear {
            let fastest = MAX_RANK - 1;
            let shortness = 8.0 / schedule.column_tile()[fastest] as f64 - 1.0;
            time *= 1.0 + SHORT_LINES * shortness.max(0.0);
            time *= 1.0 + if schedule.stack == fastest { FASTEST_STACKED } else { 0.0 };
        }
        time
    }
}

impl Sum for Load {
    fn sum<I: Iterator<Item = Self>>(loads: I) -> Self {
        loads.fold(Self::default(), |a, b| Self {
            tiles: a.tiles + b.tiles,
            work: a.work + b.work,
            cache: a.cache + b.cache,
            memory: a.memory + b.memory,
        })
    }
}
