//! Sizes at which something begins, ends or does not happen at all.

use burn_natten_kernels::Problem;
use test_support::{backward::edges, test_edges};

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
