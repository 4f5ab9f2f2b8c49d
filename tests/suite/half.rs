//! f16 and bf16: the error is at most twice that of rounding a right answer.
//!
//! Inputs are rounded to the type first and the oracle computes with exactly those. The baseline is
//! the error of the oracle's results rounded to the type, where the backward pass starts from the
//! rounded output, as any implementation does. The error of the operator must be at most twice the
//! baseline's, both in the root mean square and at the worst element, for which the baseline is
//! half a unit in the last place of the largest element if that is more. The logsumexp is f32, so
//! there the bound is that of f32.

use burn::tensor::DType;
use burn_natten::Strategy;
use half::{bf16, f16};
use rstest::rstest;

use crate::support::check::{self, close, errors, magnitude};
use crate::support::problem::{Axis, Problem};
use crate::support::run::{Loss, Setup, round, rounded, run};
use crate::support::{TestDevice, devices};

/// Half a unit in the last place of 1, and the least positive value.
fn precision(dtype: DType) -> (f64, f64) {
    match dtype {
        DType::F16 => (0.5 * f16::EPSILON.to_f64(), f16::MIN_POSITIVE_SUBNORMAL.to_f64()),
        _ => (0.5 * bf16::EPSILON.to_f64(), bf16::MIN_POSITIVE_SUBNORMAL.to_f64()),
    }
}

/// `got` is at most twice as far from `exact` as `baseline`.
fn within_twice(what: &str, dtype: DType, got: &[f64], exact: &[f64], baseline: &[f64]) {
    let (half_ulp, least) = precision(dtype);
    let (square, max) = errors(got, exact);
    let (base_square, base_max) = errors(baseline, exact);
    let base_max = base_max.max(half_ulp * magnitude(exact)).max(least);
    let base_square = base_square.max(least);
    assert!(
        square <= 2.0 * base_square && max <= 2.0 * base_max,
        "{what}: rms {square:.2e} of {base_square:.2e}, worst {max:.2e} of {base_max:.2e}"
    );
}

fn window(length: usize, kernel_size: usize, stride: usize, dilation: usize, causal: u8) -> Axis {
    Axis::Window { length, kernel_size, stride, dilation, is_causal: causal == 1 }
}

fn problem(axes: &[Axis]) -> Problem {
    Problem {
        batch: 1,
        heads: 4,
        heads_kv: 2,
        dim: 16,
        dim_v: 8,
        additional: None,
        scale: None,
        bias: false,
        axes: axes.to_vec(),
    }
}

/// Both passes of a problem on every device that has the type, by these of its strategies.
fn as_good_as_rounding(
    problem: &Problem,
    dtype: DType,
    strategies: fn(&TestDevice) -> Vec<Strategy>,
) {
    let all = rounded(problem.inputs(41), dtype);
    let (out, lse) = problem.forward(&all);
    let stored = round(dtype, &out);
    for loss in [Loss::Out, Loss::Lse, Loss::Both] {
        let mut inputs = all.clone();
        match loss {
            Loss::Out => inputs.grad_lse.fill(0.0),
            Loss::Lse => inputs.grad_out.fill(0.0),
            Loss::Both | Loss::None => {}
        }
        let exact = problem.backward(&inputs, &out);
        let baseline = problem.backward(&inputs, &stored);
        for device in devices().iter().filter(|device| device.supports(dtype)) {
            for strategy in strategies(device) {
                let setup = Setup::new(&device.device).strategy(strategy).dtype(dtype).loss(loss);
                let results = run(problem, &inputs, &setup).expect("a valid problem");
                let what = |name: &str| format!("{} {strategy:?} {loss:?} {name}", device.name);
                within_twice(&what("out"), dtype, &results.out, &out, &stored);
                close(&what("lse"), &results.lse, &lse, check::F32);
                let gradients = results.gradients.expect("ran backward");
                for ((name, got), ((_, exact), (_, baseline))) in gradients
                    .named()
                    .into_iter()
                    .zip(exact.named().into_iter().zip(baseline.named()))
                {
                    within_twice(&what(name), dtype, got, exact, &round(dtype, baseline));
                }
            }
        }
    }
}

#[rstest]
fn half_types_are_as_good_as_rounding(
    #[values(DType::F16, DType::BF16)] dtype: DType,
    #[values(
        problem(&[window(41, 7, 1, 1, 0)]),
        problem(&[window(40, 9, 4, 2, 1)]),
        Problem { additional: Some(3), ..problem(&[window(8, 3, 2, 2, 0), window(9, 5, 1, 1, 1)]) },
        problem(&[window(4, 2, 1, 2, 0), window(4, 3, 1, 1, 0), window(5, 3, 3, 1, 0)]),
        problem(&[Axis::Dense { queries: 33, keys: 50, is_causal: false }]),
        problem(&[Axis::Dense { queries: 33, keys: 33, is_causal: true }]),
    )]
    problem: Problem,
) {
    as_good_as_rounding(&problem, dtype, TestDevice::half_strategies);
}

#[rstest]
fn with_a_bias_too(
    #[values(DType::F16, DType::BF16)] dtype: DType,
    #[values(
        problem(&[window(40, 8, 4, 2, 1)]),
        Problem { additional: Some(3), ..problem(&[window(8, 3, 2, 2, 0), window(9, 5, 1, 1, 0)]) },
    )]
    problem: Problem,
) {
    let problem = Problem { bias: true, ..problem };
    as_good_as_rounding(&problem, dtype, TestDevice::half_bias_strategies);
}

#[test]
fn flex_and_cubecl_cpu_have_both_half_types() {
    for device in devices().iter().filter(|d| ["flex", "cubecl-cpu"].contains(&d.name)) {
        for dtype in [DType::F16, DType::BF16] {
            assert!(device.supports(dtype), "{} {dtype:?}", device.name);
        }
    }
}

/// Long rows: a sum held in the half type itself would be off by far more.
#[rstest]
fn sums_are_held_in_f32(#[values(DType::F16, DType::BF16)] dtype: DType) {
    let axes = [Axis::Dense { queries: 4, keys: 3000, is_causal: false }];
    let problem = Problem { heads: 1, heads_kv: 1, dim: 8, ..problem(&axes) };
    let mut inputs = problem.inputs(42);
    inputs.value.iter_mut().for_each(|x| *x += 4.0);
    let inputs = rounded(inputs, dtype);
    let (out, lse) = problem.forward(&inputs);
    for device in devices().iter().filter(|device| device.supports(dtype)) {
        let setup = Setup::new(&device.device).dtype(dtype);
        let results = run(&problem, &inputs, &setup).expect("a valid problem");
        within_twice(device.name, dtype, &results.out, &out, &round(dtype, &out));
        close(device.name, &results.lse, &lse, check::F32);
    }
}
