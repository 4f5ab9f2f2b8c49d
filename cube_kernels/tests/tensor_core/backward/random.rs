//! Random problems of each rank.

use rand::Rng;
use test_support::compare::device;
use test_support::tier::check_all;

use super::run::{any, plans};
use crate::random::cases;
use crate::ways::TensorCore;

fn random(rank: usize) {
    let Some(client) = device() else { return };
    let cases = cases(rank, |rng, problem, element| {
        let mut plans = plans(&problem, element);
        let chosen = plans.swap_remove(rng.random_range(0..plans.len()));
        // Half by the blueprints that would run, half by any that could.
        let plan = match rng.random() {
            true => chosen,
            false => any(&problem, element, chosen, rng.random_range(0..1000)),
        };
        (problem, element, plan)
    });
    check_all::<TensorCore>(&client, &cases);
}

#[test]
fn one_axis() {
    random(1);
}

#[test]
fn two_axes() {
    random(2);
}

#[test]
fn three_axes() {
    random(3);
}
