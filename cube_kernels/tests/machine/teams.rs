//! Forward kernels with four pipelines in a CTA, and kernels whose tiles have fewer rows, or steps fewer columns, than they could.

use burn_natten_kernels::native::sm90::{Element, Schedule, candidates};
use burn_natten_kernels::{Axis, MAX_RANK, Problem};
use test_support::compare::format;
use test_support::tier::check_data;
use test_support::{Data, axis, problem};

use crate::run::Policy;
use crate::ways::{
    OnMachine, Way, best_of, check_one_forward, client, hopper, planned_backward_of,
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

/// What a test asks of a schedule.
type Kind = fn(&Schedule) -> bool;

const IN_TEAMS: Kind = |schedule| schedule.teams == 4;
const SHORT_ROWS: Kind = |schedule| volume(schedule.row_tile()) == 60;
/// Products sum over 16 columns: over the last eight of 56 in a product whose other half is zeros.
const HALF_A_PRODUCT: Kind = |schedule| volume(schedule.column_tile()) % 16 == 8;
/// More coordinates than there are slots for blocks that share a step.
const LONG_LINES: Kind = |schedule| schedule.column_tile()[2] >= 12;
const WIDE: Kind = |schedule| schedule.columns() > 128;

fn volume(tile: [usize; MAX_RANK]) -> usize {
    tile.iter().product()
}

fn check(problems: &[Problem], policies: &[Policy], kinds: &[Kind]) {
    let client = client();
    for (number, problem) in problems.iter().enumerate() {
        for (other, kind) in kinds.iter().enumerate() {
            let element = [Element::Bf16, Element::F16][(number + other) % 2];
            let data = Data::random(problem, number as u64, format(element).round);
            let schedule = best_of(candidates(problem, element), problem, kind);
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
    check(&[plain, with_bias], &[Policy::Late], &[IN_TEAMS]);
}

#[test]
fn tiles_have_sixty_rows() {
    let in_teams: Kind = |schedule| SHORT_ROWS(schedule) && IN_TEAMS(schedule);
    let alone: Kind = |schedule| SHORT_ROWS(schedule) && schedule.teams == 1;
    check(&[space()], &[Policy::Late], &[in_teams, alone]);
    check_backward(&space(), SHORT_ROWS, Policy::Random(1));
}

#[test]
fn steps_have_other_numbers_of_columns() {
    let plain = problems()[0];
    check(&[plain], &[Policy::Late], &[HALF_A_PRODUCT, LONG_LINES]);
    check_backward(&plain, HALF_A_PRODUCT, Policy::Random(1));
    check_backward(&space(), LONG_LINES, Policy::Late);
    check(&wide(), &[Policy::Late], &[WIDE]);
}

/// Of vectors so long that steps are wide.
fn wide() -> [Problem; 2] {
    let [z, y, x] = space().axes.map(|axis| axis.with_dilation(1));
    [problem(&plane(), 128).with_head_dim_v(72), problem(&[z, y, x], 128).with_batch(1)]
}

/// A backward pass whose kernels are of a kind, those that have it.
fn check_backward(problem: &Problem, kind: Kind, policy: Policy) {
    let element = Element::Bf16;
    let (plan, kernels) = planned_backward_of(problem, element, kind);
    assert!(kernels > 0, "{problem:?}");
    let Some(machine) = hopper(policy) else { return };
    let data = Data::random(problem, 5, format(element).round);
    let way = Way { machine, plan };
    let result = check_data::<OnMachine>(&client(), element, &way, problem, &data);
    result.unwrap_or_else(|how| panic!("{policy:?}: {how}"));
}

#[test]
#[ignore = "minutes"]
fn pipelines_rows_and_columns_in_every_way() {
    check(&problems(), &Policy::ALL, &[IN_TEAMS]);
    check(&problems()[..1], &Policy::ALL, &[HALF_A_PRODUCT, LONG_LINES]);
    check(&wide(), &Policy::ALL, &[WIDE]);
    check(&[space()], &Policy::ALL, &[SHORT_ROWS]);
    for policy in Policy::ALL {
        check_backward(&space(), SHORT_ROWS, policy);
        check_backward(&space(), LONG_LINES, policy);
        check_backward(&problems()[0], HALF_A_PRODUCT, policy);
    }
}
