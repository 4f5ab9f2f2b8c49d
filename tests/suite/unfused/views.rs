//! Tensors and cotangents that are views give what contiguous tensors of the same values give.

use burn::tensor::DType;

use super::oracle::Halves;
use super::random::{agree, everything, tiles};
use super::run::{Setup, run_laid};
use crate::support::check::close_to_unit;
use crate::support::devices;
use crate::support::layout::{for_each_view, swapped};
use crate::support::problem::Problem;
use crate::support::run::round;

/// A crop along each axis, and every exchange of two.
fn check(problem: &Problem, dtype: DType, tolerance: f64) {
    let mut halves = Halves::random(problem, 17);
    if dtype != DType::F32 {
        halves.all_mut().into_iter().for_each(|values| *values = round(dtype, values));
    }
    for device in devices().into_iter().filter(|device| device.supports(dtype)) {
        for strategy in device.strategies() {
            let setup = Setup::new(&device.device, strategy).dtype(dtype);
            let want = run_laid::<2, 5>(problem, &halves, &setup, &|x| x, &|x| x);
            for_each_view::<5>(|what, lay| {
                let more = |tensor| swapped(tensor, 1, 2);
                let got = run_laid(problem, &halves, &setup, lay, &more);
                let what = format!("{} {strategy:?} {dtype:?} {what}", device.name);
                for ((name, got), (_, want)) in got.named().into_iter().zip(want.named()) {
                    close_to_unit(&format!("{what} {name}"), got, want, tolerance, 1.0);
                }
            });
        }
    }
}

/// Vectors that are read four elements at a time, and their neighbors in an odd place.
fn odd() -> Problem {
    Problem { dim_v: 6, ..everything() }
}

#[test]
fn views_are_like_contiguous_tensors() {
    check(&odd(), DType::F32, 1e-5);
}

#[test]
fn views_of_half_types_are_like_contiguous_tensors() {
    // The same sums in the same order.
    let [tiles, ..] = tiles();
    for problem in [odd(), Problem { batch: 2, dim: 16, dim_v: 16, ..tiles }] {
        check(&problem, DType::F16, 1e-3);
        check(&problem, DType::BF16, 8e-3);
    }
}

/// Vectors of one element whose axis was exchanged.
#[test]
fn vectors_of_one_element_have_any_stride() {
    let problem = Problem { dim: 1, dim_v: 1, ..everything() };
    let halves = Halves::random(&problem, 19);
    let want = halves.compute(&problem);
    for device in devices() {
        for strategy in device.strategies() {
            let setup = Setup::new(&device.device, strategy);
            for other in [0, 1, 3] {
                let lay = |tensor| swapped::<5>(tensor, 4, other);
                let got = run_laid(&problem, &halves, &setup, &lay, &|tensor| tensor);
                agree(&format!("{} {strategy:?} {other}", device.name), &got, &want);
            }
        }
    }
}
