//! Tensors and cotangents that are views give what contiguous tensors of the same values give.

use burn::tensor::DType;

use super::oracle::{Inputs, Problem};
use super::random::everything;
use super::run::{Setup, run_laid};
use crate::support::check::close_to_unit;
use crate::support::devices;
use crate::support::layout::for_each_view;
use crate::support::run::round;

/// A crop along each axis, and every exchange of two.
fn check(dtype: DType, tolerance: f64) {
    // Vectors that are read four elements at a time, and their neighbors in an odd place.
    let problem = Problem { dim_v: 6, ..everything() };
    let inputs = problem.inputs(17);
    let laid = |values: &[f64]| match dtype {
        DType::F32 => values.to_vec(),
        _ => round(dtype, values),
    };
    let inputs = Inputs {
        query: laid(&inputs.query),
        key: laid(&inputs.key),
        value: laid(&inputs.value),
        grad_out: laid(&inputs.grad_out),
        ..inputs
    };
    for device in devices().into_iter().filter(|device| device.supports(dtype)) {
        let strategies = match dtype {
            DType::F32 => device.strategies(),
            _ => device.half_block_strategies(),
        };
        for strategy in strategies {
            let setup = Setup::new(&device.device, strategy).dtype(dtype);
            let want = run_laid::<2, 5, 4>(&problem, &inputs, &setup, &|x| x);
            for_each_view::<5>(|what, lay| {
                let got = run_laid(&problem, &inputs, &setup, lay);
                let what = format!("{} {strategy:?} {dtype:?} {what}", device.name);
                for ((name, got), (_, want)) in got.named().into_iter().zip(want.named()) {
                    close_to_unit(&format!("{what} {name}"), got, want, tolerance, 1.0);
                }
            });
        }
    }
}

#[test]
fn views_are_like_contiguous_tensors() {
    check(DType::F32, 1e-6);
}

#[test]
fn views_of_half_types_are_like_contiguous_tensors() {
    check(DType::F16, 1e-3);
    check(DType::BF16, 8e-3);
}
