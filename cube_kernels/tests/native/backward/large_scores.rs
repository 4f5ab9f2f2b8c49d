//! Scores so large that most rows give one key nearly all the weight.
//!
//! Not as large as the forward pass's: weights are `exp(score - logsumexp)` here, without a sum that they
//! are divided by, and f32 scores of 1000 are known to no better than 1e-4.

use burn_natten_kernels::Axis;
use burn_natten_kernels::native::sm90::Element;
use test_support::compare::{device, for_each_case, format};
use test_support::oracle::{compute, visible};
use test_support::tier::{BackwardTier, check_data, upload_all};
use test_support::{Data, axis, problem};

use super::run::planned;
use crate::ways::Native;

/// Scores have a standard deviation of about 1.8 for inputs as they are.
#[test]
fn scaled_queries() {
    let Some(client) = device() else { return };
    let space = [axis(5, 3, 1, 1, false), axis(9, 4, 1, 1, false), axis(10, 5, 1, 1, true)];
    let problems = [
        problem(&[axis(203, 65, 1, 2, true)], 128),
        problem(&space[1..], 128),
        problem(&space, 64).with_additional(70),
        problem(&space, 256).with_head_dim_v(32),
    ];
    let both = |problem| [(problem, Element::F16, 8.0), (problem, Element::Bf16, 64.0)];
    let cases: Vec<_> = problems.into_iter().flat_map(both).collect();
    for_each_case(&cases, |(problem, element, factor), seed| {
        // A power of two, so that queries stay what they were rounded to.
        let mut data = Data::random(problem, seed, format(*element).round);
        data.query.iter_mut().for_each(|x| *x *= factor);
        check_data::<Native>(&client, *element, &planned(problem, *element), problem, &data)
    });
}

/// Raw scores of 2^28, and unseen ones that a one-hot mask takes there: no key gets a gradient that nobody sees. How
/// large the others are is beyond f32.
#[test]
fn scores_that_come_through_the_mask() {
    let Some(client) = device() else { return };
    let plane = [Axis::dense(5, 21, true).with_origin(0), axis(11, 5, 2, 1, false)];
    for dim in [64, 128] {
        let problem = problem(&plane, dim);
        let mut is_seen = vec![false; problem.keys()];
        for query in 0..problem.queries() {
            visible(&problem, query).into_iter().for_each(|key| is_seen[key] = true);
        }
        for element in [Element::F16, Element::Bf16] {
            let mut data = Data::random(&problem, 12, format(element).round);
            // Two products each: 2^28, and 57344^2, which is what a mask takes off, more than that.
            let set = |vector: &mut [f64], value: f64| {
                vector.fill(0.0);
                vector[..2].fill(value);
            };
            // Gradients of such keys within the range of f16.
            data.dout.iter_mut().for_each(|x| *x *= 0.5f64.powi(8));
            data.query.chunks_mut(dim).for_each(|vector| set(vector, 32768.0));
            for (row, vector) in data.key.chunks_mut(dim).enumerate() {
                let key = row / problem.heads_kv % problem.keys();
                set(vector, if is_seen[key] { 4096.0 } else { 54272.0 });
            }
            let exact = compute(&problem, &data, format(element).round);
            let inputs = upload_all(&client, element, &problem, &data, &exact);
            let plan = planned(&problem, element);
            let gradients = Native::gradients(&client, element, &plan, &problem, &inputs);
            for (name, gradient) in &gradients {
                assert!(gradient.iter().all(|x| x.is_finite()), "{name}: {element:?}, {problem:?}");
            }
            for (name, gradient) in &gradients[1..] {
                for (row, vector) in gradient.chunks(dim).enumerate() {
                    let key = row / problem.heads_kv % problem.keys();
                    let is_zero = vector.iter().all(|x| *x == 0.0);
                    assert!(
                        is_seen[key] || is_zero,
                        "{name} of key {key}: {element:?}, {problem:?}"
                    );
                }
            }
        }
    }
}
