//! Sizes at which something begins, ends or does not happen at all.

use burn_natten_kernels::{Axis, Problem};
use test_support::compare::{device, for_each_case};
use test_support::tier::{BackwardTier, check_products};
use test_support::{axis, backward::edges, problem, test_edges};

use crate::ways::Native;

/// The best few schedules.
pub fn check(problems: Vec<Problem>) {
    edges::check::<Native>(problems);
}

test_edges!(check);

#[test]
fn keys_that_nobody_sees() {
    edges::keys_that_nobody_sees::<Native>();
}

#[test]
fn gradients_of_unseen_keys_are_zeros() {
    edges::gradients_of_unseen_keys_are_zeros::<Native>();
}

/// Of rows that are read by one thread each, of several CTAs.
#[test]
fn products_in_place_of_outputs() {
    let Some(client) = device() else { return };
    let blind = Axis::dense(40, 13, true).with_origin(-27);
    let problems = [
        problem(&[axis(1300, 21, 1, 2, true)], 64).with_heads(4).with_heads_kv(2),
        problem(&[axis(9, 5, 1, 1, false), blind], 64).with_head_dim_v(40),
        problem(&[axis(25, 5, 1, 3, false), axis(50, 7, 1, 1, true)], 128),
    ];
    let cases = edges::cases::<Native>(&client, problems, Native::plans);
    for_each_case(&cases, |(problem, element, plan), seed| {
        check_products::<Native>(&client, *element, plan, problem, seed)
    });
}
