//! A few tiny launches of every kind, for compute-sanitizer.

use burn_natten_kernels::native::sm90::Element;
use test_support::compare::device;
use test_support::problems::samples::Masked;
use test_support::test_samples;
use test_support::tier::{BackwardTier, check};

use super::run::planned;
use crate::ways::Native;

/// Checks the problems, and that they are masked as the tests mean them.
fn sample(problems: Masked) {
    let client = device();
    for (problem, mask) in problems {
        let plan = planned(&problem, Element::Bf16);
        let is_meant = plan.queries.iter().chain(&plan.keys).all(|kernel| kernel.mask == mask);
        assert!(is_meant, "{}", Native::names(&plan));
        if let Some(client) = &client {
            check::<Native>(client, Element::Bf16, &plan, &problem, 1)
                .unwrap_or_else(|text| panic!("{text}"));
        }
    }
}

test_samples!(sample);
