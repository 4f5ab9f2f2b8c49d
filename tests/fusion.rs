//! Through a device whose operations are fused: with the feature `fusion` every CubeCL device is.
//!
//! A binary of its own, because Burn is built anew for it, and with it the others would be.

#[allow(dead_code)]
mod support;

use burn::tensor::{DType, Device, Tensor};
use burn_natten::nsa::{BranchTokens, PerBranch};
use burn_natten::{
    NativeSparseAttentionOptions, NativeSparseCache, NeighborhoodOptions, Strategy,
    merge_attentions, try_na1d, try_native_sparse_attention,
};

use support::check::{self, close};
use support::devices;
use support::problem::{Axis, Problem};
use support::run::{tensor, values};

/// Fails unless every device gives what Flex does.
fn agrees_with_flex<const N: usize>(run: impl Fn(&Device) -> [Vec<f64>; N]) {
    let expected = run(&Device::flex());
    for device in devices() {
        for (got, want) in run(&device.device).iter().zip(&expected) {
            close(device.name, got, want, check::F32);
        }
    }
}

/// Numbers from -1 to 1, other ones by each seed.
fn numbers(count: usize, seed: usize) -> Vec<f64> {
    let number = |at: usize| ((at * 7919 + seed * 104_729) % 1009) as f64 / 504.5 - 1.0;
    (0..count).map(number).collect()
}

/// The operator sits between operations that fusion holds back, and its results feed others.
#[test]
fn fused_neighbors_see_the_same_results() {
    let axis = Axis::Window { length: 9, kernel_size: 3, stride: 2, dilation: 2, is_causal: true };
    let problem = Problem {
        batch: 2,
        heads: 2,
        heads_kv: 1,
        dim: 4,
        dim_v: 4,
        additional: None,
        scale: None,
        bias: false,
        axes: vec![axis],
    };
    let inputs = problem.inputs(61);
    let run = |device: &Device| {
        let device = device.clone().autodiff();
        let leaf = |values: &[f64], heads: usize| {
            tensor::<4>(values, [2, 9, heads, 4], &device, DType::F32).require_grad()
        };
        let leaves = [leaf(&inputs.query, 2), leaf(&inputs.key, 1), leaf(&inputs.value, 1)];
        let [q, k, v] = leaves.clone().map(|x| (x * 0.5 + 0.25).exp() - 1.0);
        let options =
            NeighborhoodOptions::<1>::new(3).with_stride(2).with_dilation(2).with_causal(true);
        let a = try_na1d(q.clone(), k.clone(), v.clone(), options.clone()).expect("valid");
        let b = try_na1d(q, k * 0.5, v + 1.0, options).expect("valid");
        let lses: Vec<Tensor<3>> = vec![a.logsumexp * 2.0, b.logsumexp + 1.0];
        let (out, lse) = merge_attentions(vec![a.out + 1.0, b.out], lses);
        let grad_out = tensor::<4>(&inputs.grad_out, out.dims(), &device, DType::F32);
        let grad_lse = tensor::<3>(&inputs.grad_lse, lse.dims(), &device, DType::F32);
        let loss = (out.clone().tanh() * grad_out).sum() + (lse.clone().sin() * grad_lse).sum();
        let gradients = loss.backward();
        let [dq, dk, dv] = leaves.map(|leaf| values(leaf.grad(&gradients).expect("tracked")));
        [values(out), values(lse), dq, dk, dv]
    };
    agrees_with_flex(run);
}

/// Branches and their sum in between such operations, with what they hand each other backward. Compressed attention pads its
/// queries at both ends, and cuts rows out of what it gives.
#[test]
fn gradients_of_branches_are_the_same() {
    const TOKENS: usize = 30;
    let options = NativeSparseAttentionOptions::new()
        .with_cmp_block(8)
        .with_cmp_stride(4)
        .with_slc_block(8)
        .with_num_selected(3)
        .with_window(9)
        .with_nonnegative_gates(true);
    let run = |device: &Device| {
        let device = device.clone().autodiff();
        let random = |heads: usize, dim: usize, seed: usize| {
            let numbers = numbers(TOKENS * heads * dim, seed);
            tensor::<4>(&numbers, [1, TOKENS, heads, dim], &device, DType::F32)
        };
        let leaves = [random(2, 8, 1), random(1, 8, 2), random(1, 8, 3), random(2, 3, 4)]
            .map(Tensor::require_grad);
        let [q, k, v, g] = leaves.clone().map(|x| (x * 0.5 + 0.25).exp() - 0.5);
        let output = try_native_sparse_attention(q, k, v, g, options.clone()).expect("valid");
        let gradients = ((output.out + 1.0).tanh() * random(2, 8, 5)).sum().backward();
        leaves.map(|leaf| values(leaf.grad(&gradients).expect("tracked")))
    };
    agrees_with_flex(run);
}

/// Tokens come out of operations that are held back, and go into a cache whose memory is written in place, by one operator where there are kernels
/// for it. A clone of the cache keeps what it had.
#[test]
fn tokens_of_a_cache_are_those_of_its_steps() {
    const TOKENS: usize = 44;
    let options = NativeSparseAttentionOptions::new()
        .with_cmp_block(8)
        .with_cmp_stride(4)
        .with_slc_block(8)
        .with_num_selected(3)
        .with_window(9);
    for device in devices().into_iter().filter(|device| device.supports(DType::F16)) {
        // Few where each of them is compiled to run on a CPU.
        let is_quick = device.name != "cubecl-cpu";
        let [fork, end] = if is_quick { [37, TOKENS] } else { [31, 32] };
        for own in [true, false].into_iter().take(if is_quick { 2 } else { 1 }) {
            let random = |heads: usize, dim: usize, seed: usize| {
                let numbers = numbers(2 * TOKENS * heads * dim, seed);
                tensor::<4>(&numbers, [2, TOKENS, heads, dim], &device.device, DType::F16)
            };
            let all = [random(4, 16, 1), random(2, 16, 2), random(2, 16, 3), random(4, 3, 4)];
            let branches = |tokens: Tensor<4>| -> BranchTokens {
                match own {
                    false => tokens.into(),
                    true => PerBranch {
                        compressed: tokens.clone() * 0.5,
                        selected: tokens.clone(),
                        window: tokens * -1.0,
                    }
                    .into(),
                }
            };
            let append = |cache: &mut NativeSparseCache, start, count, shift: f64| {
                let [q, k, v, g] = all.clone().map(|x| x.narrow(1, start, count) + shift);
                let output = cache.try_append(q, branches(k), branches(v), g).expect("tokens");
                (values(output.blocks.float()), output.out * 2.0 - 1.0)
            };
            let run = |strategy| {
                let mut cache = NativeSparseCache::new(options.clone().with_strategy(strategy));
                let mut rows = vec![append(&mut cache, 0, 30, 0.0)];
                rows.extend((30..fork).map(|token| append(&mut cache, token, 1, 0.0)));
                let mut other = cache.clone();
                for token in fork..end {
                    rows.push(append(&mut cache, token, 1, 0.0));
                    rows.push(append(&mut other, token, 1, 0.25));
                }
                rows
            };
            let (mut same, rows) = (0, run(Strategy::Auto));
            let count = rows.len();
            for (got, want) in rows.into_iter().zip(run(Strategy::Reference)) {
                // Rounding may choose.
                if got.0 == want.0 {
                    same += 1;
                    close(device.name, &values(got.1), &values(want.1), 0.02);
                }
            }
            assert!(10 * same >= 9 * count, "{}: {same} of {count} lists", device.name);
        }
    }
}
