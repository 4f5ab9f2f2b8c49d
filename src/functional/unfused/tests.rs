//! Scores with a bias, and its gradient, from slots alone.

use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_natten_kernels::{Axis, Problem};

use super::qk;
use crate::{NeighborhoodOptions, Strategy};

fn devices() -> Vec<Device> {
    vec![
        Device::flex().autodiff(),
        #[cfg(feature = "cpu")]
        Device::cpu().autodiff(),
    ]
}

/// Numbers without a pattern.
fn numbers(count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        f64::from(((state >> 33) as f32) / ((1u64 << 30) as f32) - 1.0)
    };
    (0..count).map(|_| next()).collect()
}

fn tensor<const D: usize>(values: &[f64], shape: [usize; D], device: &Device) -> Tensor<D> {
    let data = TensorData::new(values.to_vec(), shape).convert_dtype(DType::F32);
    Tensor::from_data(data, (device, DType::F32))
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().convert::<f64>().try_to_vec().expect("converted to f64")
}

fn close(what: &str, got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (index, (got, want)) in got.iter().zip(want).enumerate() {
        let is_close = got == want || (got - want).abs() <= 2e-5;
        assert!(is_close, "{what} {index}: {got} where {want} is expected");
    }
}

/// Axes of all kinds, one of them covered by its window, heads that share keys, additional keys.
fn problem() -> Problem {
    let causal = Axis::neighborhood(9, 4).with_stride(2).with_dilation(2).with_causal(true);
    let axes = [causal, Axis::neighborhood(3, 3), Axis::neighborhood(5, 3).with_stride(3)];
    Problem::new(axes, 4, 4).with_batch(2).with_heads_kv(2).with_additional(2)
}

#[test]
fn a_bias_is_added_behind_the_scale_and_gets_its_gradient() {
    let problem = problem();
    let (queries, slots) = (problem.queries(), problem.slots() + problem.additional);
    let extents = problem.bias_extents();
    let entries = problem.bias_entries();
    let query = numbers(2 * queries * 4 * 4, 1);
    let key = numbers(2 * queries * 2 * 4, 2);
    let more = numbers(2 * 2 * 2 * 4, 3);
    let bias = numbers(4 * entries, 4);
    let cotangent = numbers(2 * queries * 4 * slots, 5);
    for device in devices() {
        for strategy in [Strategy::Auto, Strategy::Reference] {
            let options = NeighborhoodOptions::<3>::new([4, 3, 3])
                .with_stride([2, 1, 3])
                .with_dilation([2, 1, 1])
                .with_causal([true, false, false])
                .with_additional_kv(tensor(&more, [2, 2, 2, 4], &device), None)
                .with_scale(-0.3)
                .with_strategy(strategy);
            let shape = |heads, last| [2, 9, 3, 5, heads, last];
            let leaf = tensor::<4>(&bias, [4, extents[0], extents[1], extents[2]], &device);
            let leaf = leaf.require_grad();
            let query = tensor::<6>(&query, shape(4, 4), &device);
            let key = tensor::<6>(&key, shape(2, 4), &device);
            let run = |options| qk(query.clone(), key.clone(), options).expect("valid");
            let with = run(options.clone().with_bias(leaf.clone()));
            let tape = (with.clone() * tensor::<6>(&cotangent, with.dims(), &device)).sum();
            let gradient = values(leaf.grad(&tape.backward()).expect("tracked"));

            let mut want = values(run(options.clone()));
            let mut want_gradient = vec![0.0; 4 * entries];
            for (place, score) in want.iter_mut().enumerate() {
                let (slot, head) = (place % slots, place / slots % 4);
                let query = place / slots / 4 % queries;
                let offset = match slot < problem.slots() {
                    true => problem.slot_offset(query, slot),
                    false => None,
                };
                if let Some(offset) = offset {
                    *score += bias[head * entries + offset];
                    want_gradient[head * entries + offset] += cotangent[place];
                }
            }
            close("scores", &values(with), &want);
            close("dbias", &gradient, &want_gradient);
        }
    }
}
