//! Problems of every kind, both passes under every policy, held to the oracle as on a device.

use burn_natten_kernels::native::sm90::{Element, Schedule};
use burn_natten_kernels::{Axis, Problem};
use test_support::compare::{for_each_case, format};
use test_support::problems::samples;
use test_support::tier::check_products;
use test_support::{Data, axis, problem};

use crate::run::Policy;
use crate::ways::{
    OnMachine, Way, check_one_backward, check_one_forward, client, hopper, planned,
    planned_backward,
};

type Case = (Problem, Element, Policy);

/// Both passes.
fn check(cases: &[Case]) {
    let client = client();
    for_each_case(cases, |(problem, element, policy), seed| {
        let Some(machine) = hopper(*policy) else { return Ok(0.0) };
        let data = Data::random(problem, seed, format(*element).round);
        let schedule: Schedule = planned(problem, *element);
        let forward = check_one_forward(&machine, &client, problem, &schedule, &data)?;
        let backward = check_one_backward(&machine, &client, problem, *element, &data)?;
        Ok(forward.max(backward))
    });
}

/// The tiny launches that compute-sanitizer runs on a device.
pub fn tiny() -> Vec<Problem> {
    let lists = [
        samples::whole_blocks(),
        samples::by_position(),
        samples::one_hot(),
        samples::additional_tokens(),
        samples::several_launches(),
        samples::wide_heads(),
    ];
    lists.into_iter().flatten().map(|(problem, _)| problem).collect()
}

/// Several samples, heads of queries that share one of keys, tiles, launches; strides, dilations, causality, queries elsewhere than
/// keys, vectors of two lengths, a bias.
pub fn several() -> Vec<Problem> {
    let plane = [axis(13, 5, 2, 1, true), axis(19, 7, 1, 2, false)];
    let space = [axis(5, 3, 1, 1, false), axis(7, 4, 2, 1, true), axis(10, 5, 1, 2, false)];
    let shared = |problem: Problem| problem.with_heads(4).with_heads_kv(2);
    let blind = Axis::dense(40, 13, true).with_origin(-27);
    vec![
        shared(problem(&[axis(203, 21, 1, 1, true)], 64)),
        shared(problem(&[Axis::dense(150, 150, true)], 128)),
        problem(&[axis(203, 9, 3, 11, true)], 64).with_batch(1),
        problem(&[Axis::dense(70, 300, true).with_origin(0)], 128).with_batch(1),
        shared(problem(&plane, 64)),
        problem(&plane, 128).with_head_dim_v(40),
        problem(&[axis(9, 5, 1, 1, false), blind], 64).with_batch(1),
        shared(problem(&space, 64)).with_additional(70),
        problem(&space, 128).with_head_dim_v(72),
        problem(&space[1..], 40).with_head_dim_v(72).with_batch(1),
        problem(&space[1..], 256).with_batch(1),
        problem(&[axis(19, 5, 1, 1, false), axis(21, 7, 1, 1, false)], 64).with_bias(true),
        problem(&[axis(203, 21, 1, 1, true)], 64).with_bias(true).with_batch(1),
        shared(problem(&[Axis::dense(200, 330, false)], 64)),
    ]
}

/// A backward pass that is given products in place of outputs: whole and ragged tiles, queries that see nothing, two lengths of vectors.
#[test]
fn products_in_place_of_outputs() {
    let Some(machine) = hopper(Policy::Late) else { return };
    let blind = Axis::dense(40, 13, true).with_origin(-27);
    let problems = [
        problem(&[axis(130, 21, 1, 2, true)], 64).with_heads(4).with_heads_kv(2),
        problem(&[axis(9, 5, 1, 1, false), blind], 64).with_batch(1).with_head_dim_v(40),
    ];
    let cases: Vec<_> =
        problems.into_iter().flat_map(|p| [(p, Element::F16), (p, Element::Bf16)]).collect();
    for_each_case(&cases, |(problem, element), seed| {
        let way = Way { machine, plan: planned_backward(problem, *element) };
        check_products::<OnMachine>(&client(), *element, &way, problem, seed)
    });
}

/// Compressed attention: so many queries in a row see the same keys, each group one more.
fn slanted(groups: usize, keys: usize, queries: usize, dim: usize) -> Problem {
    problem(&[Axis::dense(groups, keys, true), Axis::dense(queries, 1, false)], dim)
}

/// Short and long vectors, tiles that are left half empty, queries of the last keys alone, a head of keys for two of queries.
fn slanted_edges() -> Vec<Problem> {
    vec![
        slanted(21, 21, 16, 128).with_batch(1),
        slanted(7, 150, 16, 64).with_heads(2).with_heads_kv(1).with_additional(70),
        slanted(3, 70, 64, 128).with_batch(1),
        slanted(75, 75, 2, 40).with_batch(1),
    ]
}

/// Both types and all policies in turn.
fn in_turn(problems: Vec<Problem>) -> Vec<Case> {
    let turn = |(number, problem)| {
        let element = [Element::Bf16, Element::F16][number % 2];
        (problem, element, Policy::ALL[number % Policy::ALL.len()])
    };
    problems.into_iter().enumerate().map(turn).collect()
}

fn every_way(problems: Vec<Problem>) -> Vec<Case> {
    let every = |problem| {
        let of = move |element| Policy::ALL.map(|policy| (problem, element, policy));
        [Element::Bf16, Element::F16].into_iter().flat_map(of)
    };
    problems.into_iter().flat_map(every).collect()
}

#[test]
fn tiny_launches() {
    check(&in_turn(tiny()));
}

#[test]
fn a_few_of_every_kind() {
    // The plane, dilated, strided and causal, the space with additional tokens, and a dense line of short vectors.
    let all = several();
    check(&in_turn(vec![all[0], all[4], all[7], all[13]]));
}

#[test]
fn edges_of_compressed_attention() {
    check(&in_turn(slanted_edges()[..2].to_vec()));
}

#[test]
#[ignore = "minutes"]
fn edges_of_compressed_attention_in_every_way() {
    check(&every_way(slanted_edges()));
}

#[test]
#[ignore = "minutes"]
fn tiny_launches_in_every_way() {
    check(&every_way(tiny()));
}

#[test]
#[ignore = "minutes"]
fn every_kind_in_every_way() {
    check(&every_way(several()));
}
