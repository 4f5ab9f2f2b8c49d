//! Forward kernels with four pipelines in a CTA, and kernels whose tiles have fewer rows than a warpgroup could.

use burn_natten_kernels::native::sm90::{Element, Pass, backward_candidates, estimate};
use burn_natten_kernels::{Axis, Problem};
use test_support::compare::format;
use test_support::tier::check_data;
use test_support::{Data, axis, problem};

use crate::run::Policy;
use crate::ways::{
    OnMachine, Way, check_one_forward, client, hopper, planned_backward, planned_in_teams,
};

/// A problem for each mask, and for each macro that the kernels have.
fn problems() -> Vec<Problem> {
    let mixed = [axis(17, 5, 2, 1, true), axis(26, 6, 1, 2, false)];
    vec![
        problem(&plane(), 64).with_heads(4).with_heads_kv(2),
        space(),
        problem(&[axis(400, 230, 1, 1, false)], 64),
        problem(&[Axis::dense(200, 256, false)], 32).with_heads(6).with_heads_kv(6),
        problem(&mixed, 40).with_head_dim_v(64),
        problem(&[Axis::dense(300, 300, true)], 64).with_batch(1),
        problem(&plane(), 32).with_heads(4).with_batch(3).with_bias(true),
        problem(&[axis(19, 7, 2, 1, false), axis(22, 5, 1, 3, true)], 64).with_bias(true),
        problem(&space().axes, 32).with_bias(true),
        problem(&[axis(400, 30, 1, 1, false)], 40).with_heads(4).with_bias(true),
    ]
}

fn plane() -> [Axis; 2] {
    [axis(21, 5, 1, 1, false), axis(19, 7, 1, 1, false)]
}

fn space() -> Problem {
    let axes = [axis(5, 3, 1, 1, false), axis(9, 4, 1, 2, false), axis(10, 5, 3, 1, true)];
    problem(&axes, 64).with_head_dim_v(24)
}

fn check(problems: &[Problem], policies: &[Policy], kinds: &[(usize, Option<usize>)]) {
    let client = client();
    for (number, problem) in problems.iter().enumerate() {
        for (teams, rows) in kinds {
            let element = [Element::Bf16, Element::F16][(number + teams / 4) % 2];
            let data = Data::random(problem, number as u64, format(element).round);
            let schedule = planned_in_teams(problem, element, *teams, *rows);
            for policy in policies {
                let Some(machine) = hopper(*policy) else { return };
                let result = check_one_forward(&machine, &client, problem, &schedule, &data);
                result.unwrap_or_else(|how| panic!("{problem:?}, {policy:?}: {how}"));
            }
        }
    }
}

#[test]
fn four_pipelines_share_a_cta() {
    let (plain, with_bias) = (problems()[0], problems()[6]);
    check(&[plain, with_bias], &[Policy::Late], &[(4, None)]);
}

#[test]
fn tiles_have_sixty_rows() {
    check(&[space()], &[Policy::Late], &[(4, Some(60)), (1, Some(60))]);
    check_backward(&space(), Policy::Random(1));
}

/// A backward pass whose kernels have 60 rows.
fn check_backward(problem: &Problem, policy: Policy) {
    let element = Element::Bf16;
    let mut plan = planned_backward(problem, element);
    for schedule in plan.queries.iter_mut().chain(&mut plan.keys) {
        let (pass, gradients) = (schedule.pass, schedule.gradients);
        assert!(pass != Pass::Forward);
        let all = backward_candidates(problem, element, pass, gradients);
        let short = all.into_iter().filter(|one| one.row_tile().iter().product::<usize>() == 60);
        let timed = short.map(|one| (estimate(&one, problem), one));
        *schedule = timed.min_by(|(a, _), (b, _)| a.total_cmp(b)).expect("a schedule").1;
    }
    let Some(machine) = hopper(policy) else { return };
    let data = Data::random(problem, 5, format(element).round);
    let way = Way { machine, plan };
    let result = check_data::<OnMachine>(&client(), element, &way, problem, &data);
    result.unwrap_or_else(|how| panic!("{policy:?}: {how}"));
}

#[test]
#[ignore = "minutes"]
fn pipelines_and_short_rows_in_every_way() {
    check(&problems(), &Policy::ALL, &[(4, None)]);
    check(&[space()], &Policy::ALL, &[(4, Some(60)), (1, Some(60))]);
    Policy::ALL.into_iter().for_each(|policy| check_backward(&space(), policy));
}
