//! Both halves with a softmax in between are the fused operator, and so are their gradients.

use burn::tensor::activation::softmax;
use burn::tensor::{DType, Tensor};
use burn_natten::NeighborhoodOptions;
use proptest::prelude::*;

use super::run::Operators;
use crate::suite::properties::{cases_on, check_cases, neighborhoods};
use crate::support::TestDevice;
use crate::support::check::{F32, close_to_unit};
use crate::support::devices;
use crate::support::problem::{Axis, Inputs, Problem};
use crate::support::run::{options, tensor, values};

/// Output and gradients of the inputs, by an operator on them.
fn attend<const N: usize, const D: usize>(
    problem: &Problem,
    inputs: &Inputs,
    device: &TestDevice,
    is_fused: bool,
) -> Vec<Vec<f64>>
where
    NeighborhoodOptions<N>: Operators<D>,
{
    let device = device.device.clone().autodiff();
    let Problem { batch, heads, heads_kv, dim, dim_v, additional, .. } = *problem;
    let space: Vec<usize> = problem.axes.iter().map(Axis::queries).collect();
    let shape = |heads: usize, dim: usize| -> [usize; D] {
        [&[batch], space.as_slice(), &[heads, dim]].concat().try_into().expect("rank")
    };
    let leaf = |values: &[f64], heads, dim| {
        tensor::<D>(values, shape(heads, dim), &device, DType::F32).require_grad()
    };
    let more = |values: &[f64], dim| {
        let shape = additional.map(|count| [batch, count, heads_kv, dim]);
        shape.map(|shape| tensor::<4>(values, shape, &device, DType::F32).require_grad())
    };
    let query = leaf(&inputs.query, heads, dim);
    let [key, value] = [(&inputs.key, dim), (&inputs.value, dim_v)]
        .map(|(values, dim)| leaf(values, heads_kv, dim));
    let [keys, tokens] = [more(&inputs.more_keys, dim), more(&inputs.more_values, dim_v)];
    let options: NeighborhoodOptions<N> =
        options(problem).with_additional_kv(keys.clone(), tokens.clone());
    let out = match is_fused {
        true => options.fused(query.clone(), key.clone(), value.clone()),
        false => {
            let scores = options.clone().qk(query.clone(), key.clone()).expect("valid");
            options.av(softmax(scores, D - 1), value.clone()).expect("valid")
        }
    };
    let cotangent = tensor::<D>(&inputs.grad_out, out.dims(), &device, DType::F32);
    let tape = (out.clone() * cotangent).sum().backward();
    let mut results = vec![values(out)];
    let leaves = [query, key, value];
    results.extend(leaves.map(|leaf| values(leaf.grad(&tape).expect("tracked"))));
    for leaf in [keys, tokens].into_iter().flatten().filter(|leaf: &Tensor<4>| leaf.dims()[1] > 0) {
        results.push(values(leaf.grad(&tape).expect("tracked")));
    }
    results
}

#[test]
fn the_halves_are_the_whole() {
    for device in devices() {
        check_cases(cases_on(&device), (neighborhoods(), any::<u64>()), |(problem, seed)| {
            let inputs = problem.inputs(seed);
            let run = |is_fused| match problem.axes.len() {
                1 => attend::<1, 4>(&problem, &inputs, &device, is_fused),
                2 => attend::<2, 5>(&problem, &inputs, &device, is_fused),
                _ => attend::<3, 6>(&problem, &inputs, &device, is_fused),
            };
            for (index, (got, want)) in run(false).iter().zip(&run(true)).enumerate() {
                let what = format!("{} result {index} of {problem:?}", device.name);
                close_to_unit(&what, got, want, F32, 1.0);
            }
            Ok(())
        });
    }
}

/// Only what is tracked gets a gradient, alone as with others.
#[test]
fn a_single_input_may_be_tracked() {
    for device in devices() {
        let ad = device.device.clone().autodiff();
        let ones = |last: usize| Tensor::<4>::ones([1, 6, 2, last], &ad);
        let options = || NeighborhoodOptions::<1>::new(3).with_scale(1.0);
        for tracked in 0..2 {
            let track = |tensor: Tensor<4>, index| match index == tracked {
                true => tensor.require_grad(),
                false => tensor,
            };
            let (query, key) = (track(ones(4), 0), track(ones(4), 1));
            let scores = burn_natten::na1d_qk(query.clone(), key.clone(), options());
            let tape = scores.sum().backward();
            let found = [query, key]
                .map(|leaf| leaf.grad(&tape).map(|grad| grad.sum().into_scalar::<f32>()));
            assert_eq!(found.map(|grad| grad == Some(144.0)), [tracked == 0, tracked == 1]);
            assert!(found[1 - tracked].is_none());
            let (weights, value) = (track(ones(3), 0), track(ones(4), 1));
            let out = burn_natten::na1d_av(weights.clone(), value.clone(), options());
            let tape = out.sum().backward();
            let found = [weights, value]
                .map(|leaf| leaf.grad(&tape).map(|grad| grad.sum().into_scalar::<f32>()));
            assert_eq!(found.map(|grad| grad == Some(144.0)), [tracked == 0, tracked == 1]);
            assert!(found[1 - tracked].is_none());
        }
    }
}
