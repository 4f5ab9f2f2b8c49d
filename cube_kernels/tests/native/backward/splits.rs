//! Keys whose groups of heads several CTAs share.

use burn_natten_kernels::native::sm90::Element;
use burn_natten_kernels::{Axis, Problem};
use test_support::compare::{device, for_each_case, format};
use test_support::oracle::compute;
use test_support::tier::{BackwardTier, check_data, upload_all};
use test_support::{Data, axis, problem};

use super::run::planned;
use crate::ways::Native;

/// Compressed attention: so many queries in a row see the same keys, each group one more.
fn compressed(groups: usize, dim: usize) -> Problem {
    let axes = [Axis::dense(groups, groups - 1, true), Axis::dense(16, 1, false)];
    problem(&axes, dim).with_heads(16).with_heads_kv(2).with_batch(1)
}

/// Few keys or several tiles of them, slices of vectors, several launches, additional tokens.
fn problems() -> Vec<Problem> {
    let plane = [axis(9, 5, 1, 1, true), axis(13, 6, 2, 1, false)];
    let shared = |problem: Problem| problem.with_heads(12).with_heads_kv(2);
    vec![
        compressed(12, 128),
        compressed(150, 64),
        compressed(150, 128),
        compressed(40, 256),
        shared(problem(&[axis(250, 21, 1, 11, true)], 64)),
        shared(problem(&plane, 128)).with_head_dim_v(40).with_additional(70),
    ]
}

#[test]
fn every_divisor_of_a_group() {
    let Some(client) = device() else { return };
    let cases: Vec<_> = problems()
        .into_iter()
        .flat_map(|problem| {
            let group = problem.group_size();
            let splits = (1..=group).filter(move |splits| group.is_multiple_of(*splits));
            splits.map(move |splits| (problem, splits))
        })
        .flat_map(|(problem, splits)| {
            [Element::Bf16, Element::F16].map(|element| (problem, splits, element))
        })
        .collect();
    for_each_case(&cases, |(problem, splits, element), seed| {
        let mut plan = planned(problem, *element);
        for schedule in plan.keys.iter_mut().chain(&mut plan.additional) {
            schedule.splits = *splits;
        }
        let data = Data::random(problem, seed, format(*element).round);
        check_data::<Native>(&client, *element, &plan, problem, &data)
    });
}

#[test]
fn sums_repeat() {
    let Some(client) = device() else { return };
    let (problem, element) = (compressed(150, 128), Element::Bf16);
    let mut plan = planned(&problem, element);
    plan.keys.iter_mut().for_each(|schedule| schedule.splits = 8);
    let data = Data::random(&problem, 3, format(element).round);
    let exact = compute(&problem, &data, format(element).round);
    let saved = upload_all(&client, element, &problem, &data, &exact);
    let run = || Native::gradients(&client, element, &plan, &problem, &saved);
    let first = run();
    for number in 1..20 {
        assert!(run() == first, "run {number} differs");
    }
}
