//! Random problems against the oracle, in every type.

use burn::tensor::DType;
use half::{bf16, f16};
use proptest::prelude::*;

use super::oracle::{Axis, Inputs, Problem, Results};
use super::run::{Setup, run};
use crate::suite::properties::{asked_cases, cases_on, check_cases};
use crate::support::check::{F32, close, close_to_unit, identical, magnitude};
use crate::support::devices;
use crate::support::run::round;

fn axis(longest: usize) -> impl Strategy<Value = Axis> {
    let lengths = (1..=longest, 1..=longest);
    let blocks = (1..=longest + 1, 1..=longest + 1);
    (lengths, blocks, any::<bool>()).prop_map(|((queries, keys), blocks, is_causal)| Axis {
        queries,
        keys,
        query_block: blocks.0,
        key_block: blocks.1,
        is_causal,
    })
}

fn problems() -> impl Strategy<Value = Problem> {
    let axes = prop_oneof![
        prop::collection::vec(axis(30), 1),
        prop::collection::vec(axis(8), 2),
        prop::collection::vec(axis(5), 3),
    ];
    let heads = (1..3usize, 1..4usize, any::<bool>());
    let dims = (prop_oneof![1..6usize, Just(8), Just(16), 15..18usize], 1..10usize);
    let scale = prop_oneof![Just(None), (-1.0..1.0).prop_map(Some)];
    (1..3usize, heads, dims, 0..6usize, scale, axes).prop_map(
        |(batch, (heads_kv, group, is_shared), (dim, dim_v), entries, scale, axes)| Problem {
            batch,
            heads: heads_kv * group,
            heads_kv,
            list_heads: if is_shared { heads_kv } else { heads_kv * group },
            dim,
            dim_v,
            entries,
            scale,
            axes,
        },
    )
}

/// Within f32's tolerance of what is expected, in units of at least 1: gradients of normal numbers may vanish.
pub fn agree(what: &str, got: &Results, want: &Results) {
    for ((name, got), (_, want)) in got.named().into_iter().zip(want.named()) {
        close_to_unit(&format!("{what} {name}"), got, want, F32, 1.0);
    }
}

/// `BURN_NATTEN_TEST_CASES` problems, or as many as tests of properties take.
#[test]
fn random_problems_agree_with_the_oracle() {
    for device in devices() {
        let cases = asked_cases().unwrap_or(cases_on(&device));
        check_cases(cases, (problems(), 0..u64::MAX / 2), |(problem, seed)| {
            let inputs = problem.inputs(seed);
            let want = problem.compute(&inputs);
            for strategy in device.strategies() {
                let got = run(&problem, &inputs, &Setup::new(&device.device, strategy));
                agree(&format!("{} {strategy:?} {problem:?}", device.name), &got, &want);
            }
            Ok(())
        });
    }
}

/// With heads that share keys and lists, short blocks, other lengths of queries than of keys, and a causal axis.
pub fn everything() -> Problem {
    let axis = |queries, keys, query_block, key_block, is_causal| Axis {
        queries,
        keys,
        query_block,
        key_block,
        is_causal,
    };
    Problem {
        batch: 2,
        heads: 4,
        heads_kv: 2,
        list_heads: 2,
        dim: 8,
        dim_v: 4,
        entries: 4,
        scale: None,
        axes: vec![axis(9, 11, 2, 3, true), axis(7, 5, 3, 2, false)],
    }
}

#[test]
fn f64_is_computed_in_f64() {
    let problem = everything();
    let inputs = problem.inputs(5);
    let want = problem.compute(&inputs);
    for device in devices().into_iter().filter(|device| device.supports(DType::F64)) {
        for strategy in device.f64_strategies() {
            let setup = Setup::new(&device.device, strategy).dtype(DType::F64);
            let got = run(&problem, &inputs, &setup);
            for ((name, got), (_, want)) in got.named().into_iter().zip(want.named()) {
                close_to_unit(
                    &format!("{} {strategy:?} {name}", device.name),
                    got,
                    want,
                    1e-13,
                    1.0,
                );
            }
        }
    }
}

/// Sums are held in f32: what comes out is a right answer, rounded once, but for the output that the gradients of
/// the scores are made with, which was rounded before.
#[test]
fn half_types_are_rounded_once() {
    let problem = everything();
    for (dtype, epsilon) in
        [(DType::F16, f16::EPSILON.to_f64()), (DType::BF16, bf16::EPSILON.to_f64())]
    {
        let inputs = problem.inputs(7);
        let rounded = |values: &[f64]| round(dtype, values);
        let inputs = Inputs {
            query: rounded(&inputs.query),
            key: rounded(&inputs.key),
            value: rounded(&inputs.value),
            grad_out: rounded(&inputs.grad_out),
            ..inputs
        };
        let want = problem.compute(&inputs);
        for device in devices().into_iter().filter(|device| device.supports(dtype)) {
            for strategy in device.half_block_strategies() {
                let setup = Setup::new(&device.device, strategy).dtype(dtype);
                let got = run(&problem, &inputs, &setup);
                let what = |name: &str| format!("{} {strategy:?} {dtype:?} {name}", device.name);
                close(&what("lse"), &got.lse, &want.lse, F32);
                for (name, got, want) in
                    [("out", &got.out, &want.out), ("dv", &got.grad_value, &want.grad_value)]
                {
                    let sums = F32 * magnitude(want);
                    for (index, (got, want)) in got.iter().zip(want).enumerate() {
                        let allowed = 0.5 * epsilon * want.abs() + sums;
                        let is_right = (got - want).abs() <= allowed;
                        assert!(is_right, "{} {index}: {got} for {want}", what(name));
                    }
                }
                for (name, got, want) in [
                    ("dq", &got.grad_query, &want.grad_query),
                    ("dk", &got.grad_key, &want.grad_key),
                ] {
                    close_to_unit(&what(name), got, want, epsilon, 1.0);
                }
            }
        }
    }
}

#[test]
fn results_repeat_bit_by_bit() {
    let problem = everything();
    let inputs = problem.inputs(3);
    for device in devices() {
        for strategy in device.strategies() {
            let setup = Setup::new(&device.device, strategy);
            let first = run(&problem, &inputs, &setup);
            for _ in 0..device.sampling(4).min(20) {
                let again = run(&problem, &inputs, &setup);
                for ((name, got), (_, want)) in again.named().into_iter().zip(first.named()) {
                    identical(&format!("{} {strategy:?} {name}", device.name), got, want);
                }
            }
        }
    }
}

/// No entry, no key, no sample, no query. Burn's own products of empty tensors overflow on CubeCL's devices in debug builds, so that
/// the loss cannot be made there of what has no query.
#[test]
fn what_is_empty_sees_nothing() {
    let axis = Axis { queries: 3, keys: 5, query_block: 2, key_block: 2, is_causal: true };
    let whole = Problem { axes: vec![axis], ..everything() };
    let empty = [
        Problem { entries: 0, ..whole.clone() },
        Problem { axes: vec![Axis { keys: 0, ..axis }], ..whole.clone() },
        Problem { batch: 0, ..whole.clone() },
        Problem { axes: vec![Axis { queries: 0, ..axis }], ..whole },
    ];
    for device in devices() {
        let count = if device.compiles_kernels() { 2 } else { empty.len() };
        for strategy in device.strategies() {
            for problem in &empty[..count] {
                let inputs = problem.inputs(1);
                let got = run(problem, &inputs, &Setup::new(&device.device, strategy));
                agree(
                    &format!("{} {strategy:?} {problem:?}", device.name),
                    &got,
                    &problem.compute(&inputs),
                );
            }
        }
    }
}
