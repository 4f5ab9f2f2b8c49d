//! Tensors and cotangents that are views give what contiguous tensors of the same values give.

use burn::tensor::{DType, Tensor};

use super::oracle::{Inputs, Problem};
use super::random::everything;
use super::run::{Setup, run_laid};
use crate::support::check::close_to_unit;
use crate::support::devices;
use crate::support::run::round;

/// The middle of a longer axis, with NaN beyond.
fn cropped<const D: usize>(tensor: Tensor<D>, axis: usize) -> Tensor<D> {
    let mut edge = tensor.dims();
    let length = edge[axis];
    edge[axis] = 1;
    let edge = Tensor::<D>::full(edge, f32::NAN, (&tensor.device(), tensor.dtype()));
    Tensor::cat(vec![edge.clone(), tensor, edge], axis).narrow(axis, 1, length)
}

/// With two axes exchanged in memory.
fn swapped<const D: usize>(tensor: Tensor<D>, a: usize, b: usize) -> Tensor<D> {
    (tensor.swap_dims(a, b) * 1.0).swap_dims(a, b)
}

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
        for strategy in device.strategies() {
            let setup = Setup::new(&device.device, strategy).dtype(dtype);
            let want = run_laid::<2, 5, 4>(&problem, &inputs, &setup, &|x| x);
            let compare = |what: &str, lay: &dyn Fn(Tensor<5>) -> Tensor<5>| {
                let got = run_laid(&problem, &inputs, &setup, lay);
                let what = format!("{} {strategy:?} {dtype:?} {what}", device.name);
                for ((name, got), (_, want)) in got.named().into_iter().zip(want.named()) {
                    close_to_unit(&format!("{what} {name}"), got, want, tolerance, 1.0);
                }
            };
            for axis in 0..5 {
                // The loss of a crop reads none of the NaN around it.
                compare(&format!("cropped along {axis}"), &|tensor| cropped(tensor, axis));
                for other in 0..axis {
                    let name = format!("{axis} and {other} exchanged");
                    compare(&name, &|tensor| swapped(tensor, axis, other));
                }
            }
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
