//! A few tiny launches of every kind, for compute-sanitizer, which slows kernels down hundredfold.

use burn_natten_kernels::native::sm90::{Element, Mask};
use burn_natten_kernels::{Axis, Problem};

use super::run::{check, names, planned};
use crate::problems::problem;
use crate::run::device;
use crate::support::axis;

/// Checks the problem as one sample with one head, and that it is masked as the test means it.
fn sample(problem: Problem, mask: Mask) {
    let problem = Problem { batch: 1, heads: 1, heads_kv: 1, ..problem };
    let plan = planned(&problem, Element::Bf16);
    let masks = plan.queries.iter().chain(&plan.keys).all(|schedule| schedule.mask == mask);
    println!("{}", names(&plan));
    assert!(masks, "{}", names(&plan));
    let Some(client) = device() else { return };
    check(&client, Element::Bf16, &plan, &problem, 1).unwrap_or_else(|text| panic!("{text}"));
}

#[test]
fn whole_blocks() {
    sample(problem(&[Axis::dense(128, 256, false)], 64), Mask::None);
}

#[test]
fn by_position() {
    sample(problem(&[axis(100, 9, 1, 1, false)], 64), Mask::Linear);
    sample(problem(&[axis(70, 9, 2, 1, true)], 128), Mask::Linear);
}

#[test]
fn one_hot() {
    sample(problem(&[axis(9, 3, 1, 1, false), axis(11, 5, 1, 1, true)], 64), Mask::OneHot);
    let space = [axis(3, 2, 1, 1, false), axis(5, 3, 1, 1, false), axis(6, 3, 1, 2, false)];
    sample(problem(&space, 128), Mask::OneHot);
}

#[test]
fn additional_tokens() {
    let plane = [axis(9, 3, 1, 1, false), axis(11, 5, 1, 1, false)];
    sample(Problem { additional: 70, ..problem(&plane, 64) }, Mask::OneHot);
}

/// A dilation beyond what TMA steps over: nine launches.
#[test]
fn several_launches() {
    sample(problem(&[axis(60, 5, 1, 9, false)], 64), Mask::Linear);
}

#[test]
fn wide_heads() {
    sample(problem(&[axis(70, 9, 1, 1, false)], 256), Mask::Linear);
}
