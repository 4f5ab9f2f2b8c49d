//! Gradients, by finite differences in f64.

use burn::tensor::{DType, Device, Int, Tensor};
use burn_natten::nsa::{BranchTokens, PerBranch};
use burn_natten::{
    NativeSparseAttentionOptions, Pooling, compress_tokens, native_sparse_attention,
    try_native_sparse_attention,
};

use super::random::{Inputs, Sizes, many_options, options};
use crate::support::check::{F32, close, errors};

use crate::support::run::{round, tensor, values};
use crate::support::{TestDevice, devices};

const TINY: Sizes = Sizes { batch: 1, tokens: 21, heads: 2, heads_kv: 1, dim: 2, dim_v: 2 };

/// A loss of everything that the operator gives.
fn loss(
    [query, key, value, gates]: [Tensor<4>; 4],
    options: NativeSparseAttentionOptions,
) -> Tensor<1> {
    let (key, value) = (for_branches(key), for_branches(value));
    let output =
        try_native_sparse_attention(query, key, value, gates, options).expect("a valid problem");
    let mut loss = output.out.powi_scalar(2).sum();
    for branch in output.branches.into_array() {
        let is_blind = branch.logsumexp.clone().equal_elem(f32::NEG_INFINITY);
        let lse = branch.logsumexp.mask_fill(is_blind, 0.0);
        loss = loss + lse.powi_scalar(2).sum() * 0.3 + branch.out.powi_scalar(3).sum() * 0.2;
    }
    loss
}

fn value_of(loss: Tensor<1>) -> f64 {
    values(loss)[0]
}

/// Holds the gradients of every fifth element to differences.
fn check(
    what: &str,
    inputs: &Inputs,
    device: &Device,
    options: impl Fn(&Device) -> NativeSparseAttentionOptions,
) {
    const STEP: f64 = 1e-5;
    let tracked = device.clone().autodiff();
    let leaves = TINY.tensors(inputs, &tracked, DType::F64).map(Tensor::require_grad);
    // The lists stay: a choice has no derivative.
    let [q, k, v, g] = TINY.tensors(inputs, device, DType::F64);
    let lists =
        try_native_sparse_attention(q, for_branches(k), for_branches(v), g, options(device))
            .expect("a valid problem");
    let with_lists = |device: &Device| {
        let on = |lists: &Tensor<4, burn::tensor::Int>| {
            Tensor::<4, burn::tensor::Int>::from_data(lists.to_data(), device)
        };
        options(device)
            .with_blocks(on(&lists.blocks))
            .with_cmp_blocks(lists.cmp_blocks.as_ref().map(on))
    };
    let gradients = loss(leaves.clone(), with_lists(&tracked)).backward();
    for (index, leaf) in leaves.iter().enumerate() {
        let gradient = values(leaf.grad(&gradients).expect("it is tracked"));
        for element in (index..gradient.len()).step_by(5) {
            let at = |step: f64| {
                let mut inputs = inputs.clone();
                let all =
                    [&mut inputs.query, &mut inputs.key, &mut inputs.value, &mut inputs.gates];
                all[index][element] += step;
                let tensors = TINY.tensors(&inputs, device, DType::F64);
                value_of(loss(tensors, with_lists(device)))
            };
            let expected = (at(STEP) - at(-STEP)) / (2.0 * STEP);
            let got = gradient[element];
            let error = (got - expected).abs();
            let name = ["query", "key", "value", "gates"][index];
            let what = format!("{what} {name} {element}");
            assert!(error <= 1e-6 * expected.abs().max(1.0), "{what}: {got}, {expected}");
        }
    }
}

/// Devices with f64 that compile nothing.
fn exact_devices() -> impl Iterator<Item = TestDevice> {
    let devices = devices().into_iter();
    devices.filter(|device| device.supports(DType::F64) && !device.compiles_kernels())
}

#[test]
fn of_the_operator() {
    let inputs = TINY.inputs(12);
    for device in exact_devices() {
        for (name, options) in many_options() {
            check(name, &inputs, &device.device, |_| options.clone());
        }
    }
}

/// As of any gates, where they are known not to be.
#[test]
fn of_gates_that_are_not_negative() {
    let mut inputs = TINY.inputs(12);
    inputs.gates.iter_mut().for_each(|gate| *gate = gate.abs());
    for device in exact_devices() {
        for (name, options) in many_options() {
            let known = options.with_nonnegative_gates(true);
            check(name, &inputs, &device.device, |_| known.clone());
        }
    }
}

/// Gates of zero, gates that are cut out of a tensor, and a gradient that lies in another order; a loss of the sum, and one of the branches
/// besides.
#[test]
fn known_gates_change_no_gradient() {
    let sizes = Sizes::default();
    let mut inputs = sizes.inputs(15);
    for (at, gate) in inputs.gates.iter_mut().enumerate() {
        *gate = if at % 7 == 3 { 0.0 } else { gate.abs() };
    }
    for device in devices() {
        for (with_branches, own) in [(false, false), (false, true), (true, false)] {
            let run = |are_known: bool| {
                let tracked = device.device.clone().autodiff();
                let leaves = sizes.tensors(&inputs, &tracked, DType::F32).map(Tensor::require_grad);
                let [query, key, value, gates] = leaves.clone();
                let poison = gates.zeros_like().add_scalar(f32::NAN);
                let gates = Tensor::cat(vec![poison.clone(), gates, poison], 3).narrow(3, 3, 3);
                let tokens = |x: Tensor<4>| match own {
                    true => for_branches(x).into(),
                    false => BranchTokens::from(x),
                };
                let options = options().with_nonnegative_gates(are_known);
                let output =
                    try_native_sparse_attention(query, tokens(key), tokens(value), gates, options)
                        .expect("a valid problem");
                let [batch, rows, heads, dim] = output.out.dims();
                let weights =
                    Tensor::<1, Int>::arange(0..output.out.shape().num_elements() as i64, &tracked);
                let weights =
                    weights.float().mul_scalar(0.7).sin().reshape([batch, heads, rows, dim]);
                let mut loss = (output.out.swap_dims(1, 2) * weights).sum();
                if with_branches {
                    for branch in output.branches.into_array() {
                        loss = loss + branch.out.powi_scalar(2).sum();
                    }
                }
                let gradients = loss.backward();
                leaves.map(|leaf| values(leaf.grad(&gradients).expect("it is tracked")))
            };
            let (any, known) = (run(false), run(true));
            for (name, (any, known)) in
                ["query", "key", "value", "gates"].into_iter().zip(any.iter().zip(&known))
            {
                let what = format!("{} branches {with_branches}, own {own}: {name}", device.name);
                close(&what, known, any, F32);
            }
        }
    }
}

/// In a half type, of vectors that native kernels know: as near to what is exact as with any gates. Two samples, gates beyond 1.
#[test]
fn known_gates_in_bf16() {
    let sizes = Sizes { batch: 2, tokens: 300, heads: 4, heads_kv: 2, dim: 64, dim_v: 64 };
    let dtype = DType::BF16;
    let mut inputs = sizes.inputs(16);
    inputs.gates.iter_mut().for_each(|gate| *gate = 1.5 * gate.abs());
    for values in [&mut inputs.query, &mut inputs.key, &mut inputs.value, &mut inputs.gates] {
        *values = round(dtype, values);
    }
    let weights = round(dtype, &sizes.inputs(17).query);
    let options = NativeSparseAttentionOptions::new().with_num_selected(4).with_window(40);
    let flex = Device::flex();
    let [query, key, value, gates] = sizes.tensors(&inputs, &flex, DType::F64);
    let lists = try_native_sparse_attention(query, key, value, gates, options.clone())
        .expect("a valid problem")
        .blocks;
    let run = |device: &Device, dtype: DType, are_known: bool| {
        let device = device.clone().autodiff();
        let leaves = sizes.tensors(&inputs, &device, dtype).map(Tensor::require_grad);
        let [query, key, value, gates] = leaves.clone();
        let lists = Tensor::<4, Int>::from_data(lists.to_data(), &device);
        let options = options.clone().with_nonnegative_gates(are_known).with_blocks(lists);
        let out = native_sparse_attention(query, key, value, gates, options);
        let weights = tensor::<4>(&weights, out.dims(), &device, dtype);
        let gradients = (out * weights).sum().backward();
        leaves.map(|leaf| values(leaf.grad(&gradients).expect("it is tracked")))
    };
    let exact = run(&flex, DType::F64, false);
    for device in devices().into_iter().filter(|device| device.supports(dtype)) {
        let [any, known] = [false, true].map(|are_known| run(&device.device, dtype, are_known));
        let names = ["query", "key", "value", "gates"];
        for (at, name) in names.into_iter().enumerate() {
            let (square, max) = errors(&known[at], &exact[at]);
            let (of_any, max_of_any) = errors(&any[at], &exact[at]);
            assert!(
                square <= 1.5 * of_any && max <= 2.0 * max_of_any,
                "{} {name}: rms {square:.2e} of {of_any:.2e}, worst {max:.2e} of {max_of_any:.2e}",
                device.name
            );
        }
    }
}

/// Tokens that differ from branch to branch.
fn for_branches(x: Tensor<4>) -> PerBranch<Tensor<4>> {
    PerBranch { compressed: x.clone() * 0.5, selected: x.clone(), window: x * -1.0 }
}

/// A wrong promise does not go unseen.
#[test]
fn negative_gates_that_were_promised_not_to_be() {
    let mut inputs = TINY.inputs(12);
    inputs.gates.fill(-0.5);
    let device = Device::flex().autodiff();
    let leaves = TINY.tensors(&inputs, &device, DType::F32).map(Tensor::require_grad);
    let [query, key, value, gates] = leaves.clone();
    let options = options().with_nonnegative_gates(true);
    let out = native_sparse_attention(query, key, value, gates, options);
    let gradients = out.sum().backward();
    let gradient = values(leaves[0].grad(&gradients).expect("it is tracked"));
    assert!(gradient.iter().any(|value| value.is_nan()), "{gradient:?}");
}

/// Of tokens and of weights, for each way to compress.
#[test]
fn of_compression() {
    let sizes = Sizes { tokens: 15, heads_kv: 2, ..TINY };
    let inputs = sizes.inputs(13);
    let weights = Sizes { tokens: 8, heads_kv: 4, dim: 2, ..TINY }.inputs(14).key;
    let options = options().with_cmp_block(4).with_cmp_stride(2);
    let loss = |tokens: Tensor<4>, pooling: &Pooling| {
        compress_tokens(tokens, pooling, &options).powi_scalar(3).sum()
    };
    for device in exact_devices() {
        for kind in 0..4 {
            let run = |tokens: &[f64], weights: &[f64], device: &Device| {
                let leaf = |values: &[f64], shape| tensor::<4>(values, shape, device, DType::F64);
                let tokens = leaf(tokens, [1, 15, 2, 2]);
                let (tokens, weights) = match device.is_autodiff() {
                    true => (tokens.require_grad(), weights.to_vec()),
                    false => (tokens, weights.to_vec()),
                };
                let whole = leaf(&weights[..32], [2, 4, 2, 2]);
                let whole = if device.is_autodiff() { whole.require_grad() } else { whole };
                let pooling = match kind {
                    0 => Pooling::Mean,
                    1 => {
                        Pooling::Weighted(whole.clone().narrow(2, 0, 1).sum_dim(3).reshape([2, 4]))
                    }
                    2 => Pooling::MeanProjected(whole.clone().narrow(1, 0, 1).reshape([2, 2, 2])),
                    _ => Pooling::Linear(whole.clone()),
                };
                (loss(tokens.clone(), &pooling), tokens, whole)
            };
            let (total, tokens, whole) =
                run(&inputs.key, &weights, &device.device.clone().autodiff());
            let gradients = total.backward();
            let of_tokens = values(tokens.grad(&gradients).expect("it is tracked"));
            let of_weights = whole.grad(&gradients).map(values).unwrap_or_else(|| vec![0.0; 32]);
            let step = 1e-5;
            for (index, got) in of_tokens.iter().chain(&of_weights).enumerate() {
                let at = |step: f64| {
                    let (mut tokens, mut weights) = (inputs.key.clone(), weights.clone());
                    match index.checked_sub(of_tokens.len()) {
                        None => tokens[index] += step,
                        Some(index) => weights[index] += step,
                    }
                    value_of(run(&tokens, &weights, &device.device).0)
                };
                let expected = (at(step) - at(-step)) / (2.0 * step);
                let error = (got - expected).abs();
                let bound = 1e-7 * expected.abs().max(1.0);
                assert!(error <= bound, "kind {kind}, {index}: {got}, {expected}");
            }
        }
    }
}
