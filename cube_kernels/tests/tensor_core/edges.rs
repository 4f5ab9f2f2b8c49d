//! Sizes at which something begins, ends or does not happen at all.

use burn_natten_kernels::Problem;
use test_support::compare::{device, for_each_case};
use test_support::test_edges;

use crate::attend::check;
use crate::ways::{Element, elements};

fn check_both(problems: Vec<Problem>) {
    let Some(client) = device() else { return };
    let known = elements(&client);
    let cases: Vec<_> = problems
        .into_iter()
        .flat_map(|problem| {
            let ways = [
                (Element::F16, 0),
                (Element::Bf16, 0),
                (Element::Tf32, 0),
                (Element::F16, 1),
                (Element::Bf16, 9),
                (Element::Tf32, 9),
            ];
            ways.map(|(element, pick)| (problem, element, pick))
        })
        .filter(|(_, element, _)| known.contains(element))
        .collect();
    for_each_case(&cases, |(problem, element, pick), seed| {
        check(&client, *element, problem, *pick, seed)
    });
}

test_edges!(check_both);
