//! Keys whose groups of heads several CTAs share, and the sum of what each has.

use burn_natten_kernels::native::sm90::Element;
use burn_natten_kernels::{Axis, Problem};
use test_support::compare::format;
use test_support::oracle::compute;
use test_support::tier::{BackwardTier, check_data, expected, upload_all};
use test_support::{Data, axis, problem};

use crate::run::{Change, Policy};
use crate::ways::{Case, OnMachine, Way, changed, check_each, client, hopper, planned_backward};

/// The planned kernels, but that as many CTAs as the case says share a group of those for keys.
fn way((problem, splits, element, policy): &Case) -> Option<Way> {
    let machine = hopper(*policy)?;
    let mut plan = planned_backward(problem, *element);
    for schedule in plan.keys.iter_mut().chain(&mut plan.additional) {
        schedule.splits = *splits;
    }
    Some(Way { machine, plan })
}

/// Compressed attention: so many queries in a row see the same keys, each group one more.
fn slanted(dim: usize) -> Problem {
    let axes = [Axis::dense(9, 140, true), Axis::dense(16, 1, false)];
    problem(&axes, dim).with_heads(8).with_heads_kv(2).with_batch(2)
}

/// All divisors of a group.
#[test]
fn compressed_attention() {
    use Policy::*;
    let cases = [(1, Element::F16, Late), (2, Element::Bf16, Early), (4, Element::Bf16, Random(1))];
    check_each(
        &cases.map(|(splits, element, policy)| (slanted(128), splits, element, policy)),
        way,
    );
}

/// Vectors in slices, values of another length, groups of no power of two, several launches, additional tokens, a bias.
fn kinds() -> Vec<(Problem, usize)> {
    let line = problem(&[axis(70, 5, 1, 11, false)], 64).with_heads(6).with_heads_kv(2);
    let plane = [axis(9, 5, 1, 1, true), axis(13, 6, 2, 1, false)];
    let shared = |dim| problem(&plane, dim).with_heads(4).with_heads_kv(1).with_batch(1);
    vec![
        (line, 3),
        (shared(256).with_head_dim_v(40), 2),
        (shared(40).with_head_dim_v(72), 4),
        (shared(64).with_additional(70), 2),
        (
            problem(&[axis(90, 9, 1, 1, false)], 32).with_heads(4).with_heads_kv(2).with_bias(true),
            2,
        ),
    ]
}

fn in_turn(kinds: Vec<(Problem, usize)>) -> Vec<Case> {
    let turn = |(number, (problem, splits))| {
        let element = [Element::Bf16, Element::F16][number % 2];
        (problem, splits, element, Policy::ALL[number % Policy::ALL.len()])
    };
    kinds.into_iter().enumerate().map(turn).collect()
}

#[test]
fn slices_and_several_launches() {
    check_each(&in_turn(kinds()[..2].to_vec()), way);
}

#[test]
#[ignore = "minutes"]
fn every_kind_in_every_way() {
    let every = |(problem, splits): (Problem, usize)| {
        let of = move |element| Policy::ALL.map(|policy| (problem, splits, element, policy));
        [Element::Bf16, Element::F16].into_iter().flat_map(of)
    };
    let all: Vec<_> = kinds().into_iter().chain([(slanted(64), 2)]).flat_map(every).collect();
    check_each(&all, way);
}

/// A gradient that is infinite spoils what depends on it, and nothing else: rows of sums are computed again, too.
#[test]
fn sums_that_are_not_finite() {
    let case = (slanted(64), 2, Element::Bf16, Policy::Late);
    let Some(way) = way(&case) else { return };
    let (problem, _, element, _) = case;
    let client = client();
    let mut data = Data::random(&problem, 7, format(element).round);
    // Of the first query, whose tile has keys that it does not see.
    data.dout[5] = f64::INFINITY;
    let exact = compute(&problem, &data, format(element).round);
    let saved = upload_all(&client, element, &problem, &data, &exact);
    for (name, gradient) in OnMachine::gradients(&client, element, &way, &problem, &saved) {
        let expected = expected(&exact, name);
        let wrong = gradient.iter().zip(expected).position(|(a, e)| a.is_finite() != e.is_finite());
        assert_eq!(wrong, None, "{name}");
    }
}

/// The tests can fail: one of the sums is left out.
#[test]
fn a_split_left_out_is_found() {
    let case = (slanted(64), 2, Element::Bf16, Policy::Late);
    let Some(way) = way(&case) else { return };
    let change =
        Change { from: "split < params.splits; split++", to: "split < params.splits - 1; split++" };
    let way = Way { machine: changed(&way.machine, change), ..way };
    let (problem, _, element, _) = case;
    let data = Data::random(&problem, 3, format(element).round);
    let result = check_data::<OnMachine>(&client(), element, &way, &problem, &data);
    assert!(result.is_err(), "the sums of some heads are not missed");
}
