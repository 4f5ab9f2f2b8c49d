//! What training in f16 and bf16 asks for: gradients through views, of any loss, with checkpointing, the
//! same in every run. On a Hopper GPU the native kernels are asked for by name.

use burn::tensor::{DType, Device, FloatDType, Tensor};
use burn_natten::plan::{Sizes, Windows};
use burn_natten::{Capabilities, Context, Strategy, select, try_na2d, warm_up, warm_up_training};

use crate::support::check::identical;
use crate::support::devices;
use crate::support::problem::{Axis, Inputs, Problem};
use crate::support::run::{self, Loss, Results, Setup, options, run, tensor, values};

/// Group-query attention with additional tokens.
fn problem() -> Problem {
    let window = |length, kernel_size, stride, is_causal| Axis::Window {
        length,
        kernel_size,
        stride,
        dilation: 1,
        is_causal,
    };
    Problem {
        batch: 2,
        heads: 4,
        heads_kv: 2,
        dim: 16,
        dim_v: 16,
        additional: Some(3),
        scale: None,
        bias: false,
        axes: vec![window(9, 5, 2, false), window(11, 7, 1, true)],
    }
}

/// Runs a check in both types on every tier that has them.
fn everywhere(check: impl Fn(&str, &Setup, &Inputs)) {
    for device in devices() {
        for dtype in [DType::F16, DType::BF16] {
            if !device.supports(dtype) {
                continue;
            }
            let inputs = run::rounded(problem().inputs(71), dtype);
            for strategy in device.half_strategies() {
                let setup = Setup::new(&device.device).strategy(strategy).dtype(dtype);
                check(&format!("{} {strategy:?} {dtype:?}", device.name), &setup, &inputs);
            }
        }
    }
}

fn same_gradients(what: &str, got: &Results, want: &Results) {
    identical(&format!("{what} out"), &got.out, &want.out);
    identical(&format!("{what} lse"), &got.lse, &want.lse);
    let [got, want] = [got, want].map(|results| results.gradients.as_ref().expect("backward"));
    for ((name, got), (_, want)) in got.named().into_iter().zip(want.named()) {
        identical(&format!("{what} {name}"), got, want);
    }
}

/// `[batch, height, width, heads * dim]` of one projection, as a layer computes it.
fn fused(problem: &Problem, inputs: &Inputs, setup: &Setup, device: &Device) -> Tensor<4> {
    let part = |values: &[f64], heads: usize| {
        tensor::<4>(values, [2, 9, 11, heads * problem.dim], device, setup.dtype)
    };
    let parts = [
        part(&inputs.query, problem.heads),
        part(&inputs.key, problem.heads_kv),
        part(&inputs.value, problem.heads_kv),
    ];
    Tensor::cat(parts.to_vec(), 3)
}

#[test]
fn slices_of_a_projection_have_the_gradients_of_tensors_of_their_own() {
    let problem = problem();
    everywhere(|what, setup, inputs| {
        let want = run(&problem, inputs, &setup.clone().loss(Loss::Both)).expect("valid");
        let device = setup.device.clone().autodiff();
        let projection = fused(&problem, inputs, setup, &device).require_grad();
        let extra = |values: &[f64]| tensor::<4>(values, [2, 3, 2, 16], &device, setup.dtype);
        let extra = Tensor::cat(vec![extra(&inputs.more_keys), extra(&inputs.more_values)], 2);
        let extra = extra.require_grad();
        let slice = |start: usize, heads: usize| {
            let part = projection.clone().narrow(3, 16 * start, 16 * heads);
            part.reshape([2, 9, 11, heads, 16])
        };
        let options = options::<2>(&problem)
            .with_strategy(setup.strategy)
            .with_additional_kv(extra.clone().narrow(2, 0, 2), extra.clone().narrow(2, 2, 2));
        let output = try_na2d(slice(0, 4), slice(4, 2), slice(6, 2), options).expect("valid");
        // The cotangents arrive permuted.
        let grad_out = tensor::<5>(&inputs.grad_out, [2, 9, 11, 4, 16], &device, setup.dtype);
        let grad_lse = tensor::<4>(&inputs.grad_lse, [2, 9, 11, 4], &device, DType::F32);
        let flip = |tensor: Tensor<5>| tensor.permute([4, 2, 0, 3, 1]);
        let turn = |tensor: Tensor<4>| tensor.permute([3, 1, 0, 2]);
        let loss = (flip(output.out.clone()) * flip(grad_out)).sum().cast(FloatDType::F32)
            + (turn(output.logsumexp.clone()) * turn(grad_lse)).sum();
        let gradients = loss.backward();
        let of = projection.grad(&gradients).expect("tracked");
        let of_extra = extra.grad(&gradients).expect("tracked");
        let mut got = want.clone();
        (got.out, got.lse) = (values(output.out), values(output.logsumexp));
        let all = got.gradients.as_mut().expect("backward");
        let part =
            |start: usize, heads: usize| values(of.clone().narrow(3, 16 * start, 16 * heads));
        (all.query, all.key, all.value) = (part(0, 4), part(4, 2), part(6, 2));
        all.more_keys = values(of_extra.clone().narrow(2, 0, 2));
        all.more_values = values(of_extra.narrow(2, 2, 2));
        same_gradients(what, &got, &want);
    });
}

/// The gradient that a sum passes on is one number, repeated by strides of zero.
#[test]
fn a_sum_passes_on_ones() {
    let problem = Problem { additional: None, ..problem() };
    everywhere(|what, setup, inputs| {
        let mut inputs = inputs.clone();
        (inputs.more_keys, inputs.more_values) = (vec![], vec![]);
        inputs.grad_out.fill(1.0);
        let want = run(&problem, &inputs, &setup.clone().loss(Loss::Out)).expect("valid");
        let device = setup.device.clone().autodiff();
        let leaf = |values: &[f64], heads: usize| {
            tensor::<5>(values, [2, 9, 11, heads, 16], &device, setup.dtype).require_grad()
        };
        let leaves = [leaf(&inputs.query, 4), leaf(&inputs.key, 2), leaf(&inputs.value, 2)];
        let [query, key, value] = leaves.clone();
        let options = options::<2>(&problem).with_strategy(setup.strategy);
        let output = try_na2d(query, key, value, options).expect("valid");
        let gradients = output.out.clone().sum().backward();
        let mut got = want.clone();
        (got.out, got.lse) = (values(output.out), values(output.logsumexp));
        let all = got.gradients.as_mut().expect("backward");
        (all.query, all.key, all.value) =
            leaves.map(|leaf| values(leaf.grad(&gradients).expect("tracked"))).into();
        same_gradients(what, &got, &want);
    });
}

#[test]
fn gradient_checkpointing_changes_nothing() {
    let problem = problem();
    everywhere(|what, setup, inputs| {
        let plain = run(&problem, inputs, &setup.clone().loss(Loss::Both)).expect("valid");
        let device = setup.device.clone().autodiff().gradient_checkpointing();
        let with = Setup { device, ..setup.clone() }.loss(Loss::Both);
        same_gradients(what, &run(&problem, inputs, &with).expect("valid"), &plain);
    });
}

#[test]
fn repeated_steps_are_bitwise_equal() {
    let problem = problem();
    everywhere(|what, setup, inputs| {
        let setup = setup.clone().loss(Loss::Both);
        let first = run(&problem, inputs, &setup).expect("valid");
        for _ in 1..20 {
            same_gradients(what, &run(&problem, inputs, &setup).expect("valid"), &first);
        }
    });
}

#[test]
fn what_is_tracked_does_not_change_the_gradients() {
    let problem = problem();
    everywhere(|what, setup, inputs| {
        let setup = setup.clone().loss(Loss::Both);
        let all = run(&problem, inputs, &setup).expect("valid").gradients.expect("backward");
        for tracked in [[true, false, false, false, false], [false, true, false, true, false]] {
            let some = run(&problem, inputs, &setup.clone().tracked(tracked)).expect("valid");
            let some = some.gradients.expect("backward");
            for ((name, got), (_, want)) in some.named().into_iter().zip(all.named()) {
                if !got.is_empty() {
                    identical(&format!("{what} {name}"), got, want);
                }
            }
        }
    });
}

#[test]
fn warming_up_gives_the_tier_that_runs() {
    let windows = Windows {
        kernel_size: &[7, 7],
        stride: &[1, 1],
        dilation: &[1, 1],
        is_causal: &[false, false],
    };
    let problem = Sizes::new(32).neighborhood(&[14, 14], windows, None).expect("valid");
    for device in devices() {
        let capabilities = Capabilities::of(&device.device).expect("is built");
        for dtype in [DType::F32, DType::BF16].into_iter().filter(|dtype| device.supports(*dtype)) {
            let expected =
                select(&problem, Strategy::Auto, dtype, capabilities, Context::current());
            for warm_up in [warm_up, warm_up_training] {
                let tier = warm_up(&problem, dtype, Strategy::Auto, &device.device);
                assert_eq!(tier, expected, "{} {dtype:?}", device.name);
            }
        }
    }
}
