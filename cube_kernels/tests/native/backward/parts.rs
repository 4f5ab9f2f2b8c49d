//! Gradients that come through one of the two results alone.

use burn_natten_kernels::native::sm90::Element;
use test_support::compare::{device, for_each_case, format};
use test_support::tier::check_data;
use test_support::{Data, axis, problem};

use super::run::planned;
use crate::ways::Native;

/// With `clear` applied to what comes in.
fn check(clear: fn(&mut Data)) {
    let Some(client) = device() else { return };
    let space = [axis(5, 3, 1, 1, false), axis(9, 4, 2, 1, false), axis(10, 5, 1, 2, true)];
    let problems = [
        problem(&[axis(203, 21, 1, 1, true)], 64),
        problem(&space[1..], 128).with_heads(4).with_additional(70),
        problem(&space, 64),
        problem(&space, 256).with_head_dim_v(40),
    ];
    let both = |problem| [Element::F16, Element::Bf16].map(|element| (problem, element));
    let cases: Vec<_> = problems.into_iter().flat_map(both).collect();
    for_each_case(&cases, |(problem, element), seed| {
        let mut data = Data::random(problem, seed, format(*element).round);
        clear(&mut data);
        check_data::<Native>(&client, *element, &planned(problem, *element), problem, &data)
    });
}

#[test]
fn through_the_output() {
    check(|data| data.dlse.fill(0.0));
}

#[test]
fn through_the_logsumexp() {
    check(|data| data.dout.fill(0.0));
}

#[test]
fn through_neither() {
    check(|data| {
        data.dout.fill(0.0);
        data.dlse.fill(0.0);
    });
}
