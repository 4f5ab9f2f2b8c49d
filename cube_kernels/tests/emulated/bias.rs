//! Kernels that add a position bias.

use burn_natten_kernels::tensor_core::Capability;
use test_support::cpp::compiler;
use test_support::element::Element;

use crate::backward::{self, Pick};
use crate::forward;
use crate::problems::biased;

/// Both passes of all problems, with elements of either type in turn.
fn check(capability: &Capability, elements: [Element; 2]) {
    let Some(compiler) = compiler() else { return };
    for (number, problem) in biased().iter().enumerate() {
        let element = elements[number % 2];
        let (share, pick) = match number % 3 {
            0 => (None, Pick::Planned),
            rest => (Some(rest as f64 / 3.0), Pick::At(rest as f64 / 3.0)),
        };
        forward::check_one(compiler, capability, problem, element, share);
        backward::check_one(compiler, capability, problem, element, pick);
    }
}

const HALVES: [Element; 2] = [Element::Bf16, Element::F16];

#[test]
fn mma_with_asynchronous_copies() {
    check(&crate::asynchronous(), HALVES);
}

#[test]
#[ignore = "takes minutes; other kernels with a bias run, and these without one"]
fn mma_with_loads_through_registers() {
    check(&crate::plain(), HALVES);
}

#[test]
#[ignore = "takes minutes; other kernels with a bias run, and these without one"]
fn pairs_of_planes() {
    let Some(compiler) = compiler() else { return };
    for (number, problem) in biased().into_iter().enumerate().step_by(2) {
        let mut problem = problem;
        (problem.head_dim, problem.head_dim_v) = [(96, 128), (96, 96)][number / 2 % 2];
        let pick = Pick::Pairs([0.0, 0.4, 0.8][number / 2 % 3]);
        backward::check_one(compiler, &crate::asynchronous(), &problem, Element::Bf16, pick);
    }
}

#[test]
#[ignore = "takes minutes; other kernels with a bias run, and these without one"]
fn cmma_of_16() {
    check(&crate::cooperative(16), HALVES);
}

#[test]
#[ignore = "takes minutes; other kernels with a bias run, and these without one"]
fn cmma_of_8() {
    check(&crate::cooperative(8), HALVES);
}

#[test]
#[ignore = "takes minutes; other kernels with a bias run, and these without one"]
fn tf32() {
    check(&crate::tf32(crate::asynchronous()), [Element::Tf32; 2]);
}
