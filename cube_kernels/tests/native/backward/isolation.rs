//! A number that is not finite spoils the gradients that depend on it, and no other.

use test_support::{backward::isolation, test_isolated};

use crate::ways::Native;

fn check(problems: test_support::problems::isolated::Named) {
    isolation::check_all::<Native>(problems);
}

test_isolated!(check);
