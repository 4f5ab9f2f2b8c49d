//! All sequences of a packed batch in one launch a pass.

use burn_natten_kernels::native::sm90::{
    Element, backward_packed, forward_packed, planned_packed, planned_packed_backward,
};
use burn_natten_kernels::{Axis, Problem};
use cubecl::client::Client;
use rand::{SeedableRng, rngs::StdRng};
use test_support::compare::device;
use test_support::packed::{check_backward, check_forward, images, packed, random, texts, videos};
use test_support::problems::seed;

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
    let mut rng = StdRng::seed_from_u64(seed() as u64);
    // Some have vectors or dilations that Hopper has no kernels for.
    let is_covered = |problems: &Vec<Problem>| {
        let packed = packed(problems);
        planned_packed(&packed, Element::F16, None).is_ok()
            && planned_packed_backward(&packed, Element::F16, None).is_ok()
    };
    let batches: Vec<_> =
        std::iter::repeat_with(|| random(&mut rng)).take(120).filter(is_covered).collect();
    assert!(batches.len() > 40, "{} of 120", batches.len());
    for (number, problems) in batches.iter().enumerate() {
        check(&client, ELEMENTS[number % ELEMENTS.len()], problems);
    }
}
