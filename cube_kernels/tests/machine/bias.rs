//! The gradient of a relative position bias: what a CTA keeps from tile to tile has to be found again where tiles lie otherwise.
//!
//! The machine has two multiprocessors: a CTA has tiles of several samples, heads, places and dilation groups.

use burn_natten_kernels::native::sm90::{Element, Pass, backward_candidates, unsupported};
use burn_natten_kernels::{Axis, Problem};
use cubecl::client::Client;
use rand::{Rng, SeedableRng, rngs::StdRng};
use test_support::compare::{for_each_case, format};
use test_support::oracle::compute;
use test_support::tier::{BackwardTier, check_data, upload_all};
use test_support::{Data, axis};

use crate::run::{Machine, Policy};
use crate::ways::{OnMachine, Way, client, hopper, planned_backward};

/// A problem, and the slots for its sums, if other than it gets.
type Case = (Problem, Element, Policy, Option<usize>);

/// The planned kernels, but for slots.
fn way(problem: &Problem, element: Element, policy: Policy, slots: Option<usize>) -> Option<Way> {
    let machine = hopper(policy)?;
    let mut plan = planned_backward(problem, element);
    for schedule in &mut plan.queries {
        schedule.sum_slots = slots.unwrap_or(schedule.sum_slots);
    }
    Some(Way { machine, plan })
}

fn check(cases: &[Case]) {
    let client = client();
    for_each_case(cases, |(problem, element, policy, slots), seed| {
        let Some(way) = way(problem, *element, *policy, *slots) else { return Ok(0.0) };
        let data = Data::random(problem, seed, format(*element).round);
        check_data::<OnMachine>(&client, *element, &way, problem, &data)
    });
}

/// With one slot, which each step of a tile takes from the one before. An error says what is found.
pub fn check_one_slot(machine: &Machine, client: &Client) -> Result<(), String> {
    let (problem, element) = (problem(&wide()), Element::Bf16);
    let mut way = Way { machine: *machine, plan: planned_backward(&problem, element) };
    way.plan.queries.iter_mut().for_each(|schedule| schedule.sum_slots = 1);
    let data = Data::random(&problem, 3, format(element).round);
    check_data::<OnMachine>(client, element, &way, &problem, &data).map(|_| ())
}

fn plane() -> [Axis; 2] {
    [axis(19, 7, 1, 1, false), axis(13, 5, 1, 1, false)]
}

/// Windows that are longer than a block: each block of a tile has a slot of its own.
fn wide() -> [Axis; 2] {
    [axis(27, 9, 1, 1, false), axis(23, 8, 1, 1, false)]
}

fn problem(axes: &[Axis]) -> Problem {
    Problem::new(axes, 2, 32).with_batch(5).with_bias(true)
}

/// Tiles that lie alike, and those at edges, of which one has fewer steps; heads that share keys.
#[test]
fn samples_and_edges() {
    let shared = problem(&plane()).with_heads(4).with_heads_kv(2).with_batch(3);
    check(&[(shared, Element::Bf16, Policy::Late, None)]);
}

/// Tiles that see more blocks than there are slots, and those that have one for each.
#[test]
fn fewer_slots_than_steps() {
    let cases = [Some(1), Some(3), None]
        .map(|slots| (problem(&wide()).with_batch(2), Element::F16, Policy::Early, slots));
    check(&cases);
}

/// Blocks that share a slot along all axes or some, of boxes, of rows that follow each other along z, and behind causal axes.
#[test]
fn shared_slots() {
    let causal = [axis(19, 7, 1, 1, true), axis(21, 8, 1, 1, false)];
    let long = [axis(5, 3, 1, 1, false), axis(9, 3, 1, 1, true), axis(14, 6, 1, 1, false)];
    let flat = [axis(11, 3, 1, 1, false), axis(3, 2, 1, 1, false), axis(18, 7, 1, 2, false)];
    let short = |axes: &[Axis]| problem(axes).with_batch(2);
    check(&[
        (short(&causal), Element::Bf16, Policy::Random(3), None),
        (short(&long), Element::Bf16, Policy::Late, None),
        (short(&flat), Element::F16, Policy::Early, None),
    ]);
}

/// Groups of different lengths, and windows that are shared.
#[test]
fn dilation_and_strides() {
    let axes = [axis(23, 5, 2, 3, false), axis(17, 4, 1, 2, false)];
    check(&[(problem(&axes).with_batch(2), Element::Bf16, Policy::Random(2), None)]);
}

#[test]
fn bits_are_the_same_in_every_order() {
    let (problem, element) = (problem(&plane()), Element::Bf16);
    let data = Data::random(&problem, 3, format(element).round);
    let exact = compute(&problem, &data, format(element).round);
    let client = client();
    let saved = upload_all(&client, element, &problem, &data, &exact);
    let results = Policy::ALL.map(|policy| {
        let way = way(&problem, element, policy, None)?;
        Some(OnMachine::gradients(&client, element, &way, &problem, &saved))
    });
    assert!(results.iter().all(|result| *result == results[0]));
}

fn random_axis(rng: &mut StdRng, rank: usize) -> Axis {
    let (longest, widest) = [(400, 90), (27, 13), (12, 5)][rank - 1];
    let length = rng.random_range(4..=longest);
    let kernel = rng.random_range(2..=length.min(widest));
    let dilation = if rng.random() { 1 } else { rng.random_range(1..=(length / kernel).min(9)) };
    let stride = if rng.random_bool(0.7) { 1 } else { rng.random_range(1..=kernel) };
    axis(length, kernel, stride, dilation, rng.random_bool(0.25))
}

fn random_case(rng: &mut StdRng, rank: usize) -> Case {
    let axes: Vec<_> = (0..rank).map(|_| random_axis(rng, rank)).collect();
    let dim = [8, 24, 32, 64, 72, 128, 192][rng.random_range(0..7)];
    let heads_kv = rng.random_range(1..=2);
    let additional = if rng.random_bool(0.25) { rng.random_range(1..=140) } else { 0 };
    let problem = Problem::new(&axes, heads_kv * rng.random_range(1..=2), dim)
        .with_heads_kv(heads_kv)
        .with_batch(rng.random_range(1..=4))
        .with_additional(additional)
        .with_bias(true);
    let element = if rng.random() { Element::F16 } else { Element::Bf16 };
    let policy = Policy::ALL[rng.random_range(0..3)];
    let slots = if rng.random_bool(0.6) { None } else { Some(rng.random_range(1..=3)) };
    (problem, element, policy, slots)
}

/// So many of each rank: `BURN_NATTEN_TEST_PROBLEMS`, of the seed `BURN_NATTEN_TEST_SEED`.
#[test]
#[ignore = "minutes"]
fn random_problems() {
    let number =
        |name, usual| std::env::var(name).map_or(usual, |text| text.parse().expect("a number"));
    let mut rng = StdRng::seed_from_u64(number("BURN_NATTEN_TEST_SEED", 0));
    let count = number("BURN_NATTEN_TEST_PROBLEMS", 10);
    let mut cases = vec![];
    while cases.len() < 3 * count as usize {
        let case = random_case(&mut rng, cases.len() % 3 + 1);
        if unsupported(&case.0).is_none() {
            cases.push(case);
        }
    }
    check(&cases);
}

/// Tiles and shapes of CTA that are not the planner's first choice.
#[test]
#[ignore = "minutes"]
fn every_tile() {
    let client = client();
    let axes = [axis(7, 3, 1, 1, false), axis(9, 3, 1, 1, false), axis(12, 5, 1, 1, false)];
    for axes in [&axes[..], &axes[1..]] {
        let problem = problem(axes).with_batch(2);
        let data = Data::random(&problem, 7, format(Element::Bf16).round);
        let Some(mut way) = way(&problem, Element::Bf16, Policy::Late, None) else { return };
        let chosen = way.plan.queries[0];
        let all = backward_candidates(&problem, Element::Bf16, Pass::Queries, chosen.gradients);
        for schedule in all {
            way.plan.queries = vec![schedule];
            check_data::<OnMachine>(&client, Element::Bf16, &way, &problem, &data)
                .unwrap_or_else(|error| panic!("{schedule}: {error}"));
        }
    }
}
