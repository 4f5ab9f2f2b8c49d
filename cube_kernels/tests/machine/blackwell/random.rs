//! Random problems of each rank in turn, with the schedules that would run and with any that could.

use burn_natten_kernels::native::Element;
use burn_natten_kernels::native::sm100::{Schedule, backward_candidates, candidates};
use burn_natten_kernels::{Axis, Pass, Problem};
use rand::{Rng, SeedableRng, rngs::StdRng};

use super::ways::{Case, check};
use crate::run::Policy;

/// Lengths of vectors of queries and keys, and of values.
const DIMS: [(usize, usize); 9] =
    [(64, 64), (128, 128), (32, 32), (40, 72), (96, 96), (128, 64), (8, 128), (72, 40), (112, 24)];
/// Tokens of an axis, by rank.
const LONGEST: [usize; 3] = [400, 24, 9];

/// The axis with queries elsewhere than keys of the same number: some of it, or, causal and dense, any.
fn elsewhere(rng: &mut StdRng, axis: Axis) -> Axis {
    if axis.queries != axis.keys || rng.random() {
        let (queries, keys) = (axis.queries as i64, axis.keys as i64);
        let origin = rng.random_range(-queries - 3..=keys + 3);
        return Axis::dense(axis.queries, axis.keys, true).with_origin(origin as isize);
    }
    let start = rng.random_range(0..axis.queries).next_multiple_of(axis.dilation);
    let start = if start < axis.queries { start } else { 0 };
    let mut part = axis.with_origin(start as isize);
    part.queries = rng.random_range(1..=axis.queries - start);
    part
}

fn random_axis(rng: &mut StdRng, longest: usize, is_dense: bool) -> Axis {
    let length = rng.random_range(2..=longest);
    if is_dense {
        let keys = rng.random_range(1..=longest);
        return Axis::dense(length, keys, rng.random());
    }
    let dilation = if rng.random() { 1 } else { rng.random_range(1..=length / 2) };
    let kernel_size = rng.random_range(2..=length / dilation);
    let stride = if rng.random() { 1 } else { rng.random_range(1..=kernel_size) };
    Axis::neighborhood(length, kernel_size)
        .with_stride(stride)
        .with_dilation(dilation)
        .with_causal(rng.random_bool(0.3))
}

fn random_problem(
    rng: &mut StdRng,
    rank: usize,
    (head_dim, head_dim_v): (usize, usize),
) -> Problem {
    let is_dense = rank == 1 && rng.random_bool(0.3);
    let mut axes = [Axis::UNIT; 3];
    for axis in &mut axes[3 - rank..] {
        *axis = random_axis(rng, LONGEST[rank - 1], is_dense);
    }
    if rng.random_bool(0.3) {
        let index = rng.random_range(3 - rank..3);
        axes[index] = elsewhere(rng, axes[index]);
    }
    // Samples of such axes have to be one.
    let most = if axes[0].queries == axes[0].keys { 2 } else { 1 };
    let heads_kv = rng.random_range(1..=2);
    let heads = heads_kv * rng.random_range(1..=2);
    let additional = if rng.random_bool(0.3) { rng.random_range(1..=150) } else { 0 };
    Problem::new(axes, heads, head_dim)
        .with_batch(rng.random_range(1..=most))
        .with_heads_kv(heads_kv)
        .with_head_dim_v(head_dim_v)
        .with_additional(additional)
}

/// What a kernel is specialised by, besides its tiles.
fn flags(problem: &Problem) -> impl PartialEq {
    let Problem { axes, additional, .. } = problem;
    (
        axes.map(|axis| axis.is_causal),
        axes.iter().any(|axis| axis.stride > 1),
        axes.iter().any(|axis| axis.dilation > 1),
        problem.has_origin(),
        *additional > 0,
    )
}

/// As many problems with the same kernels, as these take longer to compile than to run.
const TOGETHER: usize = 4;

fn random_cases(rng: &mut StdRng, rank: usize) -> Vec<Case> {
    let dims = DIMS[rng.random_range(0..DIMS.len())];
    let first = random_problem(rng, rank, dims);
    let element = if rng.random() { Element::F16 } else { Element::Bf16 };
    let mut case = Case::new(first, element, Policy::Late);
    // Half with the schedules that would run, half with any that could.
    if rng.random() {
        let mut any = |all: Vec<Schedule>| all[rng.random_range(0..all.len())];
        let mut other = |pass| any(backward_candidates(&first, element, pass));
        case.backward.queries = other(Pass::Queries);
        case.backward.keys = other(Pass::Keys);
        case.forward = any(candidates(&first, element));
    }
    let Case { forward, backward, .. } = case;
    let mut cases = vec![];
    let mut problem = first;
    while cases.len() < TOGETHER {
        let policy = match rng.random_range(0..3) {
            0 => Policy::Late,
            1 => Policy::Early,
            _ => Policy::Random(rng.random()),
        };
        cases.push(Case { problem, policy, forward, backward });
        loop {
            problem = random_problem(rng, rank, dims);
            if flags(&problem) == flags(&first) {
                break;
            }
        }
    }
    cases
}

#[test]
fn random_problems() {
    let count = std::env::var("BURN_NATTEN_TEST_PROBLEMS")
        .map_or(TOGETHER, |count| count.parse().expect("a number"));
    let mut rng = StdRng::seed_from_u64(5);
    let groups = count.div_ceil(TOGETHER);
    let cases: Vec<_> =
        (0..groups).flat_map(|group| random_cases(&mut rng, group % 3 + 1)).collect();
    check(&cases);
}
