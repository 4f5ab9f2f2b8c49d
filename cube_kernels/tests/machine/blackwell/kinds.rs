//! Problems of every kind under every policy, and the check of the first use.

use burn_natten_kernels::native::Element;
use burn_natten_kernels::native::sm100;
use burn_natten_kernels::{Axis, KernelError, Problem};
use test_support::{axis, problem};

use super::ways::{Case, blackwell, check, in_turn};
use crate::run::{Change, Machine, Policy};
use crate::ways::client;

/// Several samples, heads of queries that share one of keys, tiles, launches; strides, dilations, causality, queries elsewhere than
/// keys, vectors of two lengths, additional tokens.
fn problems() -> Vec<Problem> {
    let plane = [axis(13, 5, 2, 1, true), axis(19, 7, 1, 2, false)];
    let space = [axis(5, 3, 1, 1, false), axis(7, 4, 2, 1, true), axis(10, 5, 1, 2, false)];
    let shared = |problem: Problem| problem.with_heads(4).with_heads_kv(2);
    let blind = Axis::dense(40, 13, true).with_origin(-27);
    vec![
        problem(&plane, 128).with_head_dim_v(40).with_batch(1),
        shared(problem(&space, 64)).with_additional(70).with_batch(1),
        problem(&[axis(303, 21, 1, 1, true)], 64).with_batch(1),
        shared(problem(&[Axis::dense(150, 150, true)], 128)),
        problem(&[axis(203, 9, 3, 11, true)], 64).with_batch(1),
        problem(&[Axis::dense(70, 300, true).with_origin(0)], 128).with_batch(1),
        problem(&[axis(9, 5, 1, 1, false), blind], 64).with_batch(1),
        problem(&space, 128).with_head_dim_v(72),
        problem(&space[1..], 40).with_head_dim_v(72).with_batch(1),
        problem(&[axis(600, 129, 1, 1, false)], 8).with_additional(9),
        problem(&[axis(21, 9, 1, 1, false), axis(40, 13, 1, 1, false)], 128).with_batch(1),
    ]
}

/// Vectors of which a sum takes half of tensor memory.
fn wide() -> Vec<Problem> {
    let plane = [axis(13, 5, 2, 1, true), axis(19, 7, 1, 2, false)];
    let space = [axis(5, 3, 1, 1, false), axis(7, 4, 2, 1, true), axis(10, 5, 1, 2, false)];
    let shared = |problem: Problem| problem.with_heads(4).with_heads_kv(2).with_batch(1);
    vec![
        shared(problem(&plane, 256)),
        problem(&[axis(300, 150, 1, 1, true)], 136).with_head_dim_v(200),
        shared(problem(&space, 192)).with_additional(70),
        problem(&[Axis::dense(150, 400, true)], 8).with_head_dim_v(256),
        problem(&[Axis::dense(200, 150, false)], 256).with_head_dim_v(8).with_additional(200),
        problem(&[axis(203, 9, 3, 11, true)], 160).with_batch(1),
        problem(&[Axis::dense(40, 13, true).with_origin(-27)], 256).with_batch(1),
    ]
}

#[test]
fn long_vectors() {
    check(&in_turn(wide().into_iter().take(2)));
}

#[test]
#[ignore = "minutes"]
fn long_vectors_in_every_way() {
    let cases = wide().into_iter().flat_map(|problem| {
        let of = move |element| Policy::ALL.map(|policy| Case::new(problem, element, policy));
        [Element::Bf16, Element::F16].into_iter().flat_map(of)
    });
    check(&cases.collect::<Vec<_>>());
}

#[test]
fn a_few_of_every_kind() {
    check(&in_turn(problems().into_iter().take(2)));
}

#[test]
#[ignore = "minutes"]
fn every_kind_in_every_way() {
    let cases = problems().into_iter().flat_map(|problem| {
        let of = move |element| Policy::ALL.map(|policy| Case::new(problem, element, policy));
        [Element::Bf16, Element::F16].into_iter().flat_map(of)
    });
    check(&cases.collect::<Vec<_>>());
}

/// The kernels pass the check of their first use, and others do not.
#[test]
#[ignore = "minutes"]
fn the_check_of_the_first_use() {
    let Some(machine) = blackwell(Policy::Late) else { return };
    let client = client();
    let passed = machine.run(|| sm100::check::compare(&client, Element::Bf16));
    assert_eq!(passed, Ok(Ok(())));
    // A mask that hides one column too few, and gradients by another logsumexp.
    let mask = Change { from: "max_(end, 0)", to: "max_(end + 1, 0)" };
    let lse = Change { from: "row.x = found.z", to: "row.x = found.z + 1.f" };
    for change in [mask, lse] {
        let machine = Machine { change: Some(change), ..machine };
        let failed = machine.run(|| sm100::check::compare(&client, Element::F16));
        assert!(matches!(failed, Ok(Err(KernelError::Check(_)))), "{change:?}: {failed:?}");
    }
}
