//! Causal axes of unequal lengths, aligned at the start and at the end: queries that see nothing, keys that nothing sees.

use burn_natten_kernels::{Axis, Problem};

use test_support::compare::{device, for_each_case};
use test_support::tier::check_all;
use test_support::{axis, problem};

use crate::attend;
use crate::backward::run::plans;
use crate::ways::{TensorCore, elements};

fn problems() -> Vec<Problem> {
    let lengths = [(300, 70), (70, 300), (129, 1), (1, 129), (64, 192), (192, 64)];
    let mut problems: Vec<_> = lengths
        .into_iter()
        .flat_map(|(queries, keys)| {
            let at_end = Axis::dense(queries, keys, true);
            [at_end, at_end.with_origin(0)].map(|axis| problem(&[axis], 64))
        })
        .collect();
    let plane = [axis(9, 3, 1, 2, false), Axis::dense(90, 33, true)];
    problems.push(problem(&plane, 32).with_heads_kv(1));
    problems.push(problem(&[Axis::dense(200, 30, true)], 128).with_additional(5));
    problems.push(problem(&[Axis::dense(50, 200, true).with_origin(100)], 80));
    problems.push(problem(&[Axis::dense(200, 50, true).with_origin(-80)], 40));
    problems
}

#[test]
fn forward() {
    let Some(client) = device() else { return };
    let elements = elements(&client);
    let cases: Vec<_> = problems()
        .into_iter()
        .flat_map(|problem| {
            elements.iter().flat_map(move |element| [0, 1, 7].map(|i| (problem, *element, i)))
        })
        .collect();
    for_each_case(&cases, |(problem, element, pick), seed| {
        attend::check(&client, *element, problem, *pick, seed)
    });
}

#[test]
fn backward() {
    let Some(client) = device() else { return };
    let elements = elements(&client);
    let cases: Vec<_> = problems()
        .into_iter()
        .flat_map(|problem| elements.iter().map(move |element| (problem, *element)))
        .flat_map(|(problem, element)| {
            plans(&problem, element).into_iter().map(move |plan| (problem, element, plan))
        })
        .collect();
    check_all::<TensorCore>(&client, &cases);
}
