//! Random problems of each rank.

use burn_natten_kernels::{Axis, Problem};
use rand::{Rng, SeedableRng, rngs::StdRng};
use test_support::compare::{device, for_each_case};
use test_support::problems::seed;

use crate::attend::check;
use crate::ways::{Element, elements};

/// Lengths of vectors: those that models have, and odd ones.
const DIMS: [(usize, usize); 14] = [
    (64, 64),
    (128, 128),
    (32, 32),
    (16, 16),
    (40, 72),
    (96, 96),
    (256, 256),
    (72, 40),
    (128, 64),
    (80, 80),
    (7, 5),
    (33, 2),
    (12, 20),
    (48, 200),
];

fn random_problem(rng: &mut StdRng, rank: usize) -> Problem {
    let (head_dim, head_dim_v) = DIMS[rng.random_range(0..DIMS.len())];
    let mut axes = [Axis::UNIT; 3];
    let longest = [700, 40, 14][rank - 1];
    let is_dense = rank == 1 && rng.random_bool(0.3);
    for axis in &mut axes[3 - rank..] {
        let length = rng.random_range(4..=longest);
        if is_dense {
            let keys = rng.random_range(1..=longest);
            *axis = Axis::dense(length, keys, rng.random());
            if rng.random() {
                *axis = axis.with_origin(0);
            }
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
    let heads_kv = rng.random_range(1..=2);
    let batch = rng.random_range(1..=2);
    let heads = heads_kv * rng.random_range(1..=2);
    let additional = if rng.random_bool(0.3) { rng.random_range(1..=200) } else { 0 };
    Problem::new(axes, heads, head_dim)
        .with_batch(batch)
        .with_heads_kv(heads_kv)
        .with_head_dim_v(head_dim_v)
        .with_additional(additional)
}

/// What `case` makes of as many random problems of a rank as are asked for.
pub fn cases<C>(rank: usize, case: impl Fn(&mut StdRng, Problem, Element) -> C) -> Vec<C> {
    let count = std::env::var("BURN_NATTEN_TEST_PROBLEMS")
        .map_or(200, |count| count.parse().expect("a number"));
    let mut rng = StdRng::seed_from_u64((10 * seed() + rank) as u64);
    let elements = elements(&device().expect("a device"));
    (0..count)
        .map(|_| {
            let problem = random_problem(&mut rng, rank);
            let element = elements[rng.random_range(0..elements.len())];
            case(&mut rng, problem, element)
        })
        .collect()
}

fn random(rank: usize) {
    let Some(client) = device() else { return };
    let cases = cases(rank, |rng, problem, element| {
        // Half by the blueprints that would run, half by any that could.
        let ways = if rng.random() { 2 } else { 1000 };
        let pick = rng.random_range(0..ways);
        (problem, element, pick)
    });
    for_each_case(&cases, |(problem, element, pick), seed| {
        check(&client, *element, problem, *pick, seed)
    });
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
