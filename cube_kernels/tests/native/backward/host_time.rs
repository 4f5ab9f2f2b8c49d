//! What a call costs the thread that makes it.

use std::time::Duration;

use burn_natten_kernels::native::sm90::{Element, backward};
use test_support::Data;
use test_support::compare::{device, format};
use test_support::oracle::compute;
use test_support::tier::upload_all;

use crate::host_time::{assert_below, demanding, enqueue_time};

/// Three launches.
#[test]
fn a_call_returns_at_once() {
    let Some(client) = device() else { return };
    let (problem, element) = (demanding(), Element::Bf16);
    let data = Data::random(&problem, 3, format(element).round);
    let exact = compute(&problem, &data, format(element).round);
    let inputs = upload_all(&client, element, &problem, &data, &exact);
    let outputs = format(element).poisoned_gradients(&client, &problem);
    let call = || backward(&client, &problem, element, None, &inputs, &outputs).expect("launched");
    assert_below("backward", enqueue_time(&client, call), Duration::from_micros(150));
}
