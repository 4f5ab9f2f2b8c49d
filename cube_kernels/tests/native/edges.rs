//! Sizes at which something begins, ends or does not happen at all.

use burn_natten_kernels::Problem;
use burn_natten_kernels::native::sm90::{Element, candidates, estimate};

use crate::problems::edges;
use crate::run::{check_all, device};

/// Every candidate of one axis, which are few, and the best few of more.
fn check(problems: Vec<Problem>) {
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

#[test]
fn lengths_around_tiles() {
    check(edges::lengths_around_tiles());
}

#[test]
fn single_queries_and_keys() {
    check(edges::single_queries_and_keys());
}

#[test]
fn queries_and_keys_of_different_number() {
    check(edges::queries_and_keys_of_different_number());
}

#[test]
fn windows_of_a_whole_axis() {
    check(edges::windows_of_a_whole_axis());
}

#[test]
fn numbers_of_heads() {
    check(edges::numbers_of_heads());
}

#[test]
fn numbers_of_samples() {
    check(edges::numbers_of_samples());
}

#[test]
fn vectors_of_every_length() {
    check(edges::vectors_of_every_length());
}

#[test]
fn dilations() {
    check(edges::dilations());
}
