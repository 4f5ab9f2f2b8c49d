//! A row of keys or values that is not finite spoils the queries that see it, and no other.

use test_support::{isolation, test_isolated};

use crate::ways::TensorCore;

fn check(problems: test_support::problems::isolated::Named) {
    isolation::check_all::<TensorCore>(problems);
}

test_isolated!(check);
