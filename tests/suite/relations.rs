//! Relations between results: what must be the same computed in two ways.

use burn::tensor::{DType, Tensor};
use burn_natten::{AttentionOptions, Strategy, merge_attentions, try_attention};
use proptest::prelude::*;

use super::properties::{cases_on, check_cases};
use crate::support::check::{self, close, close_to_unit, identical};
use crate::support::devices;
use crate::support::problem::{Axis, Inputs, Problem};
use crate::support::run::{Loss, Results, Setup, run, tensor, values};

pub(super) fn plain(axes: Vec<Axis>) -> Problem {
    Problem {
        batch: 2,
        heads: 2,
        heads_kv: 1,
        dim: 5,
        dim_v: 4,
        additional: None,
        scale: None,
        bias: false,
        axes,
    }
}

pub(super) fn window(length: usize, kernel_size: usize, stride: usize) -> Axis {
    Axis::Window { length, kernel_size, stride, dilation: 1, is_causal: false }
}

fn dense(queries: usize, keys: usize) -> Vec<Axis> {
    vec![Axis::Dense { queries, keys, is_causal: false }]
}

/// Outputs and gradients are the same, in units of at least 1.
pub(super) fn same(what: &str, got: &Results, want: &Results) {
    close_to_unit(&format!("{what} out"), &got.out, &want.out, check::F32, 1.0);
    close_to_unit(&format!("{what} lse"), &got.lse, &want.lse, check::F32, 1.0);
    let gradients = |results: &Results| results.gradients.clone().expect("backward");
    for ((name, got), (_, want)) in gradients(got).named().into_iter().zip(gradients(want).named())
    {
        close_to_unit(&format!("{what} {name}"), got, want, check::F32, 1.0);
    }
}

#[test]
fn a_window_of_the_whole_space_is_dense_attention() {
    for device in devices() {
        let lengths = prop::collection::vec(2..5usize, 1..=3);
        check_cases(cases_on(&device), (lengths, any::<u64>()), |(lengths, seed)| {
            let tokens = lengths.iter().product();
            let windows = lengths.iter().map(|length| window(*length, *length, 1)).collect();
            let (windows, dense) = (plain(windows), plain(dense(tokens, tokens)));
            let inputs = windows.inputs(seed);
            let setup = Setup::new(&device.device).loss(Loss::Both);
            let [a, b] = [&windows, &dense].map(|p| run(p, &inputs, &setup).expect("valid"));
            same(device.name, &a, &b);
            Ok(())
        });
    }
}

/// The tokens of block `index` out of tensors of `blocks` equal blocks.
pub(super) fn block(inputs: &Inputs, blocks: usize, index: usize) -> Inputs {
    let mut inputs = inputs.clone();
    for tensor in inputs.all_mut() {
        let size = tensor.len() / blocks;
        *tensor = tensor[index * size..][..size].to_vec();
    }
    inputs
}

#[test]
fn a_stride_of_the_kernel_size_is_blocked_attention() {
    for device in devices() {
        let sizes = (1..5usize, 2..7usize, any::<u64>());
        check_cases(cases_on(&device), sizes, |(blocks, size, seed)| {
            // One sample, so that the tokens of a block are next to each other.
            let windows = Problem { batch: 1, ..plain(vec![window(blocks * size, size, size)]) };
            let inputs = windows.inputs(seed);
            let setup = Setup::new(&device.device).loss(Loss::Both);
            let whole = run(&windows, &inputs, &setup).expect("valid");
            let one = Problem { batch: 1, ..plain(dense(size, size)) };
            let parts: Vec<Results> = (0..blocks)
                .map(|index| run(&one, &block(&inputs, blocks, index), &setup).expect("valid"))
                .collect();
            let mut expected = whole.clone();
            expected.out = parts.iter().flat_map(|part| part.out.clone()).collect();
            expected.lse = parts.iter().flat_map(|part| part.lse.clone()).collect();
            let gradient = |of: fn(&crate::support::problem::Gradients) -> &Vec<f64>| {
                let parts = parts.iter().map(|part| part.gradients.as_ref().expect("backward"));
                parts.flat_map(|gradients| of(gradients).clone()).collect::<Vec<f64>>()
            };
            let gradients = expected.gradients.as_mut().expect("backward");
            gradients.query = gradient(|gradients| &gradients.query);
            gradients.key = gradient(|gradients| &gradients.key);
            gradients.value = gradient(|gradients| &gradients.value);
            same(device.name, &whole, &expected);
            Ok(())
        });
    }
}

#[test]
fn merging_parts_of_the_keys_gives_the_whole() {
    for device in devices() {
        let sizes = (1..6usize, prop::collection::vec(1..6usize, 1..=5), any::<u64>());
        check_cases(cases_on(&device), sizes, |(queries, parts, seed)| {
            let keys = parts.iter().sum();
            let problem = plain(dense(queries, keys));
            let mut inputs = problem.inputs(seed);
            // Logits of some tens, so that parts differ in weight; a power of two stays an f32.
            inputs.query.iter_mut().for_each(|x| *x *= 8.0);
            let setup = Setup::new(&device.device).loss(Loss::Both);
            let whole = run(&problem, &inputs, &setup).expect("valid");
            let device = device.device.clone().autodiff();
            let make = |values: &[f64], shape| tensor::<4>(values, shape, &device, DType::F32);
            let query = make(&inputs.query, [2, queries, 2, 5]).require_grad();
            let key = make(&inputs.key, [2, keys, 1, 5]).require_grad();
            let value = make(&inputs.value, [2, keys, 1, 4]).require_grad();
            let (mut outs, mut lses, mut start) = (vec![], vec![], 0);
            for part in parts {
                let slice = |x: &Tensor<4>| x.clone().slice([0..2, start..start + part]);
                let (k, v) = (slice(&key), slice(&value));
                let output = try_attention(query.clone(), k, v, AttentionOptions::new());
                let output = output.expect("valid");
                outs.push(output.out);
                lses.push(output.logsumexp);
                start += part;
            }
            let before: Vec<_> = outs.iter().map(|out| values(out.clone())).collect();
            let (out, lse) = merge_attentions(outs.clone(), lses);
            let grad_out = make(&inputs.grad_out, out.dims());
            let grad_lse = tensor::<3>(&inputs.grad_lse, lse.dims(), &device, DType::F32);
            let loss = (out.clone() * grad_out).sum() + (lse.clone() * grad_lse).sum();
            let gradients = loss.backward();
            // The merge wrote to none of its inputs.
            for (before, out) in before.iter().zip(outs) {
                identical("an output that was merged", &values(out), before);
            }
            let mut merged = whole.clone();
            (merged.out, merged.lse) = (values(out), values(lse));
            let of = |tensor: &Tensor<4>| values(tensor.grad(&gradients).expect("tracked"));
            let all = merged.gradients.as_mut().expect("backward");
            (all.query, all.key, all.value) = (of(&query), of(&key), of(&value));
            same("merged", &merged, &whole);
            Ok(())
        });
    }
}

#[test]
fn samples_and_heads_are_independent() {
    for device in devices() {
        let problem = Problem {
            batch: 3,
            heads: 3,
            heads_kv: 3,
            ..plain(vec![window(4, 3, 2), window(5, 2, 1)])
        };
        let inputs = problem.inputs(31);
        let setup = Setup::new(&device.device);
        let whole = run(&problem, &inputs, &setup).expect("valid");
        // Samples in another order.
        let order = [2, 0, 1];
        let reorder = |values: &Vec<f64>| -> Vec<f64> {
            let size = values.len() / 3;
            order.iter().flat_map(|sample| values[sample * size..][..size].to_vec()).collect()
        };
        let mut moved = inputs.clone();
        moved.all_mut().into_iter().for_each(|values| *values = reorder(values));
        let results = run(&problem, &moved, &setup).expect("valid");
        close(device.name, &results.out, &reorder(&whole.out), check::F32);
        close(device.name, &results.lse, &reorder(&whole.lse), check::F32);
        // Heads in another order.
        let reorder = |values: &Vec<f64>, dim: usize| -> Vec<f64> {
            let heads = |token: &[f64]| -> Vec<f64> {
                order.iter().flat_map(|head| token[head * dim..][..dim].to_vec()).collect()
            };
            values.chunks(3 * dim).flat_map(heads).collect()
        };
        let mut moved = inputs.clone();
        (moved.query, moved.key) = (reorder(&inputs.query, 5), reorder(&inputs.key, 5));
        moved.value = reorder(&inputs.value, 4);
        let results = run(&problem, &moved, &setup).expect("valid");
        close(device.name, &results.out, &reorder(&whole.out, 4), check::F32);
        close(device.name, &results.lse, &reorder(&whole.lse, 1), check::F32);
    }
}

/// Logits of ten thousand: the softmax must not overflow, nor the backward pass.
#[test]
fn large_logits_stay_finite() {
    for device in devices() {
        for axes in [vec![window(9, 3, 1)], vec![window(4, 3, 2), window(5, 2, 1)], dense(6, 9)] {
            let problem = Problem { scale: Some(1e4), additional: Some(2), ..plain(axes) };
            let inputs = problem.inputs(35);
            let (out, lse) = problem.forward(&inputs);
            for strategy in [Strategy::Auto, Strategy::Reference] {
                let setup = Setup::new(&device.device).strategy(strategy).loss(Loss::Both);
                let results = run(&problem, &inputs, &setup).expect("valid");
                let what = format!("{} {strategy:?}", device.name);
                close(&format!("{what} lse"), &results.lse, &lse, check::F32);
                // A logit is only good to 1e-3 here, which the softmax passes on.
                close(&format!("{what} out"), &results.out, &out, 1e-2);
                let gradients = results.gradients.expect("backward");
                for (name, gradient) in gradients.named() {
                    assert!(gradient.iter().all(|x| x.is_finite()), "{what} {name}");
                }
            }
        }
    }
}
