//! A few tiny launches of every kind, for compute-sanitizer.

use burn_natten_kernels::native::sm90::Element;
use test_support::compare::device;
use test_support::problems::samples::Masked;
use test_support::test_samples;

use crate::run::{check, planned};

/// Checks the problems, and that they are masked as the tests mean them.
fn sample(problems: Masked) {
    let client = device();
    for (problem, mask) in problems {
        let schedule = planned(&problem, Element::Bf16);
        assert_eq!(schedule.mask, mask, "{schedule}");
        if let Some(client) = &client {
            check(client, &schedule, &problem, 1).unwrap_or_else(|text| panic!("{text}"));
        }
    }
}

test_samples!(sample);
