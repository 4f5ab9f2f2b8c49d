//! Strips against the passes without them, over random problems.

use std::borrow::Cow;

use burn_natten_kernels::Axis;
use proptest::prelude::*;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::super::Grids;
use super::super::backward::{KeyPass, QueryPass};
use super::super::forward::Forward;
use super::super::strips::tests::axis;
use super::*;

fn problem() -> impl Strategy<Value = Problem> {
    let axes = prop_oneof![
        axis().prop_map(|x| vec![x]),
        (axis(), axis()).prop_map(|(y, x)| vec![y, x]),
        (axis(), axis()).prop_map(|(z, x)| vec![z, Axis::neighborhood(4, 3), x]),
    ];
    let dims = [1usize, 3, 8, 20, 32];
    let sizes = (1..3usize, 1..3usize, 1..4usize);
    (axes, sizes, prop::sample::select(dims.to_vec()), prop::sample::select(dims.to_vec()))
        .prop_filter("a small problem", |(axes, ..)| {
            axes.iter().map(|axis| axis.queries.max(axis.keys)).product::<usize>() < 1000
        })
        .prop_map(|(axes, (batch, heads_kv, group), dim, dim_v)| {
            Problem::new(axes, heads_kv * group, dim)
                .with_heads_kv(heads_kv)
                .with_head_dim_v(dim_v)
                .with_batch(batch)
        })
}

/// `dq`, `dk` and `dv` from strips and from the two passes. Outputs must be the same, bit by bit.
fn both_ways<A: Real + std::fmt::Debug>(
    problem: &Problem,
    height: usize,
    seed: u64,
) -> [[Vec<A>; 3]; 2] {
    let grids = Grids::new(problem);
    let batch = problem.batch;
    let strips = || Strips::of_height(&problem.axes, &grids.query, height);
    let mut random = StdRng::seed_from_u64(seed);
    let mut vectors = |tokens: usize, dim: usize| {
        let values = (0..batch * tokens * dim).map(|_| A::from_f64(random.random_range(-2.0..2.0)));
        values.collect::<Vec<A>>()
    };
    let (queries, keys) = (problem.queries() * problem.heads, problem.keys() * problem.heads_kv);
    let (dim, dim_v) = (problem.head_dim, problem.head_dim_v);
    let inputs = [vectors(queries, dim), vectors(keys, dim), vectors(keys, dim_v)];
    let (grad_out, delta) = (vectors(queries, dim_v), vectors(queries, 1));
    let of_queries =
        |rows, dim| Operand::new(Cow::<[A]>::Borrowed(rows), &grids.query, problem.heads, dim);
    let of_keys =
        |rows, dim| Operand::new(Cow::<[A]>::Borrowed(rows), &grids.key, problem.heads_kv, dim);
    let tokens = || Tokens { key: of_keys(&inputs[1], dim), value: of_keys(&inputs[2], dim_v) };

    let forward = |strips: Option<Strips>| {
        let space = match strips.as_ref().is_some_and(Strips::have_lines) {
            true => tokens(),
            false => tokens().for_forward(batch),
        };
        let query = of_queries(&inputs[0], dim);
        let pass = Forward { problem, query, space, additional: None, bias: None, strips };
        let mut out = vec![A::nan(); grad_out.len()];
        let mut lse = vec![A::nan(); delta.len()];
        pass.run(&mut out, &mut lse);
        (out, lse)
    };
    let (out, lse) = forward(None);
    assert_eq!((&out, &lse), (&forward(Some(strips())).0, &forward(Some(strips())).1));

    let [query, grad_out, lse, delta] =
        [(&inputs[0], dim), (&grad_out, dim_v), (&lse, 1), (&delta, 1)]
            .map(|(rows, dim)| of_queries(rows, dim).with_panel(batch).searched());
    let queries = || Queries { query: &query, grad_out: &grad_out, lse: &lse, delta: &delta };
    let zeros = |like: usize| vec![A::zero(); inputs[like].len()];
    let mut passes = [zeros(0), zeros(1), zeros(2)];
    let space = tokens().for_query_pass(batch);
    QueryPass { problem, queries: queries(), space: &space, additional: None, bias: None }
        .run(&mut passes[0]);
    let [_, dk, dv] = &mut passes;
    KeyPass { problem, queries: queries(), tokens: &space, is_additional: false, bias: None }
        .run(dk, dv);

    let mut joint = [zeros(0), zeros(1), zeros(2)];
    let strips = strips();
    let space = match strips.have_lines() {
        true => tokens(),
        false => space,
    };
    let pass = JointPass { problem, queries: queries(), space: &space, bias: None, strips };
    let [dq, dk, dv] = &mut joint;
    pass.run(dq, dk, dv);
    [passes, joint]
}

fn compare<A: Real + std::fmt::Debug>(problem: &Problem, height: usize, seed: u64, within: f64) {
    let [passes, joint] = both_ways::<A>(problem, height, seed);
    for (name, (want, got)) in ["dq", "dk", "dv"].iter().zip(passes.iter().zip(&joint)) {
        let magnitude = want.iter().map(|want| (*want).into().abs()).fold(1.0, f64::max);
        for (i, (want, got)) in want.iter().zip(got).enumerate() {
            let error = ((*want).into() - (*got).into()).abs();
            assert!(error <= within * magnitude, "{name}[{i}]: {got:?}, not {want:?}: {problem:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn strips_give_what_the_two_passes_give(
        problem in problem(),
        height in 1..5usize,
        seed in any::<u64>(),
    ) {
        compare::<f64>(&problem, height, seed, 1e-13);
        compare::<f32>(&problem, height, seed, 1e-5);
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let problem = Problem::new([Axis::neighborhood(20, 5), Axis::neighborhood(19, 4)], 4, 8);
    let on = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
        pool.install(|| both_ways::<f32>(&problem, 2, 5))
    };
    let one = on(1);
    for threads in [2, 5] {
        assert_eq!(on(threads), one, "{threads} threads");
    }
}

#[test]
fn small_problems_run_in_strips_and_large_ones_with_windows() {
    let strips = |problem: &Problem| {
        Strips::new(problem, &Grids::new(problem).query).map(|strips| strips.have_lines())
    };
    let side = |length| Axis::neighborhood(length, 7);
    assert_eq!(strips(&Problem::new([side(20)], 2, 8)), Some(false));
    assert_eq!(strips(&Problem::new([Axis::dense(9, 12, true)], 4, 4)), Some(false));
    assert_eq!(strips(&Problem::new([side(9), side(9)], 2, 8)), Some(true));
    assert_eq!(strips(&Problem::new([side(128), side(128)], 4, 32)), Some(true));
    // All queries see all keys.
    assert_eq!(strips(&Problem::new([Axis::dense(2048, 2048, false)], 32, 64)), None);
}
