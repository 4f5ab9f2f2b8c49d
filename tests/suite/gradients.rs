//! Gradients against central finite differences of the same operator, in f64 on Flex.
//!
//! Each input is moved along a few random directions `u`, and `(L(x + h u) - L(x - h u)) / 2h` must
//! be `<dL/dx, u>`. `L` weighs the elements of out, of lse, or of both at random.

use burn::tensor::{DType, Device, Tensor};
use burn_natten::{Strategy, merge_attentions};
use rstest::rstest;

use crate::support::check::{close, close_to_unit, identical};
use crate::support::devices;
use crate::support::problem::{Axis, Inputs, Problem};
use crate::support::run::{Loss, Setup, run, tensor, values};

const STEP: f64 = 1e-5;
/// Of the magnitude of the derivative or 1: the truncation error is `STEP^2`, and the differences
/// lose `1e-16 / STEP` to rounding.
const TOLERANCE: f64 = 1e-8;
const DIRECTIONS: u64 = 2;

pub(super) fn window(
    length: usize,
    kernel_size: usize,
    stride: usize,
    dilation: usize,
    causal: u8,
) -> Axis {
    Axis::Window { length, kernel_size, stride, dilation, is_causal: causal == 1 }
}

pub(super) fn problem(axes: &[Axis]) -> Problem {
    Problem {
        batch: 2,
        heads: 2,
        heads_kv: 2,
        dim: 3,
        dim_v: 3,
        additional: None,
        scale: None,
        bias: false,
        axes: axes.to_vec(),
    }
}

/// Group-query attention, a head_dim of its own for values, additional tokens and a scale.
pub(super) fn everything(axes: &[Axis]) -> Problem {
    Problem { heads: 4, dim_v: 2, additional: Some(2), scale: Some(0.9), ..problem(axes) }
}

fn dense(queries: usize, keys: usize, is_causal: bool) -> [Axis; 1] {
    [Axis::Dense { queries, keys, is_causal }]
}

fn loss_value(problem: &Problem, inputs: &Inputs, setup: &Setup, loss: Loss) -> f64 {
    let results = run(problem, inputs, setup).expect("a valid problem");
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let out = if loss == Loss::Lse { 0.0 } else { dot(&results.out, &inputs.grad_out) };
    let lse = if loss == Loss::Out { 0.0 } else { dot(&results.lse, &inputs.grad_lse) };
    out + lse
}

pub(super) fn differences_match(problem: &Problem, strategy: Strategy, loss: Loss) {
    let inputs = problem.inputs(11);
    let setup = Setup::new(&Device::flex()).dtype(DType::F64).strategy(strategy);
    let results = run(problem, &inputs, &setup.clone().loss(loss)).expect("a valid problem");
    let gradients = results.gradients.expect("ran backward");
    for (index, (name, gradient)) in gradients.named().into_iter().enumerate() {
        for direction in 0..DIRECTIONS {
            let mut along = problem.inputs(100 + direction);
            let along = along.all_mut()[index].clone();
            let at = |step: f64| {
                let mut moved = inputs.clone();
                for (value, direction) in moved.all_mut()[index].iter_mut().zip(&along) {
                    *value += step * direction;
                }
                loss_value(problem, &moved, &setup, loss)
            };
            let expected = (at(STEP) - at(-STEP)) / (2.0 * STEP);
            let got: f64 = gradient.iter().zip(&along).map(|(a, b)| a * b).sum();
            let what = format!("{name} through {loss:?}, {strategy:?}");
            close_to_unit(&what, &[got], &[expected], TOLERANCE, 1.0);
        }
    }
}

#[rstest]
#[case::na1d(problem(&[window(7, 3, 1, 1, 0)]))]
#[case::na1d_even(problem(&[window(7, 4, 1, 1, 0)]))]
#[case::na1d_stride(problem(&[window(8, 4, 3, 1, 0)]))]
#[case::na1d_dilation(problem(&[window(9, 2, 1, 3, 0)]))]
#[case::na1d_causal(problem(&[window(7, 3, 1, 2, 1)]))]
#[case::na1d_causal_stride(problem(&[window(9, 4, 3, 2, 1)]))]
#[case::na1d_blocked(problem(&[window(8, 4, 4, 1, 0)]))]
#[case::na1d_full(problem(&[window(5, 5, 1, 1, 0)]))]
#[case::na1d_scale(Problem { scale: Some(-0.6), ..problem(&[window(6, 3, 2, 1, 0)]) })]
#[case::na1d_zero_scale(Problem { scale: Some(0.0), ..problem(&[window(6, 3, 2, 1, 0)]) })]
#[case::na1d_gqa(Problem { heads: 6, ..problem(&[window(6, 3, 1, 1, 0)]) })]
#[case::na1d_value_dim(Problem { dim_v: 5, ..problem(&[window(6, 3, 1, 1, 0)]) })]
#[case::na1d_additional(Problem { additional: Some(3), ..problem(&[window(6, 3, 1, 1, 1)]) })]
#[case::na1d_everything(everything(&[window(9, 3, 2, 2, 1)]))]
#[case::na2d(problem(&[window(4, 3, 1, 1, 0), window(5, 2, 1, 2, 0)]))]
#[case::na2d_mixed(problem(&[window(6, 3, 2, 2, 1), window(4, 4, 3, 1, 0)]))]
#[case::na2d_everything(everything(&[window(4, 2, 2, 2, 0), window(5, 3, 2, 1, 1)]))]
#[case::na3d(problem(&[window(3, 2, 1, 1, 0), window(4, 2, 1, 2, 0), window(3, 3, 1, 1, 0)]))]
#[case::na3d_mixed(problem(&[window(4, 2, 2, 2, 1), window(3, 2, 1, 1, 0), window(3, 3, 2, 1, 1)]))]
#[case::na3d_everything(
    everything(&[window(2, 2, 1, 1, 1), window(4, 2, 2, 2, 0), window(3, 2, 1, 1, 0)])
)]
#[case::attention(problem(&dense(5, 5, false)))]
#[case::attention_causal(problem(&dense(6, 6, true)))]
#[case::cross_attention(everything(&dense(3, 6, false)))]
#[case::cross_attention_causal_more_keys(everything(&dense(3, 6, true)))]
#[case::cross_attention_causal_fewer_keys(everything(&dense(6, 3, true)))]
fn finite_differences(#[case] problem: Problem) {
    for strategy in [Strategy::Auto, Strategy::Reference] {
        for loss in [Loss::Out, Loss::Lse, Loss::Both] {
            differences_match(&problem, strategy, loss);
        }
    }
}

/// The problem that the following tests share, on a device with f32 only as well.
fn shared() -> Problem {
    everything(&[window(4, 2, 2, 2, 0), window(5, 3, 1, 1, 1)])
}

#[rstest]
#[case([true, false, false, false, false])]
#[case([false, true, false, false, false])]
#[case([false, false, true, false, false])]
#[case([false, false, false, true, false])]
#[case([true, false, true, false, false])]
#[case([true, false, false, true, false])]
#[case([false, true, true, true, false])]
fn untracked_inputs_do_not_change_the_other_gradients(#[case] tracked: [bool; 5]) {
    let problem = shared();
    let inputs = problem.inputs(12);
    let strategies = [Strategy::Auto, Strategy::Reference];
    let devices = devices();
    for (device, strategy) in devices.iter().flat_map(|device| strategies.map(|s| (device, s))) {
        let setup = Setup::new(&device.device).loss(Loss::Both).strategy(strategy);
        let all = run(&problem, &inputs, &setup).expect("valid").gradients.expect("backward");
        let setup = setup.tracked(tracked);
        let some = run(&problem, &inputs, &setup).expect("valid").gradients.expect("backward");
        for ((name, got), (_, want)) in some.named().into_iter().zip(all.named()) {
            if !got.is_empty() {
                identical(&format!("{} {name}", device.name), got, want);
            }
        }
    }
}

#[test]
fn nothing_tracked_leaves_nothing_on_the_tape() {
    for device in devices() {
        let device = device.device.autodiff();
        let x = tensor::<4>(&[0.5; 40], [1, 5, 2, 4], &device, DType::F32);
        let out = burn_natten::na1d(
            x.clone(),
            x.clone(),
            x,
            burn_natten::NeighborhoodOptions::<1>::new(3),
        );
        assert!(!out.is_require_grad());
    }
}

#[test]
fn gradient_checkpointing_changes_nothing() {
    let problem = shared();
    let inputs = problem.inputs(13);
    for device in devices() {
        let plain = Setup::new(&device.device).loss(Loss::Both);
        let device_with = device.device.clone().autodiff().gradient_checkpointing();
        let with = Setup::new(&device_with).loss(Loss::Both);
        let [plain, with] =
            [plain, with].map(|setup| run(&problem, &inputs, &setup).expect("valid"));
        identical("out", &with.out, &plain.out);
        let (plain, with) = (plain.gradients.expect("backward"), with.gradients.expect("backward"));
        for ((name, got), (_, want)) in with.named().into_iter().zip(plain.named()) {
            identical(&format!("{} {name}", device.name), got, want);
        }
    }
}

#[test]
fn losses_add_up() {
    let problem = shared();
    let inputs = problem.inputs(14);
    for device in devices() {
        let of = |loss| {
            let setup = Setup::new(&device.device).loss(loss);
            run(&problem, &inputs, &setup).expect("valid").gradients.expect("backward")
        };
        let (out, lse, both) = (of(Loss::Out), of(Loss::Lse), of(Loss::Both));
        assert!(lse.value.iter().chain(&lse.more_values).all(|gradient| *gradient == 0.0));
        for ((name, both), (out, lse)) in
            both.named().into_iter().zip(out.named().into_iter().zip(lse.named()))
        {
            let sum: Vec<f64> = out.1.iter().zip(lse.1).map(|(a, b)| a + b).collect();
            close(&format!("{} {name}", device.name), both, &sum, 1e-5);
        }
    }
}

/// A tensor that is used twice collects both gradients, and two calls share a tape.
#[test]
fn one_tensor_as_query_key_and_value() {
    let problem = Problem { heads: 2, ..problem(&[window(6, 3, 1, 1, 0)]) };
    let mut inputs = problem.inputs(15);
    inputs.key = inputs.query.clone();
    inputs.value = inputs.query.clone();
    let (out, _) = problem.forward(&inputs);
    let parts = problem.backward(&Inputs { grad_lse: vec![0.0; 24], ..inputs.clone() }, &out);
    let expected: Vec<f64> =
        (0..parts.query.len()).map(|i| parts.query[i] + parts.key[i] + parts.value[i]).collect();
    for device in devices() {
        let device = device.device.autodiff();
        let x = tensor::<4>(&inputs.query, [2, 6, 2, 3], &device, DType::F32).require_grad();
        let weight = tensor::<4>(&inputs.grad_out, [2, 6, 2, 3], &device, DType::F32);
        let options = burn_natten::NeighborhoodOptions::<1>::new(3);
        let out = burn_natten::na1d(x.clone(), x.clone(), x.clone(), options);
        let gradients = (out * weight).sum().backward();
        close("dx", &values(x.grad(&gradients).expect("tracked")), &expected, 1e-5);
    }
}

/// Merged halves, as functions of their outputs and logsumexps, in f64.
#[rstest]
#[case(1)]
#[case(2)]
#[case(4)]
fn finite_differences_of_a_merge(#[case] parts: usize) {
    let device = Device::flex().autodiff();
    let (rows, dim) = (2 * 3 * 2, 4);
    let random = |count: usize, seed: u64| {
        let size =
            Problem { batch: 1, heads: 1, heads_kv: 1, dim: 1, ..problem(&dense(count, 1, false)) };
        size.inputs(seed).query
    };
    let weights = (random(rows * dim, 1), random(rows, 2));
    let outs: Vec<Vec<f64>> = (0..parts).map(|p| random(rows * dim, 10 + p as u64)).collect();
    let lses: Vec<Vec<f64>> = (0..parts).map(|p| random(rows, 20 + p as u64)).collect();
    let merge = |outs: &[Vec<f64>], lses: &[Vec<f64>], (w_out, w_lse): (f64, f64)| {
        let outs: Vec<Tensor<4>> = outs
            .iter()
            .map(|x| tensor(x, [2, 3, 2, dim], &device, DType::F64).require_grad())
            .collect();
        let lses: Vec<Tensor<3>> =
            lses.iter().map(|x| tensor(x, [2, 3, 2], &device, DType::F64).require_grad()).collect();
        let (out, lse) = merge_attentions(outs.clone(), lses.clone());
        let out = out * tensor(&weights.0, [2, 3, 2, dim], &device, DType::F64);
        let lse = lse * tensor(&weights.1, [2, 3, 2], &device, DType::F64);
        (out.sum() * w_out + lse.sum() * w_lse, outs, lses)
    };
    for of in [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0)] {
        let (loss, out_tensors, lse_tensors) = merge(&outs, &lses, of);
        let gradients = loss.backward();
        for part in 0..parts {
            let of_out = out_tensors[part].grad(&gradients).map(values);
            let of_lse = lse_tensors[part].grad(&gradients).map(values);
            let of_out = of_out.unwrap_or(vec![0.0; rows * dim]);
            let of_lse = of_lse.unwrap_or(vec![0.0; rows]);
            let (along_out, along_lse) = (random(rows * dim, 30), random(rows, 31));
            let at = |step: f64| {
                let (mut outs, mut lses) = (outs.clone(), lses.clone());
                outs[part].iter_mut().zip(&along_out).for_each(|(x, u)| *x += step * u);
                lses[part].iter_mut().zip(&along_lse).for_each(|(x, u)| *x += step * u);
                values(merge(&outs, &lses, of).0)[0]
            };
            let expected = (at(STEP) - at(-STEP)) / (2.0 * STEP);
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            let got = dot(&of_out, &along_out) + dot(&of_lse, &along_lse);
            close_to_unit(&format!("part {part}"), &[got], &[expected], TOLERANCE, 1.0);
        }
    }
}
