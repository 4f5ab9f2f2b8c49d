//! All sequences of a packed batch in one launch a pass.

use burn_natten_kernels::tensor_core::{Choice, backward_packed, forward_packed};
use burn_natten_kernels::{Axis, Problem};
use cubecl::client::Client;
use test_support::compare::device;
use test_support::packed::{check_backward, check_forward, images, numbers, random, texts, videos};

use crate::attend::dtype;
use crate::ways::{Element, elements};

fn check(client: &Client, element: Element, problems: &[Problem]) {
    let (dtype, choice) = (dtype(element), Choice::Modelled);
    check_forward(client, element, problems, |packed, inputs, outputs| {
        forward_packed(client, packed, dtype, choice, inputs, outputs)
    });
    check_backward(client, element, problems, |packed, inputs, outputs| {
        backward_packed(client, packed, dtype, choice, inputs, outputs)
    });
}

#[test]
fn sequences_of_every_kind() {
    let Some(client) = device() else { return };
    for element in elements(&client) {
        let like = Problem::new([Axis::UNIT], 4, 64).with_heads_kv(2);
        check(&client, element, &texts(like.with_head_dim_v(32)));
        check(&client, element, &texts(Problem::new([Axis::UNIT], 2, 128)));
        check(&client, element, &images(like));
        check(&client, element, &videos(like.with_head_dim_v(40)));
    }
}

#[test]
fn random_batches() {
    let Some(client) = device() else { return };
    let elements = elements(&client);
    for number in numbers(8) {
        check(&client, elements[number % elements.len()], &random(number));
    }
}
