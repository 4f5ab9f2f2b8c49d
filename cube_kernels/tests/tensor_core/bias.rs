//! A relative position bias, and its gradient.

use burn_natten_kernels::tensor_core::{Capability, plan_backward, widest_vector};
use burn_natten_kernels::{Axis, Problem};
use rand::Rng;
use test_support::compare::{device, for_each_case, format};
use test_support::oracle::compute;
use test_support::tier::{self, BackwardTier, check_forward, upload_all};
use test_support::{Data, axis, problem};

use crate::attend;
use crate::backward::run::{any, plans};
use crate::random::cases;
use crate::ways::{TensorCore, elements, half};

/// The same with a bias, and with queries where the keys are.
fn biased(problem: Problem) -> Problem {
    let axes = problem.axes.map(|of| match of == Axis::UNIT {
        true => of,
        false => {
            let length = of.queries.max(4);
            let kernel = of.kernel_size.clamp(2, length);
            let dilation = of.dilation.min(length / kernel);
            axis(length, kernel, of.stride.min(kernel), dilation, of.is_causal)
        }
    });
    problem.with_axes(axes).with_bias(true)
}

fn forward(rank: usize) {
    let Some(client) = device() else { return };
    let cases = cases(rank, |rng, problem, element| {
        let ways = if rng.random() { 2 } else { 1000 };
        (biased(problem), element, rng.random_range(0..ways))
    });
    for_each_case(&cases, |(problem, element, pick), seed| {
        attend::check(&client, *element, problem, *pick, seed)
    });
}

fn gradients(rank: usize) {
    let Some(client) = device() else { return };
    let cases = cases(rank, |rng, problem, element| {
        let problem = biased(problem);
        let mut plans = plans(&problem, element);
        let chosen = plans.swap_remove(rng.random_range(0..plans.len()));
        let plan = match rng.random() {
            true => chosen,
            false => any(&problem, element, chosen, rng.random_range(0..1000)),
        };
        (problem, element, plan)
    });
    tier::check_all::<TensorCore>(&client, &cases);
}

#[test]
fn forward_of_one_axis() {
    forward(1);
}

#[test]
fn forward_of_two_axes() {
    forward(2);
}

#[test]
fn forward_of_three_axes() {
    forward(3);
}

#[test]
fn gradients_of_one_axis() {
    gradients(1);
}

#[test]
fn gradients_of_two_axes() {
    gradients(2);
}

#[test]
fn gradients_of_three_axes() {
    gradients(3);
}

/// A part of the queries, and windows that cover the space.
#[test]
fn queries_elsewhere_than_keys() {
    let Some(client) = device() else { return };
    let part = |axis: Axis, queries| {
        let mut part = axis.with_origin(6);
        part.queries = queries;
        part
    };
    let problems = [
        problem(&[part(axis(90, 21, 1, 3, false), 70)], 64),
        problem(&[part(axis(23, 23, 1, 1, false), 11), axis(30, 5, 1, 1, true)], 32),
        problem(&[axis(9, 9, 1, 1, false), axis(12, 12, 1, 1, false)], 64).with_additional(5),
    ];
    for problem in problems.map(|problem| problem.with_bias(true)) {
        for element in elements(&client) {
            attend::check(&client, element, &problem, 0, 3).expect("close");
            for plan in plans(&problem, element) {
                tier::check::<TensorCore>(&client, element, &plan, &problem, 4).expect("close");
            }
        }
    }
}

/// Whole tiles are hidden where a tile's first keys are.
#[test]
fn an_infinite_bias_hides() {
    let Some(client) = device() else { return };
    let plane = [axis(19, 9, 1, 1, false), axis(21, 9, 1, 1, false)];
    for axes in [&plane[..], &[axis(203, 40, 1, 1, false)], &[axis(64, 64, 1, 1, false)]] {
        let problem = problem(axes, 64).with_bias(true);
        for element in elements(&client) {
            let mut data = Data::random(&problem, 6, format(element).round);
            // A query sees itself and those next to it.
            let [z, y, x] = problem.bias_extents();
            for (place, entry) in data.bias.iter_mut().enumerate() {
                let at = [place / (y * x) % z, place / x % y, place % x];
                let near = at.iter().zip([z, y, x]).all(|(at, of)| at.abs_diff(of / 2) <= 1);
                *entry = if near { *entry } else { f64::NEG_INFINITY };
            }
            let exact = compute(&problem, &data, |x| x);
            let inputs = attend::upload(&client, element, &problem, &data);
            for blueprint in attend::planned(&client, element, &problem, &inputs) {
                let result = attend::attend(&client, element, &blueprint, &problem, &inputs);
                check_forward("hidden", format(element), &problem, &exact, &result).expect("close");
            }
            for plan in plans(&problem, element) {
                tier::check_data::<TensorCore>(&client, element, &plan, &problem, &data)
                    .expect("close");
            }
        }
    }
}

/// By the kernel that sums it and, for more entries than there is shared memory for, by rows.
#[test]
fn gradients_are_the_same_bits_every_time() {
    let Some(client) = device() else { return };
    let few = [axis(40, 7, 1, 2, false), axis(56, 7, 1, 1, false)];
    // Four planes' sums of 139 x 143 entries are more than any GPU's shared memory.
    let many = [axis(70, 70, 1, 1, false), axis(72, 72, 1, 1, false)];
    let element = half(&client);
    for (axes, batch) in [(few, 8), (many, 1)] {
        let problem = problem(&axes, 64).with_batch(batch).with_bias(true);
        let data = Data::random(&problem, 9, format(element).round);
        let exact = compute(&problem, &data, format(element).round);
        let saved = upload_all(&client, element, &problem, &data, &exact);
        let capability = Capability::of(&client).expect("matrix units");
        let plan = plan_backward(&problem, &capability, widest_vector(&problem)).expect("a plan");
        if capability.has_run() {
            assert_eq!(plan.queries.bias_sums > 0, batch == 8, "{}", plan.queries);
        }
        let run = || TensorCore::gradients(&client, element, &plan, &problem, &saved);
        let first = run();
        for _ in 0..20 {
            assert!(run() == first);
        }
    }
}
