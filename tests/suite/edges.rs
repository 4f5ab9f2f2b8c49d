//! Valid problems at the edge: nothing to attend to, nothing to compute, a scale of zero.

use burn::tensor::DType;
use burn_natten::{AttentionOptions, Strategy, merge_attentions, try_attention};

use crate::support::check::{self, close};
use crate::support::devices;
use crate::support::problem::{Axis, Inputs, Problem};
use crate::support::run::{Loss, Results, Setup, run, tensor, values};

const WINDOW: Axis =
    Axis::Window { length: 7, kernel_size: 3, stride: 1, dilation: 2, is_causal: false };

fn problem(axes: &[Axis]) -> Problem {
    Problem {
        batch: 2,
        heads: 4,
        heads_kv: 2,
        dim: 5,
        dim_v: 3,
        additional: None,
        scale: None,
        bias: false,
        axes: axes.to_vec(),
    }
}

fn dense(queries: usize, keys: usize, is_causal: bool) -> Problem {
    problem(&[Axis::Dense { queries, keys, is_causal }])
}

/// Runs forward and backward on every device with every strategy.
fn on_every_device(problem: &Problem, inputs: &Inputs, check: impl Fn(&str, Results)) {
    for device in devices() {
        for strategy in [Strategy::Auto, Strategy::Reference] {
            let setup = Setup::new(&device.device).strategy(strategy).loss(Loss::Both);
            let results = run(problem, inputs, &setup).expect("a valid problem");
            check(&format!("{} {strategy:?}", device.name), results);
        }
    }
}

fn matches_the_oracle(problem: &Problem, seed: u64) {
    let inputs = problem.inputs(seed);
    let (out, lse) = problem.forward(&inputs);
    let expected = problem.backward(&inputs, &out);
    on_every_device(problem, &inputs, |name, results| {
        close(&format!("{name} out"), &results.out, &out, check::F32);
        close(&format!("{name} lse"), &results.lse, &lse, check::F32);
        let gradients = results.gradients.expect("ran backward");
        for ((what, got), (_, want)) in gradients.named().into_iter().zip(expected.named()) {
            close(&format!("{name} {what}"), got, want, check::F32);
        }
    });
}

#[test]
fn a_scale_of_zero_weighs_all_keys_alike() {
    let problem = Problem { scale: Some(0.0), ..problem(&[WINDOW]) };
    matches_the_oracle(&problem, 1);
    let inputs = problem.inputs(1);
    on_every_device(&problem, &inputs, |name, results| {
        assert!(results.lse.iter().all(|lse| (lse - 3f64.ln()).abs() < 1e-6), "{name}");
        let gradients = results.gradients.expect("ran backward");
        let zero = |values: &[f64]| values.iter().all(|value| *value == 0.0);
        assert!(zero(&gradients.query) && zero(&gradients.key), "{name}");
    });
}

#[test]
fn a_negative_scale_prefers_the_farthest() {
    matches_the_oracle(&Problem { scale: Some(-0.7), ..problem(&[WINDOW]) }, 2);
}

#[test]
fn an_empty_batch_gives_empty_results() {
    let extra = Problem { additional: Some(3), ..problem(&[WINDOW]) };
    for problem in [problem(&[WINDOW]), problem(&[WINDOW, WINDOW]), extra, dense(4, 5, true)] {
        let problem = Problem { batch: 0, ..problem };
        on_every_device(&problem, &problem.inputs(3), |name, results| {
            assert!(results.out.is_empty() && results.lse.is_empty(), "{name}");
            let gradients = results.gradients.expect("ran backward");
            assert!(gradients.query.is_empty() && gradients.value.is_empty(), "{name}");
        });
    }
}

#[test]
fn no_queries_leave_the_keys_without_gradient() {
    let problem = dense(0, 5, false);
    on_every_device(&problem, &problem.inputs(4), |name, results| {
        assert!(results.out.is_empty() && results.lse.is_empty(), "{name}");
        let gradients = results.gradients.expect("ran backward");
        assert_eq!(gradients.key, vec![0.0; 2 * 5 * 2 * 5], "{name}");
        assert_eq!(gradients.value, vec![0.0; 2 * 5 * 2 * 3], "{name}");
    });
}

#[test]
fn without_keys_the_output_is_zero_and_its_logsumexp_minus_infinity() {
    for is_causal in [false, true] {
        let problem = dense(6, 0, is_causal);
        on_every_device(&problem, &problem.inputs(5), |name, results| {
            assert_eq!(results.out, vec![0.0; 2 * 6 * 4 * 3], "{name}");
            assert_eq!(results.lse, vec![f64::NEG_INFINITY; 2 * 6 * 4], "{name}");
            let gradients = results.gradients.expect("ran backward");
            assert_eq!(gradients.query, vec![0.0; 2 * 6 * 4 * 5], "{name}");
        });
    }
}

#[test]
fn additional_tokens_stand_in_for_missing_keys() {
    for is_causal in [false, true] {
        let problem = Problem { additional: Some(4), ..dense(6, 0, is_causal) };
        matches_the_oracle(&problem, 6);
    }
}

#[test]
fn no_additional_tokens_are_like_none_given() {
    for problem in [problem(&[WINDOW]), dense(4, 6, false)] {
        let with = Problem { additional: Some(0), ..problem.clone() };
        matches_the_oracle(&with, 7);
        let inputs = with.inputs(7);
        for device in devices() {
            let setup = Setup::new(&device.device);
            let [a, b] = [&with, &problem].map(|problem| run(problem, &inputs, &setup));
            let (a, b) = (a.expect("valid"), b.expect("valid"));
            assert_eq!((a.out, a.lse), (b.out, b.lse), "{}", device.name);
        }
    }
    let nothing = Problem { additional: Some(0), ..dense(3, 0, false) };
    on_every_device(&nothing, &nothing.inputs(8), |name, results| {
        assert!(results.lse.iter().all(|lse| *lse == f64::NEG_INFINITY), "{name}");
    });
}

#[test]
fn causal_cross_attention_aligns_the_first_tokens() {
    for (queries, keys) in [(1, 1), (1, 6), (6, 1), (3, 7), (7, 3)] {
        let problem = Problem { additional: Some(1), ..dense(queries, keys, true) };
        matches_the_oracle(&problem, (queries * 10 + keys) as u64);
    }
}

#[test]
fn a_part_without_keys_takes_no_part_in_a_merge() {
    for device in devices() {
        let shape = [1, 5, 2, 4];
        let problem = Problem { batch: 1, heads: 2, dim: 4, dim_v: 4, ..dense(5, 5, false) };
        let inputs = problem.inputs(9);
        let make = |values: &[f64]| tensor(values, shape, &device.device, DType::F32);
        let [q, k, v] = [&inputs.query, &inputs.key, &inputs.value].map(|x| make(x));
        let part = |keys: std::ops::Range<usize>| {
            let [k, v] = [&k, &v].map(|x| x.clone().slice([0..1, keys.clone()]));
            try_attention(q.clone(), k, v, AttentionOptions::new()).expect("valid")
        };
        let (none, all) = (part(0..0), part(0..5));
        let (out, lse) = merge_attentions(
            vec![none.out.clone(), all.out.clone()],
            vec![none.logsumexp.clone(), all.logsumexp.clone()],
        );
        assert_eq!(values(out), values(all.out), "{}", device.name);
        assert_eq!(values(lse), values(all.logsumexp), "{}", device.name);
        let (out, lse) = merge_attentions(
            vec![none.out.clone(), none.out],
            vec![none.logsumexp.clone(), none.logsumexp],
        );
        assert!(values(out).iter().all(|x| *x == 0.0), "{}", device.name);
        assert!(values(lse).iter().all(|x| *x == f64::NEG_INFINITY), "{}", device.name);
    }
}
