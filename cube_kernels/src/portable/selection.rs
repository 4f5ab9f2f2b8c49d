//! From a problem and the limits of a device to kernels.

use super::blueprint::Blueprint;
use crate::Problem;
use crate::slicing::{Slices, vector_size};
use crate::tensor_core::Pass;
use crate::tiling::boxes;

/// How a pass runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// A unit owns a row, or a slice of one, and loads what the row sees.
    Rows,
    /// A cube owns a tile of rows and takes tiles of columns through shared memory.
    Tiles(Blueprint),
}

/// How the two kernels of a backward pass run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BackwardPlan {
    /// The gradient of the queries.
    pub queries: Way,
    /// The gradients of keys and values. Those of additional tokens and of a position bias always go by rows.
    pub keys: Way,
}

impl BackwardPlan {
    /// Both by rows.
    pub const ROWS: Self = Self { queries: Way::Rows, keys: Way::Rows };
}

/// What the choice depends on of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Whether units are threads of a CPU, where barriers cost more than they save.
    pub is_cpu: bool,
    /// Bytes of shared memory of a cube.
    pub shared_memory: usize,
    /// Units of a cube.
    pub units: usize,
    /// Whether tiled kernels may run: they have been timed on NVIDIA GPUs alone.
    pub allows_tiles: bool,
}

impl Limits {
    /// What WebGPU promises.
    pub const WEBGPU: Self =
        Self { is_cpu: false, shared_memory: 16 << 10, units: 256, allows_tiles: true };
    /// NVIDIA GPUs of compute capability 9.0.
    pub const HOPPER: Self =
        Self { is_cpu: false, shared_memory: 227 << 10, units: 1024, allows_tiles: true };
    /// CubeCL's CPU runtime.
    pub const CPU: Self =
        Self { is_cpu: true, shared_memory: 227 << 10, units: 1024, allows_tiles: false };

    /// Those of a device.
    #[cfg(feature = "cube")]
    pub fn of(client: &cubecl::client::Client) -> Self {
        let properties = client.properties();
        let hardware = &properties.hardware;
        Self {
            is_cpu: hardware.num_cpu_cores.is_some(),
            shared_memory: hardware.max_shared_memory_size,
            units: hardware.max_units_per_cube as usize,
            // An instruction that those GPUs alone have.
            allows_tiles: !properties.features.matmul.ldmatrix.is_empty(),
        }
    }

    /// The same where `allowed` lets tiled kernels run on a device of any kind.
    pub fn or_tiles(self, allowed: bool) -> Self {
        Self { allows_tiles: self.allows_tiles || allowed, ..self }
    }
}

/// The kernels of the forward pass with the least [`estimate`]d time.
pub fn plan(problem: &Problem, limits: &Limits) -> Way {
    choose(problem, limits, Pass::Forward)
}

/// The kernels of the backward pass with the least [`estimate`]d times.
pub fn plan_backward(problem: &Problem, limits: &Limits) -> BackwardPlan {
    BackwardPlan {
        queries: choose(problem, limits, Pass::Queries),
        keys: choose(problem, limits, Pass::Keys),
    }
}

fn choose(problem: &Problem, limits: &Limits, pass: Pass) -> Way {
    if limits.is_cpu || !limits.allows_tiles {
        return Way::Rows;
    }
    let tiles = candidates(problem, limits, pass).into_iter().map(Way::Tiles);
    let ways = tiles.chain([Way::Rows]).map(|way| (estimate(&way, problem, pass), way));
    ways.min_by(|(a, _), (b, _)| a.total_cmp(b)).map_or(Way::Rows, |(_, way)| way)
}

/// A grid of units, and rows and columns of each.
struct Shape {
    down: usize,
    across: usize,
    rows_each: usize,
    columns_each: usize,
}

const fn shape(down: usize, across: usize, rows_each: usize, columns_each: usize) -> Shape {
    Shape { down, across, rows_each, columns_each }
}

const SHAPES: [Shape; 7] = [
    shape(8, 16, 8, 4),
    shape(8, 16, 4, 4),
    shape(16, 8, 8, 8),
    shape(16, 8, 8, 4),
    shape(16, 8, 4, 4),
    shape(8, 8, 8, 4),
    shape(8, 8, 4, 4),
];

/// Registers of a unit that scores and sums may take; a quarter more goes to addresses.
const REGISTERS: usize = 200;

/// Every tiled kernel for a pass of the problem on a device with these limits.
pub fn candidates(problem: &Problem, limits: &Limits, pass: Pass) -> Vec<Blueprint> {
    if problem.queries() == 0
        || problem.keys() == 0
        || problem.head_dim.min(problem.head_dim_v) == 0
    {
        return vec![];
    }
    let problem = &problem.normalized();
    let rank = problem.rank();
    let mut blueprints = vec![];
    for shape in &SHAPES {
        let Shape { down, across, rows_each, columns_each } = *shape;
        for row_tile in boxes(down * rows_each, rank) {
            let columns = boxes(across * columns_each, rank);
            for column_tile in columns.into_iter().filter(|[_, _, x]| *x >= columns_each) {
                let (q_tile, kv_tile) = match pass {
                    Pass::Forward | Pass::Queries => (row_tile, column_tile),
                    Pass::Keys => (column_tile, row_tile),
                };
                let blueprint = Blueprint {
                    pass,
                    rank,
                    is_causal: problem.axes.map(|axis| axis.is_causal),
                    has_origin: problem.has_origin(),
                    q_tile,
                    kv_tile,
                    across,
                    down,
                    rows_each,
                    columns_each,
                    head_dim: problem.head_dim,
                    head_dim_v: problem.head_dim_v,
                    vector: vector_size(problem),
                    depth: 0,
                    holds_rows: true,
                    has_additional: problem.additional > 0 && pass != Pass::Keys,
                    has_bias: problem.has_bias,
                    is_packed: false,
                };
                blueprints.extend(in_memory(blueprint, limits));
            }
        }
    }
    blueprints
}

/// The blueprint with as much of rows and columns in shared memory as leaves several cubes room, or
/// as fits; `None` if nothing does, or registers do not suffice.
fn in_memory(blueprint: Blueprint, limits: &Limits) -> Option<Blueprint> {
    if blueprint.units() > limits.units {
        return None;
    }
    let lines = blueprint.head_dim.max(blueprint.head_dim_v) / blueprint.vector;
    let mut variants = vec![];
    for holds_rows in [true, false] {
        for depth in [lines, 2 * blueprint.across, blueprint.across] {
            variants.push(Blueprint { depth: depth.min(lines), holds_rows, ..blueprint });
        }
    }
    let fits = |blueprint: &Blueprint| {
        blueprint.shared_memory() <= limits.shared_memory && blueprint.registers() <= REGISTERS
    };
    variants.into_iter().filter(fits).min_by(|a, b| inefficiency(a).total_cmp(&inefficiency(b)))
}

/// Shared memory of a multiprocessor, registers of one, and planes that keep it busy.
const SHARED_MEMORY: usize = 228 << 10;
const ALL_REGISTERS: usize = 1 << 16;
const PLANES: f64 = 12.0;

/// What waiting costs where few cubes run side by side, and what barriers and rows that do not stay cost.
fn inefficiency(blueprint: &Blueprint) -> f64 {
    let registers = (blueprint.registers() * 5 / 4 + 24).min(255);
    let cubes = (SHARED_MEMORY / (blueprint.shared_memory() + 1024))
        .min(ALL_REGISTERS / (registers * blueprint.units()));
    let planes = (cubes * blueprint.units() / 32).max(1) as f64;
    let pieces = (blueprint.first().pieces() + blueprint.second().pieces()) as f64;
    let rows = if blueprint.holds_rows { 1.0 } else { 1.15 };
    (PLANES / planes).max(1.0).sqrt() * (1.0 + 0.03 * (pieces - 2.0)) * rows
}

/// Multiply-adds that tiles do while rows do one.
const ROWS_SLOWER: f64 = 12.0;

/// Relative time that a pass is expected to take.
pub fn estimate(way: &Way, problem: &Problem, pass: Pass) -> f64 {
    let problem = &problem.normalized();
    let heads = (problem.batch * problem.heads) as f64;
    let blueprint = match way {
        Way::Tiles(blueprint) => blueprint,
        Way::Rows => {
            let slices = Slices::of(problem);
            let (key, value) = (problem.head_dim as f64, problem.head_dim_v as f64);
            let products = match pass {
                Pass::Forward => slices.forward as f64 * key + value,
                Pass::Queries => slices.query as f64 * (key + value) + key,
                Pass::Keys => slices.key as f64 * (key + value) + key + value,
            };
            return heads * problem.pairs() as f64 * products * ROWS_SLOWER;
        }
    };
    let tiling = blueprint.tiling();
    let count = match pass {
        Pass::Forward | Pass::Queries => tiling.count(problem),
        // Every tile of keys is visited by the heads of a group in turn.
        Pass::Keys => tiling.count_visitors(problem),
    };
    // Issue slots of a unit, for each product multiply-adds and reads.
    let (rows, columns) = (blueprint.rows_each as f64, blueprint.columns_each as f64);
    let vector = blueprint.vector as f64;
    let scores = |lines: usize| lines as f64 * (rows * columns * vector + rows + columns);
    let sums = |lines: usize| {
        let all_columns = blueprint.columns() as f64;
        all_columns * (rows / 4.0 + lines as f64 * (rows * vector + 1.0))
    };
    let (first, second) = (blueprint.first(), blueprint.second());
    let each = |operand| blueprint.lines_each(operand);
    let products = match pass {
        Pass::Forward => scores(first.lines) + sums(each(second)),
        Pass::Queries => scores(first.lines) + scores(second.lines) + sums(each(first)),
        Pass::Keys => {
            scores(first.lines) + scores(second.lines) + sums(each(first)) + sums(each(second))
        }
    };
    let softmax = rows * columns * 16.0 + rows * 20.0;
    let mask =
        (rows * columns * 5.0 + rows * 25.0) * count.mixed() as f64 / count.visited.max(1) as f64;
    // Loads, which the first level of cache serves, and where they go.
    let bias = if blueprint.has_bias { rows * columns * 5.0 + rows * 15.0 } else { 0.0 };
    let staged = (blueprint.columns() * (first.lines + second.lines)) as f64;
    let staging = 20.0 * staged / blueprint.units() as f64;
    let step = products + softmax + mask + bias + staging + 300.0;
    let tile = (blueprint.rows() * (first.lines + second.lines)) as f64 / blueprint.units() as f64
        * 40.0
        + 1000.0;
    let units = blueprint.units() as f64;
    let slots = count.visited as f64 * step + count.q_tiles as f64 * tile;
    heads * slots * units * inefficiency(blueprint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Axis;

    fn problem(dim: usize, axes: impl AsRef<[Axis]>) -> Problem {
        Problem::new(axes, 8, dim)
    }

    fn line(length: usize, kernel_size: usize) -> Problem {
        let axis = Axis::neighborhood(length, kernel_size);
        problem(64, [axis])
    }

    const PASSES: [Pass; 3] = [Pass::Forward, Pass::Queries, Pass::Keys];

    #[test]
    fn candidates_fit_device_and_problem() {
        let side = |length, kernel_size| Axis::neighborhood(length, kernel_size).with_causal(true);
        let plane = [side(40, 7), side(50, 9)];
        let space = [side(9, 3), side(12, 5), side(20, 4)];
        for limits in [Limits::WEBGPU, Limits::HOPPER] {
            let biased = problem(30, plane).with_bias(true);
            for problem in [line(500, 50), problem(30, plane), problem(128, space), biased] {
                for pass in PASSES {
                    let blueprints = candidates(&problem, &limits, pass);
                    assert!(!blueprints.is_empty(), "{pass:?} on {limits:?}");
                    for blueprint in blueprints {
                        let text = format!("{blueprint} on {limits:?}");
                        assert!(blueprint.fits(&problem), "{text}");
                        assert!(blueprint.shared_memory() <= limits.shared_memory, "{text}");
                        assert!(blueprint.units() <= limits.units, "{text}");
                        let volume = |tile: [usize; 3]| tile.iter().product::<usize>();
                        assert_eq!(volume(blueprint.row_tile()), blueprint.rows(), "{text}");
                        assert_eq!(volume(blueprint.column_tile()), blueprint.columns(), "{text}");
                        let [_, _, x] = blueprint.column_tile();
                        assert_eq!(x % blueprint.columns_each, 0, "{text}");
                    }
                }
            }
        }
    }

    #[test]
    fn cpus_go_by_rows() {
        assert_eq!(plan(&line(4096, 4096), &Limits::CPU), Way::Rows);
        assert_eq!(plan_backward(&line(4096, 4096), &Limits::CPU), BackwardPlan::ROWS);
    }

    #[test]
    fn untried_devices_go_by_rows_unless_tiles_are_allowed() {
        let untried = Limits { allows_tiles: false, ..Limits::WEBGPU };
        assert_eq!(plan(&line(4096, 4096), &untried), Way::Rows);
        assert!(matches!(plan(&line(4096, 4096), &untried.or_tiles(true)), Way::Tiles(_)));
    }

    #[test]
    fn gpus_go_by_tiles_where_windows_are_wide() {
        for limits in [Limits::WEBGPU, Limits::HOPPER] {
            for problem in [line(4096, 4096), line(8192, 512)] {
                assert!(matches!(plan(&problem, &limits), Way::Tiles(_)), "{limits:?}");
                let BackwardPlan { queries, keys } = plan_backward(&problem, &limits);
                assert!(matches!(queries, Way::Tiles(_)), "{limits:?}");
                assert!(matches!(keys, Way::Tiles(_)), "{limits:?}");
            }
        }
    }

    #[test]
    fn a_bias_goes_by_tiles_of_its_own() {
        let problem = line(8192, 512).with_bias(true);
        for limits in [Limits::WEBGPU, Limits::HOPPER] {
            let BackwardPlan { queries, keys } = plan_backward(&problem, &limits);
            for way in [plan(&problem, &limits), queries, keys] {
                let Way::Tiles(blueprint) = way else { panic!("by rows on {limits:?}") };
                assert!(blueprint.fits(&problem) && !blueprint.fits(&problem.with_bias(false)));
            }
        }
    }

    #[test]
    fn narrow_windows_go_by_rows() {
        assert_eq!(plan(&line(4096, 3), &Limits::HOPPER), Way::Rows);
        assert_eq!(plan_backward(&line(4096, 3), &Limits::HOPPER), BackwardPlan::ROWS);
    }

    #[test]
    fn nothing_is_tiled_without_keys() {
        let problem = problem(8, [Axis::dense(5, 0, false)]).with_additional(3);
        assert!(PASSES.iter().all(|pass| candidates(&problem, &Limits::HOPPER, *pass).is_empty()));
        assert_eq!(plan(&problem, &Limits::HOPPER), Way::Rows);
    }
}
