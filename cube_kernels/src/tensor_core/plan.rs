//! From a problem to a blueprint.

use super::blueprint::Blueprint;
use super::{Capability, Compiler, Instruction, Pass, Staging};
use crate::tiling::{Tiling, boxes};
use crate::{Operands, Problem};

/// Scales outside of these would let masked scores through, or take the numbers that stand for them
/// beyond what f32 holds.
const SCALES: std::ops::RangeInclusive<f64> = 1e-6..=1e6;

/// Most entries of a head's position bias: places in it, and a tile farther, are numbers of 32 bits.
const MOST_ENTRIES: usize = 1 << 20;

/// How a blueprint is chosen among all that compute a problem.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Choice {
    /// By the model: the one with the least [`estimate`]d time.
    #[default]
    Modelled,
    /// The one with these tiles, where there is one, or else by the model.
    Tiled(Tiling),
    /// By measurement: the model's best few are timed in the first call with such a problem, which for this takes seconds
    /// rather than one, and the fastest is remembered. Results may differ by rounding from process to process.
    Measured,
}

impl Choice {
    /// The tiles that are asked for.
    pub fn tiling(self) -> Option<Tiling> {
        match self {
            Self::Tiled(tiling) => Some(tiling),
            Self::Modelled | Self::Measured => None,
        }
    }

    /// The same where nothing can be measured.
    #[cfg(feature = "cube")]
    pub(super) fn modelled(self) -> Self {
        if self == Self::Measured { Self::Modelled } else { self }
    }
}

/// Why the kernels cannot compute a problem; `None` if they can.
pub fn unsupported(problem: &Problem) -> Option<String> {
    let dims = [("head_dim", problem.head_dim), ("head_dim of value", problem.head_dim_v)];
    for (name, dim) in dims {
        if dim == 0 || dim > 256 {
            return Some(format!("{name} is {dim}, not 1 to 256"));
        }
    }
    if !SCALES.contains(&problem.scale) {
        let (least, most) = SCALES.into_inner();
        return Some(format!("scale is {}, not {least:e} to {most:e}", problem.scale));
    }
    if problem.keys() == 0 && problem.additional == 0 {
        return Some("there are no keys".into());
    }
    let entries = problem.bias_entries();
    if problem.has_bias && entries > MOST_ENTRIES {
        return Some(format!(
            "the position bias has {entries} entries for a head, more than {MOST_ENTRIES}"
        ));
    }
    None
}

/// Most elements, a power of two up to 8, that rows can be read in where strides allow it.
pub fn widest_vector(problem: &Problem) -> usize {
    let dims = [problem.head_dim, problem.head_dim_v];
    [8, 4, 2, 1].into_iter().find(|size| dims.iter().all(|dim| dim % size == 0)).unwrap_or(1)
}

/// The blueprint with the least [`estimate`]d time, for rows read in vectors of `vector` elements; `None`
/// where none fits the device.
pub fn plan(problem: &Problem, capability: &Capability, vector: usize) -> Option<Blueprint> {
    fastest(candidates(problem, capability, vector), problem)
}

/// The blueprint with these tiles and the least [`estimate`]d time; `None` if there is none.
pub fn plan_tiled(
    problem: &Problem,
    capability: &Capability,
    vector: usize,
    tiling: Tiling,
) -> Option<Blueprint> {
    let mut blueprints = candidates(problem, capability, vector);
    blueprints.retain(|blueprint| blueprint.tiling() == tiling);
    fastest(blueprints, problem)
}

fn fastest(blueprints: Vec<Blueprint>, problem: &Problem) -> Option<Blueprint> {
    let timed = blueprints.into_iter().map(|blueprint| (estimate(&blueprint, problem), blueprint));
    timed.min_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, blueprint)| blueprint)
}

/// The kernels of a backward pass.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct BackwardPlan {
    /// The gradient of the queries.
    pub queries: Blueprint,
    /// The gradients of keys and values, in one kernel or in one each; none where there are no keys.
    pub keys: Vec<Blueprint>,
    /// Those of the additional keys and values: of all queries to the additional tokens, as one axis.
    pub additional: Vec<Blueprint>,
}

impl BackwardPlan {
    /// The same with kernels of these tiles in place of those of the queries and of the keys, where there are some.
    pub fn with_tiling(
        mut self,
        problem: &Problem,
        capability: &Capability,
        vector: usize,
        tiling: Tiling,
    ) -> Self {
        for own in [&mut self.queries].into_iter().chain(&mut self.keys) {
            let parts = [own.has_first, own.has_second];
            let mut all = candidates_of(problem, capability, vector, own.pass, parts);
            all.retain(|blueprint| blueprint.tiling() == tiling);
            *own = fastest(all, problem).unwrap_or(*own);
        }
        self
    }

    /// The same without the kernels of keys and values that sum no gradient that somebody wants.
    pub fn wanted(&self, wanted: &Operands<bool>) -> Self {
        let of = |kernels: &[Blueprint], [key, value]: [bool; 2]| -> Vec<Blueprint> {
            let is_wanted =
                |kernel: &&Blueprint| kernel.has_first && key || kernel.has_second && value;
            kernels.iter().filter(is_wanted).copied().collect()
        };
        let more = wanted.additional.map_or([false; 2], |more| [more.key, more.value]);
        Self {
            queries: self.queries,
            keys: of(&self.keys, [wanted.key, wanted.value]),
            additional: of(&self.additional, more),
        }
    }

    /// Its kernels.
    pub fn blueprints(&self) -> impl Iterator<Item = &Blueprint> {
        [&self.queries].into_iter().chain(&self.keys).chain(&self.additional)
    }
}

/// The kernels with the least [`estimate`]d times; `None` where one does not fit the device.
pub fn plan_backward(
    problem: &Problem,
    capability: &Capability,
    vector: usize,
) -> Option<BackwardPlan> {
    let fastest_of = |problem: &Problem, pass, parts| {
        fastest(candidates_of(problem, capability, vector, pass, parts), problem)
    };
    let keys = |problem: &Problem| -> Option<Vec<Blueprint>> {
        let parts = key_parts(problem);
        parts.iter().map(|parts| fastest_of(problem, Pass::Keys, *parts)).collect()
    };
    Some(BackwardPlan {
        queries: fastest_of(problem, Pass::Queries, [true, false])?,
        keys: if problem.keys() > 0 { keys(problem)? } else { vec![] },
        additional: match problem.additional {
            0 => vec![],
            _ => keys(&problem.of_additional())?,
        },
    })
}

/// Every blueprint of a pass; none where [`unsupported`] says why.
pub fn backward_candidates(
    problem: &Problem,
    capability: &Capability,
    vector: usize,
    pass: Pass,
) -> Vec<Blueprint> {
    let parts = match pass {
        Pass::Keys => key_parts(problem)[0],
        Pass::Forward => [false, false],
        Pass::Queries => [true, false],
    };
    candidates_of(problem, capability, vector, pass, parts)
}

/// Which of the two gradients of keys and of values each kernel sums: both where registers suffice.
fn key_parts(problem: &Problem) -> &'static [[bool; 2]] {
    let dims = problem.head_dim.next_multiple_of(16) + problem.head_dim_v.next_multiple_of(16);
    if dims <= 256 { &[[true, true]] } else { &[[true, false], [false, true]] }
}

/// A cube's shape: planes, blocks of 16 rows of each, or of each two that work in a pair, and columns of a step.
struct Shape {
    planes: usize,
    blocks: usize,
    columns: usize,
    is_paired: bool,
}

/// Every blueprint that computes the problem on such a device; none where [`unsupported`] says why.
pub fn candidates(problem: &Problem, capability: &Capability, vector: usize) -> Vec<Blueprint> {
    candidates_of(problem, capability, vector, Pass::Forward, [false, false])
}

fn candidates_of(
    problem: &Problem,
    capability: &Capability,
    vector: usize,
    pass: Pass,
    [has_first, has_second]: [bool; 2],
) -> Vec<Blueprint> {
    if unsupported(problem).is_some() {
        return vec![];
    }
    let rank = problem.rank();
    let mut blueprints = vec![];
    let [rows, ..] = capability.instruction.shape();
    let size = capability.instruction.size();
    let vector = vector.min(capability.instruction.widest_vector()).min(capability.vector);
    for shape in shapes(problem, capability, pass) {
        if shape.is_paired && !(has_first && has_second) {
            continue;
        }
        let groups = if shape.is_paired { shape.planes / 2 } else { shape.planes };
        for row_tile in boxes(groups * shape.blocks * rows, rank) {
            for column_tile in boxes(shape.columns, rank) {
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
                    planes: shape.planes,
                    is_paired: shape.is_paired,
                    blocks: shape.blocks,
                    head_dim: problem.head_dim,
                    head_dim_v: problem.head_dim_v,
                    vector,
                    holds_rows: capability.instruction.is_mma()
                        && holds_rows(problem, &shape, pass, size),
                    has_first,
                    has_second,
                    instruction: capability.instruction,
                    // An asynchronous copy takes 4, 8 or 16 bytes.
                    staging: match vector * size {
                        4.. => capability.staging,
                        _ => Staging::Registers,
                    },
                    exponential: capability.exponential,
                    has_keys: problem.keys() > 0,
                    has_additional: problem.additional > 0 && pass != Pass::Keys,
                    has_bias: problem.has_bias && problem.keys() > 0,
                    bias_sums: 0,
                    is_packed: false,
                };
                let fits =
                    |blueprint: &Blueprint| blueprint.shared_memory() <= capability.shared_memory;
                let summing = blueprint.with_bias_sums(problem).filter(fits);
                blueprints.extend(summing.or_else(|| Some(blueprint).filter(fits)));
            }
        }
    }
    blueprints
}

/// Whether registers suffice to hold the rows' fragments, of elements of `size` bytes.
fn holds_rows(problem: &Problem, shape: &Shape, pass: Pass, size: usize) -> bool {
    let longest = problem.head_dim.max(problem.head_dim_v);
    let bytes = shape.blocks * longest * size;
    match pass {
        Pass::Forward => bytes <= 256,
        Pass::Queries | Pass::Keys => bytes <= 128 || shape.is_paired && shape.columns <= 32,
    }
}

/// The shapes for a problem's vectors: sums and scores have to fit into registers.
fn shapes(problem: &Problem, capability: &Capability, pass: Pass) -> Vec<Shape> {
    let shape = |planes, blocks, columns| Shape { planes, blocks, columns, is_paired: false };
    let pairs = |planes, blocks, columns| Shape { planes, blocks, columns, is_paired: true };
    let longest = problem.head_dim.max(problem.head_dim_v);
    if let Instruction::Cmma(_) = capability.instruction {
        let mut shapes = vec![shape(4, 1, 64), shape(4, 1, 32), shape(4, 1, 16), shape(2, 1, 16)];
        // Rows and columns have two vectors each, and Apple's GPUs 32 KB of shared memory.
        if pass != Pass::Forward {
            shapes.push(shape(1, 1, 16));
        }
        return shapes;
    }
    if capability.instruction == Instruction::Tf32 {
        // Vectors take twice the shared memory, and as fragments twice the registers.
        return match (pass, longest) {
            (Pass::Forward, ..=64) => vec![shape(4, 1, 64), shape(4, 2, 32), shape(4, 1, 32)],
            (Pass::Forward, 65..=128) => vec![shape(4, 2, 32), shape(4, 1, 32), shape(4, 1, 16)],
            (Pass::Forward, ..) => vec![shape(4, 1, 32), shape(4, 1, 16), shape(2, 1, 16)],
            (_, ..=64) => vec![shape(4, 1, 32), shape(4, 1, 16)],
            (_, 65..=128) => vec![shape(4, 1, 32), shape(4, 1, 16), shape(2, 1, 16)],
            _ => vec![shape(4, 1, 16), shape(2, 1, 16), shape(1, 1, 16)],
        };
    }
    match (pass, longest, capability.staging) {
        (Pass::Forward, ..=64, _) => vec![shape(4, 1, 64), shape(4, 2, 64)],
        (Pass::Forward, 65..=128, Staging::Async(_)) => vec![shape(4, 2, 64), shape(4, 1, 64)],
        (Pass::Forward, 65..=128, Staging::Registers) => vec![shape(4, 2, 32), shape(4, 1, 64)],
        (Pass::Forward, ..) => vec![shape(4, 1, 32), shape(2, 1, 32)],
        (_, ..=64, _) => vec![shape(4, 1, 64), shape(4, 1, 32), shape(4, 2, 32)],
        (Pass::Queries, 65..=128, Staging::Async(_)) => {
            vec![shape(4, 1, 64), shape(4, 2, 32), shape(4, 1, 32)]
        }
        // Held rows and 32 columns are faster through LLVM, which spills less of it.
        (Pass::Keys, 65..=128, Staging::Async(Compiler::Llvm)) => {
            vec![pairs(8, 2, 32), shape(4, 1, 64), pairs(4, 2, 32), shape(4, 1, 32)]
        }
        (Pass::Keys, 65..=128, Staging::Async(Compiler::Cpp)) => {
            vec![pairs(8, 2, 64), shape(4, 1, 64), shape(4, 1, 32)]
        }
        (_, 65..=128, Staging::Registers) => vec![shape(4, 1, 32)],
        _ => vec![shape(4, 1, 32), shape(2, 1, 16)],
    }
}

/// Relative time that a blueprint is expected to take.
pub fn estimate(blueprint: &Blueprint, problem: &Problem) -> f64 {
    let tiling = blueprint.tiling();
    let (count, heads) = match blueprint.pass {
        Pass::Forward | Pass::Queries => (tiling.count(problem), problem.heads),
        // Every tile of keys is visited by the heads of a group in turn.
        Pass::Keys => (tiling.count_visitors(problem), problem.heads),
    };
    let scores = (blueprint.rows() * blueprint.columns()) as f64;
    let dims = (blueprint.dim() + blueprint.dim_v()) as f64;
    // Issue slots for a score: products, softmax, masks, vectors loaded for a tile and read from shared
    // memory. Elements of twice the size take twice of all but the softmax.
    let dims = dims * (blueprint.instruction.size() / size_of::<u16>()) as f64;
    let products = dims * if blueprint.pass == Pass::Forward { 0.25 } else { 0.45 };
    let softmax = 24.0;
    let mask = 10.0 * count.mixed() as f64 / count.visited.max(1) as f64;
    let loads = dims * 16.0 / blueprint.rows() as f64;
    let shared = dims / (8.0 * blueprint.blocks as f64);
    // Half the reads of shared memory are not half the time: planes of a pair wait for each other.
    let waits = if blueprint.is_paired { 1.18 } else { 1.0 };
    // A minimum, an address, a load and an addition, and that of the units which wait for it.
    let mut bias = if blueprint.has_bias { 8.0 } else { 0.0 };
    if blueprint.bias_sums > 0 {
        // A store, and for each distance and row a load and an addition.
        let distances = blueprint.near().count() as f64 / blueprint.columns() as f64;
        bias += 3.0 + 2.0 * distances + 2.0;
    }
    let step = waits * scores * (products + softmax + mask + bias + loads + shared);
    // Units that exchange scores meet six times a step, and a meeting is about 32 slots of each.
    let meetings = match blueprint.instruction {
        Instruction::Mma | Instruction::Tf32 => 0.0,
        Instruction::Cmma(_) => (6 * 32 * blueprint.units()) as f64,
    };
    let tile = blueprint.rows() as f64 * dims * 24.0;
    let heads = (problem.batch * heads) as f64;
    let mut pairs = 0.0;
    if blueprint.has_bias && blueprint.pass == Pass::Queries && blueprint.bias_sums == 0 {
        // Products of rows that load each number, and whether each query sees a key at each distance.
        pairs = problem.pairs() as f64 * (4.0 * dims + 100.0);
    }
    heads * (count.visited as f64 * (step + meetings) + count.q_tiles as f64 * tile + pairs)
}

#[cfg(test)]
mod tests;
