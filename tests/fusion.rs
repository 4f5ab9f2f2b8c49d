//! Through a device whose operations are fused: with the feature `fusion` every CubeCL device is.
//!
//! A binary of its own, because Burn is built anew for it, and with it the others would be.

#[allow(dead_code)]
mod support;

use burn::tensor::{DType, Tensor};
use burn_natten::{NeighborhoodOptions, merge_attentions, try_na1d};

use support::check::{self, close};
use support::devices;
use support::problem::{Axis, Problem};
use support::run::{tensor, values};

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
    let run = |device: &burn::tensor::Device| {
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
        let mut all = vec![values(out), values(lse)];
        all.extend(leaves.map(|leaf| values(leaf.grad(&gradients).expect("tracked"))));
        all
    };
    let expected = run(&burn::tensor::Device::flex());
    for device in devices() {
        for (got, want) in run(&device.device).iter().zip(&expected) {
            close(device.name, got, want, check::F32);
        }
    }
}
