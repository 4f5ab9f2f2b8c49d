//! Queries that see nothing, and keys that nobody sees, along an axis of which tiles have one row.

use burn_natten_kernels::native::sm90::{Element, Schedule, candidates};
use burn_natten_kernels::{Axis, MAX_RANK, Problem};
use test_support::compare::format;
use test_support::tier::check_data;
use test_support::{Data, axis, problem};

use crate::run::Policy;
use crate::ways::{
    OnMachine, Way, best_of, check_one_forward, client, hopper, planned_backward_of,
};

/// With this axis as each of three in turn: tiles have one row along it wherever there are such tiles.
fn check(blind: Axis, additional: usize) {
    let client = client();
    let Some(machine) = hopper(Policy::Late) else { return };
    for index in 0..MAX_RANK {
        let mut axes = [axis(9, 6, 1, 1, false), axis(10, 4, 1, 1, false), blind];
        axes.swap(index, MAX_RANK - 1);
        let problem: Problem =
            problem(&axes, [64, 128][index % 2]).with_batch(1).with_additional(additional);
        let element = Element::Bf16;
        let data = Data::random(&problem, index as u64, format(element).round);
        let is_single =
            |one: &Schedule| one.row_tile()[index] == 1 && one.column_tile()[index] == 1;
        let all = candidates(&problem, element);
        let has_some = all.iter().any(is_single);
        let schedule = best_of(all, &problem, |one| !has_some || is_single(one));
        let result = check_one_forward(&machine, &client, &problem, &schedule, &data);
        result.unwrap_or_else(|how| panic!("{problem:?}: {how}"));

        let (plan, _) = planned_backward_of(&problem, element, is_single);
        let way = Way { machine, plan };
        let result = check_data::<OnMachine>(&client, element, &way, &problem, &data);
        result.unwrap_or_else(|how| panic!("{problem:?}: {how}"));
    }
}

#[test]
fn queries_ahead_of_all_keys_see_additional_tokens() {
    check(Axis::dense(4, 4, true).with_origin(-3), 14);
}

#[test]
fn keys_behind_all_queries_have_no_gradient() {
    check(Axis::dense(4, 4, true).with_origin(-3), 0);
    check(Axis::dense(2, 5, true).with_origin(0), 0);
}
