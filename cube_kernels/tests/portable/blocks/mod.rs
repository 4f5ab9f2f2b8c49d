//! Block-sparse attention.

mod device;
mod edges;
mod isolation;

use burn_natten_kernels::{Axis, BlockSparse, Problem};
use cubecl::ir::FloatKind;
use rand::{SeedableRng, rngs::StdRng};
use test_support::blocks::{LAYOUTS, Layout, compute, random_lists, random_problem};
use test_support::format::{BF16, F16, F32, Format};
use test_support::portable::client;
use test_support::{Data, error};

use device::run;

/// Fails where results are not as near to the right ones as storage allows.
fn check(name: &str, sparse: BlockSparse, format: Format, layout: Layout, seed: u64) {
    let client = client();
    if !client.properties().supports_type(format.elem()) {
        println!("{name}: no {:?} on this device", format.kind);
        return;
    }
    let lists = random_lists(&sparse, &mut StdRng::seed_from_u64(seed));
    let data = Data::random(&sparse.problem, seed, format.round);
    let exact = compute(&sparse, &lists, &data, |x| x);
    let stored = compute(&sparse, &lists, &data, format.round);
    let actual = run(&client, format, &sparse, &lists, &data, layout);
    for (((of, actual), (_, exact)), (_, stored)) in
        actual.named().into_iter().zip(exact.named()).zip(stored.named())
    {
        let mut limit = 1e-5;
        if format.kind != FloatKind::F32 && of != "lse" {
            // Twice what the storage type costs an implementation that is exact otherwise.
            let rounded: Vec<f64> = stored.iter().map(|x| (format.round)(*x)).collect();
            limit += 2.0 * error(&rounded, exact);
        }
        let error = error(actual, exact);
        println!("{name} {:?} {layout:?} {of}: {error:.1e} of {limit:.1e}", format.kind);
        let case = format!("{sparse:?} {layout:?}");
        assert!(error < limit, "{name}, {of}: error {error:e}, limit {limit:e}, {case}");
    }
}

/// Two samples.
fn problem(axes: &[Axis], heads: usize, dim: usize) -> Problem {
    Problem::new(axes, heads, dim).with_batch(2)
}

fn cases() -> Vec<(&'static str, BlockSparse)> {
    let line = |queries, keys, is_causal| Axis::dense(queries, keys, is_causal);
    let mut seventh = BlockSparse::new(
        problem(&[line(5, 6, true), line(6, 5, false).with_origin(0), line(7, 9, true)], 2, 8),
        [2, 3, 2],
        [3, 2, 4],
    )
    .with_lists(2, 4);
    seventh.steps = [2, 1, 3];
    vec![
        ("1d", BlockSparse::new(problem(&[line(50, 50, false)], 2, 8), [16], [8]).with_lists(2, 3)),
        (
            "1d causal, one query a block, groups of heads that share lists",
            BlockSparse::new(problem(&[line(33, 33, true)], 6, 8).with_heads_kv(2), [1], [8])
                .with_lists(2, 4),
        ),
        (
            "1d causal, groups of heads with lists of their own, short values",
            BlockSparse::new(
                problem(&[line(20, 31, true)], 6, 16).with_heads_kv(2).with_head_dim_v(12),
                [4],
                [5],
            )
            .with_lists(6, 3),
        ),
        (
            "1d, keys with a step, queries that see nothing",
            BlockSparse::new(
                problem(&[line(40, 9, true).with_origin(-7)], 4, 8).with_heads_kv(1),
                [8],
                [4],
            )
            .with_step(4)
            .with_lists(1, 3),
        ),
        (
            "1d, one list of everything",
            BlockSparse::new(problem(&[line(9, 14, false)], 2, 8), [9], [14]).with_lists(2, 1),
        ),
        (
            "2d mixed, odd dims",
            BlockSparse::new(
                problem(&[line(7, 9, true), line(10, 11, false)], 3, 5)
                    .with_heads_kv(1)
                    .with_head_dim_v(7),
                [3, 4],
                [2, 5],
            )
            .with_lists(3, 5),
        ),
        (
            "2d, wide blocks",
            BlockSparse::new(
                problem(&[line(6, 6, false), line(8, 8, true)], 2, 8),
                [100, 3],
                [2, 100],
            )
            .with_lists(2, 2),
        ),
        ("3d, steps", seventh),
        (
            "slices",
            BlockSparse::new(problem(&[line(12, 10, true)], 2, 136).with_head_dim_v(140), [4], [4])
                .with_lists(2, 2),
        ),
    ]
}

#[test]
fn f32_is_within_1e_5() {
    for (seed, (name, sparse)) in cases().into_iter().enumerate() {
        for layout in LAYOUTS {
            check(name, sparse, F32, layout, 700 + seed as u64);
        }
    }
}

#[test]
fn half_types_are_as_good_as_their_storage() {
    // Slices of long rows are those of f32.
    for (seed, (name, sparse)) in cases().into_iter().take(8).enumerate() {
        let format = if seed % 2 == 0 { F16 } else { BF16 };
        check(name, sparse, format, LAYOUTS[seed % 3], 800 + seed as u64);
    }
}

/// `BURN_NATTEN_TEST_PROBLEMS` of them, and a few by default.
#[test]
fn random_problems() {
    let count = std::env::var("BURN_NATTEN_TEST_PROBLEMS");
    let count = count.map_or(8, |count| count.parse().expect("a number"));
    let mut rng = StdRng::seed_from_u64(16);
    for seed in 0..count {
        let sparse = random_problem(&mut rng);
        let format = [F32, F16, F32, BF16][seed % 4];
        check(&format!("random {seed}"), sparse, format, LAYOUTS[seed % 3], 900 + seed as u64);
    }
}
