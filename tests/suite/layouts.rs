//! Inputs and cotangents that are views: permuted, sliced, expanded.

use burn::tensor::{DType, Tensor};
use burn_natten::{NeighborhoodOptions, try_na1d, try_na2d};

use super::relations::{block, plain, same, window};
use crate::support::check::{self, close};
use crate::support::devices;
use crate::support::problem::Problem;
use crate::support::run::{Loss, Setup, run, tensor, values};

/// Query, key and value as three strided views of one tensor, and a permuted cotangent.
#[test]
fn strided_inputs_are_like_contiguous_ones() {
    for device in devices() {
        let problem =
            Problem { heads_kv: 2, dim_v: 5, ..plain(vec![window(4, 3, 2), window(5, 2, 1)]) };
        let inputs = problem.inputs(32);
        for strategy in device.strategies() {
            let setup = Setup::new(&device.device).strategy(strategy).loss(Loss::Both);
            let want = run(&problem, &inputs, &setup).expect("valid");
            let ad = device.device.clone().autodiff();
            let shape = [2, 4, 5, 2, 5];
            // Memory order [space, 3, heads, batch, head_dim].
            let leaves = [&inputs.query, &inputs.key, &inputs.value]
                .map(|x| tensor::<5>(x, shape, &ad, DType::F32).require_grad());
            let stacked = Tensor::stack::<6>(leaves.to_vec(), 0).permute([2, 3, 0, 4, 1, 5]);
            let stacked = stacked * 1.0;
            let [q, k, v] = [0, 1, 2].map(|i| {
                let part = stacked.clone().slice([0..4, 0..5, i..i + 1]).squeeze_dim::<5>(2);
                part.permute([3, 0, 1, 2, 4])
            });
            assert_eq!(q.dims(), shape);
            let options =
                NeighborhoodOptions::<2>::new([3, 2]).with_stride([2, 1]).with_strategy(strategy);
            let output = try_na2d(q, k, v, options).expect("valid");
            // Cotangents that arrive permuted, as after a permutation of the outputs.
            let grad_out = tensor::<5>(&inputs.grad_out, shape, &ad, DType::F32);
            let grad_lse = tensor::<4>(&inputs.grad_lse, [2, 4, 5, 2], &ad, DType::F32);
            let flip = |x: Tensor<5>| x.permute([4, 2, 0, 3, 1]);
            let loss = (flip(output.out.clone()) * flip(grad_out)).sum()
                + (output.logsumexp.clone().permute([3, 1, 0, 2]) * grad_lse.permute([3, 1, 0, 2]))
                    .sum();
            let gradients = loss.backward();
            let mut got = want.clone();
            (got.out, got.lse) = (values(output.out), values(output.logsumexp));
            let all = got.gradients.as_mut().expect("backward");
            let [dq, dk, dv] = leaves.map(|leaf| values(leaf.grad(&gradients).expect("tracked")));
            (all.query, all.key, all.value) = (dq, dk, dv);
            same(&format!("{} {strategy:?}", device.name), &got, &want);
        }
    }
}

/// Inputs and cotangents that begin inside a larger buffer.
#[test]
fn slices_are_like_tensors_of_their_own() {
    for device in devices() {
        let whole = Problem { batch: 3, heads_kv: 2, ..plain(vec![window(7, 3, 2)]) };
        let whole = Problem { additional: Some(2), ..whole };
        let inputs = whole.inputs(36);
        let one = Problem { batch: 1, ..whole };
        for strategy in device.strategies() {
            let setup = Setup::new(&device.device).strategy(strategy).loss(Loss::Out);
            let want = run(&one, &block(&inputs, 3, 1), &setup).expect("valid");
            let ad = device.device.clone().autodiff();
            let leaf = |x: &[f64], tokens: usize, dim: usize| {
                tensor::<4>(x, [3, tokens, 2, dim], &ad, DType::F32).require_grad()
            };
            let leaves = [
                leaf(&inputs.query, 7, 5),
                leaf(&inputs.key, 7, 5),
                leaf(&inputs.value, 7, 4),
                leaf(&inputs.more_keys, 2, 5),
                leaf(&inputs.more_values, 2, 4),
            ];
            let [q, k, v, more_keys, more_values] = leaves.clone().map(|x| x.slice(1..2));
            let options = NeighborhoodOptions::<1>::new(3)
                .with_stride(2)
                .with_strategy(strategy)
                .with_additional_kv(more_keys, more_values);
            let output = try_na1d(q, k, v, options).expect("valid");
            let rest = Tensor::<4>::zeros([1, 7, 2, 4], (&ad, DType::F32));
            let out = Tensor::cat(vec![rest.clone(), output.out.clone(), rest], 0);
            let grad_out = tensor::<4>(&inputs.grad_out, [3, 7, 2, 4], &ad, DType::F32);
            let gradients = (out * grad_out).sum().backward();
            let mut got = want.clone();
            (got.out, got.lse) = (values(output.out), values(output.logsumexp));
            let all = got.gradients.as_mut().expect("backward");
            let [query, key, value, more_keys, more_values] =
                leaves.map(|leaf| values(leaf.grad(&gradients).expect("tracked").slice(1..2)));
            (all.query, all.key, all.value) = (query, key, value);
            (all.more_keys, all.more_values) = (more_keys, more_values);
            same(&format!("{} {strategy:?}", device.name), &got, &want);
        }
    }
}

/// A tensor expanded along the batch has a stride of zero.
#[test]
fn expanded_inputs_are_like_repeated_ones() {
    for device in devices() {
        let problem = Problem { heads_kv: 2, ..plain(vec![window(7, 3, 1)]) };
        let one = Problem { batch: 1, ..problem.clone() };
        let (few, mut all) = (one.inputs(33), problem.inputs(34));
        (all.key, all.value) = (few.key.repeat(2), few.value.repeat(2));
        let want = run(&problem, &all, &Setup::new(&device.device)).expect("valid");
        let make = |x: &[f64], shape| tensor::<4>(x, shape, &device.device, DType::F32);
        let query = make(&all.query, [2, 7, 2, 5]);
        let key = make(&few.key, [1, 7, 2, 5]).expand([2, 7, 2, 5]);
        let value = make(&few.value, [1, 7, 2, 4]).expand([2, 7, 2, 4]);
        let options = NeighborhoodOptions::<1>::new(3);
        let output = try_na1d(query, key, value, options).expect("valid");
        close(device.name, &values(output.out), &want.out, check::F32);
        close(device.name, &values(output.logsumexp), &want.lse, check::F32);
    }
}
