//! Schedules that could be chosen, not only those that are.

use burn_natten_kernels::Problem;
use burn_natten_kernels::native::sm90::Element;
use test_support::compare::device;
use test_support::tier::check_all;
use test_support::{axis, problem};

use super::run::best;
use crate::ways::Native;

const BEST: usize = 16;

fn check_best(problem: Problem, element: Element) {
    let Some(client) = device() else { return };
    let plans = best(&problem, element, BEST).into_iter();
    let cases: Vec<_> = plans.map(|plan| (problem, element, plan)).collect();
    check_all::<Native>(&client, &cases);
}

#[test]
fn one_axis_head_dim_64() {
    check_best(problem(&[axis(333, 41, 1, 2, true)], 64), Element::F16);
}

#[test]
fn two_axes_head_dim_32() {
    let axes = [axis(29, 7, 1, 1, false), axis(43, 7, 1, 2, false)];
    check_best(problem(&axes, 32), Element::F16);
}

#[test]
fn three_axes_head_dim_64() {
    let axes = [axis(7, 3, 1, 1, false), axis(17, 5, 1, 1, false), axis(22, 7, 1, 1, false)];
    check_best(problem(&axes, 64).with_batch(1), Element::Bf16);
}

#[test]
fn three_axes_head_dim_128() {
    let axes = [axis(9, 5, 1, 1, false), axis(13, 6, 2, 1, false), axis(21, 8, 1, 1, true)];
    let problem = problem(&axes, 128).with_heads(4).with_additional(20);
    check_best(problem, Element::Bf16);
}

/// Long vectors: each gradient in slices.
#[test]
fn two_axes_head_dim_256() {
    let axes = [axis(13, 5, 1, 1, false), axis(21, 7, 1, 1, true)];
    check_best(problem(&axes, 256), Element::Bf16);
}
