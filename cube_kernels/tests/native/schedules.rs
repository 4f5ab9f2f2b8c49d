//! Every schedule that could be chosen, not only the one that is.

use burn_natten_kernels::Problem;
use burn_natten_kernels::native::sm90::{Element, candidates};
use test_support::compare::device;
use test_support::{axis, problem};

use crate::run::check_all;

fn check_candidates(problem: Problem, element: Element) {
    let Some(client) = device() else { return };
    let all = candidates(&problem, element);
    let cases: Vec<_> = all.into_iter().map(|schedule| (problem, schedule)).collect();
    check_all(&client, &cases);
}

#[test]
fn two_axes_head_dim_32() {
    let axes = [axis(29, 7, 1, 1, false), axis(43, 7, 1, 2, false)];
    check_candidates(problem(&axes, 32), Element::F16);
}

#[test]
fn three_axes_head_dim_64() {
    let axes = [axis(7, 3, 1, 1, false), axis(17, 5, 1, 1, false), axis(22, 7, 1, 1, false)];
    let problem = problem(&axes, 64).with_batch(1);
    check_candidates(problem, Element::Bf16);
}

#[test]
fn three_axes_head_dim_128() {
    let axes = [axis(9, 5, 1, 1, false), axis(13, 6, 2, 1, false), axis(21, 8, 1, 1, true)];
    let problem = problem(&axes, 128).with_heads(4).with_additional(20);
    check_candidates(problem, Element::Bf16);
}
