//! From a problem to a blueprint.

use super::blueprint::{Blueprint, ROWS};
use super::{Capability, Pass, Staging};
use crate::Problem;
use crate::tiling::Tiling;

/// Scales outside of these would let masked scores through, or take the numbers that stand for them
/// beyond what f32 holds.
const SCALES: std::ops::RangeInclusive<f64> = 1e-6..=1e6;

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

/// A cube's shape: planes, blocks of 16 queries of each, and keys of a step.
struct Shape {
    planes: usize,
    blocks: usize,
    columns: usize,
}

/// Every blueprint that computes the problem on such a device; none where [`unsupported`] says why.
pub fn candidates(problem: &Problem, capability: &Capability, vector: usize) -> Vec<Blueprint> {
    if unsupported(problem).is_some() {
        return vec![];
    }
    let rank = problem.rank();
    let longest = problem.head_dim.max(problem.head_dim_v);
    let mut blueprints = vec![];
    for shape in shapes(longest, capability.staging) {
        for q_tile in boxes(shape.planes * shape.blocks * ROWS, rank) {
            for kv_tile in boxes(shape.columns, rank) {
                let blueprint = Blueprint {
                    pass: Pass::Forward,
                    rank,
                    is_causal: problem.axes.map(|axis| axis.is_causal),
                    q_tile,
                    kv_tile,
                    planes: shape.planes,
                    blocks: shape.blocks,
                    head_dim: problem.head_dim,
                    head_dim_v: problem.head_dim_v,
                    vector,
                    holds_rows: shape.blocks * problem.head_dim.next_multiple_of(16) <= 128
                        && shape.blocks * longest <= 128,
                    // An asynchronous copy takes 4, 8 or 16 bytes.
                    staging: if vector > 1 { capability.staging } else { Staging::Registers },
                    exponential: capability.exponential,
                    has_keys: problem.keys() > 0,
                    has_additional: problem.additional > 0,
                };
                if blueprint.shared_memory() <= capability.shared_memory {
                    blueprints.push(blueprint);
                }
            }
        }
    }
    blueprints
}

/// The shapes for vectors of up to `dim` elements: sums and scores have to fit into registers.
fn shapes(dim: usize, staging: Staging) -> Vec<Shape> {
    let shape = |planes, blocks, columns| Shape { planes, blocks, columns };
    match (dim, staging) {
        (..=64, _) => vec![shape(4, 1, 64), shape(4, 2, 64)],
        (65..=128, Staging::Async) => vec![shape(4, 2, 64), shape(4, 1, 64)],
        (65..=128, Staging::Registers) => vec![shape(4, 2, 32), shape(4, 1, 64)],
        _ => vec![shape(4, 1, 32)],
    }
}

/// Boxes of as many members, sides powers of two. With several axes, sides are 2 to 16 long.
fn boxes(volume: usize, rank: usize) -> Vec<[usize; 3]> {
    let sides = || [2, 4, 8, 16].into_iter();
    match rank {
        1 => vec![[1, 1, volume]],
        2 => sides()
            .flat_map(|y| sides().map(move |x| [1, y, x]))
            .filter(|[_, y, x]| y * x == volume && *x >= 4)
            .collect(),
        _ => [1, 2, 4, 8]
            .into_iter()
            .flat_map(|z| sides().flat_map(move |y| sides().map(move |x| [z, y, x])))
            .filter(|[z, y, x]| z * y * x == volume && *x >= 4)
            .collect(),
    }
}

/// Relative time that a blueprint is expected to take.
pub fn estimate(blueprint: &Blueprint, problem: &Problem) -> f64 {
    let tiling: Tiling = blueprint.tiling();
    let count = tiling.count(problem);
    let heads = (problem.batch * problem.heads) as f64;
    let scores = (blueprint.rows() * blueprint.columns()) as f64;
    let dims = (blueprint.dim() + blueprint.dim_v()) as f64;
    // Instructions of a plane: products, softmax, masks, loads.
    let softmax = 24.0;
    let mask = 10.0 * count.mixed() as f64 / count.visited.max(1) as f64;
    let loads = dims * 16.0 / blueprint.rows() as f64;
    let shared = dims / (8.0 * blueprint.blocks as f64);
    let step = scores * (dims / 4.0 + softmax + mask + loads + shared);
    let tile = blueprint.rows() as f64 * dims * 24.0;
    heads * (count.visited as f64 * step + count.q_tiles as f64 * tile)
}
