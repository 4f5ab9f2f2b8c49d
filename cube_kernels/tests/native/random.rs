//! Random problems of each rank.

use burn_natten_kernels::native::sm90::{Element, candidates};
use burn_natten_kernels::{Axis, Problem};
use rand::{Rng, SeedableRng, rngs::StdRng};
use test_support::compare::device;

use crate::run::{check_all, planned};

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

fn random_problem(rng: &mut StdRng, rank: usize) -> (Problem, Element) {
    let dims =
        [(64, 64), (128, 128), (32, 32), (40, 72), (96, 96), (256, 256), (72, 40), (128, 64)];
    let (head_dim, head_dim_v) = dims[rng.random_range(0..dims.len())];
    let mut axes = [Axis::UNIT; 3];
    let longest = [700, 40, 14][rank - 1];
    let is_dense = rank == 1 && rng.random_bool(0.3);
    for axis in &mut axes[3 - rank..] {
        let length = rng.random_range(4..=longest);
        if is_dense {
            let keys = rng.random_range(1..=longest);
            *axis = Axis::dense(length, keys, rng.random());
            continue;
        }
        let dilation = if rng.random_bool(0.5) { 1 } else { rng.random_range(1..=length / 2) };
        let kernel_size = rng.random_range(2..=length / dilation);
        let stride = if rng.random_bool(0.5) { 1 } else { rng.random_range(1..=kernel_size) };
        let is_causal = rng.random_bool(0.3);
        *axis = Axis::neighborhood(length, kernel_size)
            .with_stride(stride)
            .with_dilation(dilation)
            .with_causal(is_causal);
    }
    if rng.random_bool(0.3) {
        let index = rng.random_range(3 - rank..3);
        axes[index] = elsewhere(rng, axes[index]);
    }
    // Samples of such axes have to be one.
    let most = if axes[0].queries == axes[0].keys { 2 } else { 1 };
    let heads_kv = rng.random_range(1..=2);
    let batch = rng.random_range(1..=most);
    let heads = heads_kv * rng.random_range(1..=2);
    let additional = if rng.random_bool(0.3) { rng.random_range(1..=200) } else { 0 };
    let problem = Problem::new(axes, heads, head_dim)
        .with_batch(batch)
        .with_heads_kv(heads_kv)
        .with_head_dim_v(head_dim_v)
        .with_additional(additional);
    (problem, if rng.random() { Element::F16 } else { Element::Bf16 })
}

/// What `case` makes of as many random problems of a rank as are asked for.
pub fn cases<C>(
    seed: u64,
    rank: usize,
    case: impl Fn(&mut StdRng, Problem, Element) -> C,
) -> Vec<C> {
    let count = std::env::var("BURN_NATTEN_TEST_PROBLEMS")
        .map_or(500, |count| count.parse().expect("a number"));
    let share = 1000 * test_support::problems::seed() as u64;
    let mut rng = StdRng::seed_from_u64(share + seed + rank as u64);
    (0..count)
        .map(|_| {
            let (problem, element) = random_problem(&mut rng, rank);
            case(&mut rng, problem, element)
        })
        .collect()
}

fn random(rank: usize) {
    let Some(client) = device() else { return };
    let cases = cases(0, rank, |rng, problem, element| {
        // Half with the schedule that would run, half with any that could.
        let all = candidates(&problem, element);
        let any = all[rng.random_range(0..all.len())];
        let chosen = planned(&problem, element);
        (problem, if rng.random() { chosen } else { any })
    });
    check_all(&client, &cases);
}

#[test]
fn one_axis() {
    random(1);
}

#[test]
fn two_axes() {
    random(2);
}

#[test]
fn three_axes() {
    random(3);
}
