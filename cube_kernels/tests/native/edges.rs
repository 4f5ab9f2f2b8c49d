//! Sizes at which something begins, ends or does not happen at all.

use burn_natten_kernels::Problem;
use burn_natten_kernels::native::sm90::{Element, candidates, estimate};
use test_support::compare::device;
use test_support::test_edges;

use crate::run::check_all;

/// Every candidate of one axis, which are few, and the best few of more.
pub fn check(problems: Vec<Problem>) {
    let Some(client) = device() else { return };
    let mut cases = vec![];
    for problem in problems {
        for element in [Element::F16, Element::Bf16] {
            let mut all = candidates(&problem, element);
            assert!(!all.is_empty(), "{problem:?}");
            all.sort_by(|a, b| estimate(a, &problem).total_cmp(&estimate(b, &problem)));
            cases.extend(all.into_iter().take(4).map(|schedule| (problem, schedule)));
        }
    }
    check_all(&client, &cases);
}

test_edges!(check);
