//! All sequences of a packed batch in one launch a pass.

use burn_natten_kernels::native::programs_loaded;
use burn_natten_kernels::native::sm90::{
    Element, backward_packed, forward_packed, planned_packed, planned_packed_backward,
};
use burn_natten_kernels::{Axis, Problem};
use cubecl::client::Client;
use test_support::compare::{device, format};
use test_support::packed::{
    OF_A_KIND, Unwritten, check_backward, check_forward, check_memory, images, numbers, packed,
    random, texts, videos,
};

const ELEMENTS: [Element; 2] = [Element::F16, Element::Bf16];

fn check(client: &Client, element: Element, problems: &[Problem]) {
    check_forward(client, element, problems, |packed, inputs, outputs| {
        forward_packed(client, packed, element, None, inputs, outputs)
    });
    check_backward(client, element, problems, |packed, inputs, outputs| {
        backward_packed(client, packed, element, None, inputs, outputs)
    });
}

#[test]
fn sequences_of_every_kind() {
    let Some(client) = device() else { return };
    for element in ELEMENTS {
        let like = Problem::new([Axis::UNIT], 4, 64).with_heads_kv(2);
        check(&client, element, &texts(like.with_head_dim_v(32)));
        check(&client, element, &texts(Problem::new([Axis::UNIT], 2, 128)));
        check(&client, element, &texts(Problem::new([Axis::UNIT], 1, 256)));
        check(&client, element, &images(like));
        check(&client, element, &videos(like.with_head_dim_v(40)));
        check(&client, element, &videos(Problem::new([Axis::UNIT], 1, 128)));
    }
}

#[test]
fn random_batches() {
    let Some(client) = device() else { return };
    // Some have vectors or dilations that Hopper has no kernels for.
    let is_covered = |problems: &Vec<Problem>| {
        let packed = packed(problems);
        planned_packed(&packed, Element::F16, None).is_ok()
            && planned_packed_backward(&packed, Element::F16, None).is_ok()
    };
    let numbers = numbers(12);
    let batches = || numbers.iter().map(|number| (number, random(*number)));
    let covered = batches().filter(|(_, problems)| is_covered(problems)).count();
    println!("{covered} of {} batches", numbers.len());
    for (number, problems) in batches().filter(|(_, problems)| is_covered(problems)) {
        // One type for all of a kind, whose kernels are compiled once.
        check(&client, ELEMENTS[number / OF_A_KIND % ELEMENTS.len()], &problems);
    }
    assert!(covered > 0, "none of {numbers:?}");
}

/// Sequences of the same shape in batches that differ in what their axes have: each has candidates of its own. No device is needed.
#[test]
fn sequences_of_one_shape_in_different_batches() {
    for number in 1700..1860 {
        let packed = packed(&random(number));
        let forward = planned_packed(&packed, Element::F16, None).map(|parts| parts.len());
        let backward = planned_packed_backward(&packed, Element::F16, None).map(|all| all.len());
        assert_eq!(forward.is_ok(), backward.is_ok(), "{number}: {forward:?}, {backward:?}");
    }
}

/// To be run alone: programs are those of the process.
#[test]
#[ignore = "counts what its process has compiled"]
fn a_thousand_sets_of_lengths_have_the_same_kernels_and_memory() {
    let Some(client) = device() else { return };
    let element = Element::Bf16;
    let programs = std::cell::RefCell::new(vec![]);
    check_memory(&client, format(element), |unwritten| {
        let Unwritten { packed, saved, gradients } = unwritten;
        forward_packed(&client, packed, element, None, &saved.operands, &unwritten.outputs())
            .expect("launched");
        backward_packed(&client, packed, element, None, saved, gradients).expect("launched");
        programs.borrow_mut().push(programs_loaded());
    });
    let programs = programs.into_inner();
    println!("{} programs after a set of lengths, {} after all", programs[0], programs[999]);
    assert!(programs[0] > 0 && programs[999] <= 2 * programs[0], "lengths compile programs");
    assert_eq!(programs[100], programs[999], "lengths compile programs");
}
