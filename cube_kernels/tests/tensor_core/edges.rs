//! Sizes at which something begins, ends or does not happen at all.

use burn_natten_kernels::Problem;
use burn_natten_kernels::native::sm90::Element;

use crate::attend::check;
use crate::run::{device, for_each_case};

fn check_both(problems: Vec<Problem>) {
    let Some(client) = device() else { return };
    let cases: Vec<_> = problems
        .into_iter()
        .flat_map(|problem| {
            [(problem, Element::F16, 0), (problem, Element::Bf16, 0), (problem, Element::Bf16, 7)]
        })
        .collect();
    for_each_case(&cases, |(problem, element, pick), seed| {
        check(&client, *element, problem, *pick, seed)
    });
}

test_edges!(check_both);
