//! Random problems of each rank.

use burn_natten_kernels::Problem;
use burn_natten_kernels::native::sm90::{BackwardPlan, Element, Schedule, backward_candidates};
use rand::{Rng, rngs::StdRng};
use test_support::compare::device;
use test_support::tier::check_all;

use super::run::planned;
use crate::random::cases;
use crate::ways::Native;

/// Another schedule for each kernel of a plan, any that could run.
pub fn any(
    rng: &mut StdRng,
    problem: &Problem,
    element: Element,
    plan: BackwardPlan,
) -> BackwardPlan {
    let mut other = |schedule: &Schedule| {
        let all = backward_candidates(problem, element, schedule.pass, schedule.gradients);
        all[rng.random_range(0..all.len())]
    };
    let plan = BackwardPlan {
        queries: plan.queries.iter().map(&mut other).collect(),
        keys: plan.keys.iter().map(&mut other).collect(),
        additional: plan.additional,
        slopes: None,
    };
    // By slopes where windows are whole blocks.
    plan.clone().with_slopes(problem, 1).unwrap_or(plan)
}

fn random(rank: usize) {
    let Some(client) = device() else { return };
    let cases = cases(100, rank, |rng, problem, element| {
        let chosen = planned(&problem, element);
        // Half with the schedules that would run, half with any that could.
        let plan = match rng.random() {
            true => chosen,
            false => any(rng, &problem, element, chosen),
        };
        (problem, element, plan)
    });
    check_all::<Native>(&client, &cases);
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
