//! Exchanges that are queued one behind the other, before anything is read, with values that change from round to round.
//!
//! This is what arrives wrong between two GPUs without guards. On CPU devices, which pass tensors through the host, it holds the values
//! alone.

use burn::tensor::{Device, Tensor};
use burn_natten::parallel::exchange;

use super::{has_two_gpus, pair};
use crate::support::check::identical;
use crate::support::run::values;

/// Two devices, how many exchanges, and elements of each.
fn sizes() -> ([Device; 2], usize, usize) {
    let (rounds, elements) = if has_two_gpus() { (1000, 4 << 20) } else { (40, 1 << 10) };
    let one = || [Device::flex(), Device::flex()];
    (pair().unwrap_or_else(one), rounds, elements)
}

/// Other work on a device: allocates, writes, frees.
fn busy(device: &Device, elements: usize, round: usize) -> Tensor<1> {
    let noise = Tensor::<1>::full([elements], -1.0 - round as f64, device);
    (noise * 3.0).sum()
}

/// What differs from `expected` in a tensor, on its device: a number for each round, which is all that is read.
fn wrong(tensor: Tensor<1>, expected: f64) -> Tensor<1> {
    tensor.not_equal_elem(expected).int().sum().float()
}

/// Sources are temporaries that die at once, and memory on either side is written to by what comes next. `by` exchanges.
fn wrong_elements(by: impl Fn(Tensor<1>, &Device) -> Tensor<1>) -> Vec<f64> {
    let ([a, b], rounds, elements) = sizes();
    let mut seen = vec![];
    for round in 0..rounds {
        let source = Tensor::<1>::full([elements], round as f64, &a) + 0.5;
        let there = by(source, &b);
        let other = busy(&a, elements, round) * 0.0;
        let behind = busy(&b, elements, round) * 0.0;
        let doubled = there * 2.0;
        let back = by(doubled.clone(), &a);
        let expected = 2.0 * (round as f64 + 0.5);
        seen.push(wrong(back, expected) + other);
        seen.push(wrong(doubled, expected) + behind);
    }
    // Only now is anything read.
    seen.into_iter().map(|count| values(count)[0]).collect()
}

#[test]
fn queued_exchanges_arrive_as_they_were_sent() {
    let wrong = wrong_elements(|tensor, device| exchange(tensor, device));
    identical("wrong elements", &wrong, &vec![0.0; wrong.len()]);
}

/// A step of training for each round, all queued: the loss is on the second device, the weights on the first, so that gradients
/// travel back.
#[test]
fn queued_gradients_arrive_as_they_were_sent() {
    let ([a, b], rounds, elements) = sizes();
    let (a, b) = (a.autodiff(), b.autodiff());
    let mut gradients = vec![];
    for round in 0..rounds {
        let weights = Tensor::<1>::ones([elements], &a).require_grad();
        let there = exchange(weights.clone() * (round as f64 + 1.0), &b);
        let back = exchange(there * 3.0, &a);
        let tape = back.sum().backward();
        let gradient = weights.grad(&tape).expect("is tracked");
        let other = busy(&a.clone().inner(), elements, round) * 0.0;
        gradients.push(wrong(gradient, 3.0 * (round as f64 + 1.0)) + other);
    }
    let wrong: Vec<_> = gradients.into_iter().map(|count| values(count)[0]).collect();
    identical("wrong elements", &wrong, &vec![0.0; wrong.len()]);
}

/// Not a promise but a measurement: how many exchanges arrive wrong without the guards, and what the guards cost. `--ignored --nocapture`
/// on two GPUs.
#[test]
#[ignore = "measures, with BURN_NATTEN_TEST_CUDA_DEVICES=2"]
fn exchanges_without_guards() {
    type Exchange = fn(Tensor<1>, &Device) -> Tensor<1>;
    let bare: Exchange = |tensor, device| tensor.to_device(device);
    // Communicators are made at the first exchange.
    let ([a, b], ..) = sizes();
    values(exchange(exchange(Tensor::<1>::ones([1], &a), &b), &a));
    for (name, by) in [("with", exchange as Exchange), ("without", bare)] {
        let start = std::time::Instant::now();
        let seen = wrong_elements(by);
        let wrong = seen.iter().filter(|count| **count != 0.0).count();
        println!("{name} guards: {wrong} of {} wrong, {:?}", seen.len(), start.elapsed());
    }
}
