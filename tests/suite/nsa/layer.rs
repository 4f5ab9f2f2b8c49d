//! The layer: its shapes, its gradients, its steps, and that it learns.

use burn::module::{Module, Param};
use burn::nn::RotaryEncodingConfig;
use burn::tensor::{Distribution, Gradients, Tensor};
use burn_natten::nn::{LearnedPooling, NativeSparseAttentionConfig, PoolingConfig};

use crate::support::check::{F32, close};
use crate::support::run::values;
use crate::support::{devices, quick_devices};

const POOLINGS: [PoolingConfig; 4] = [
    PoolingConfig::Mean,
    PoolingConfig::Weighted,
    PoolingConfig::MeanProjected,
    PoolingConfig::Linear,
];

fn config() -> NativeSparseAttentionConfig {
    NativeSparseAttentionConfig::new(16, 4, 2)
        .with_cmp_block(8)
        .with_cmp_stride(4)
        .with_slc_block(8)
        .with_num_selected(4)
        .with_window(9)
}

fn of_weights<const D: usize>(weights: &Param<Tensor<D>>, gradients: &Gradients) -> Vec<f64> {
    values(weights.val().grad(gradients).expect("it is trained"))
}

#[test]
fn every_parameter_has_a_gradient() {
    for device in quick_devices() {
        let tracked = device.device.clone().autodiff();
        for pooling in POOLINGS {
            for own_kv in [true, false] {
                let layer = config().with_pooling(pooling).with_own_kv(own_kv).init(&tracked);
                let input = Tensor::<3>::random([2, 40, 16], Distribution::Default, &tracked);
                let output = layer.forward(input.clone());
                assert_eq!(output.dims(), [2, 40, 16]);
                let gradients = output.powi_scalar(2).sum().backward();
                for linear in [&layer.query, &layer.key_value, &layer.gate, &layer.proj] {
                    let gradient = linear.weight.val().grad(&gradients).expect("it is trained");
                    let values = values(gradient);
                    assert!(values.iter().any(|value| *value != 0.0), "{pooling:?}");
                }
                let is_learned = pooling != PoolingConfig::Mean;
                for pool in [&layer.pool_key, &layer.pool_value] {
                    let gradient = pool.as_ref().map(|pool| match pool {
                        LearnedPooling::Weighted(weights) => of_weights(weights, &gradients),
                        LearnedPooling::MeanProjected(weights) => of_weights(weights, &gradients),
                        LearnedPooling::Linear(weights) => of_weights(weights, &gradients),
                    });
                    assert_eq!(gradient.is_some(), is_learned);
                    let is_trained = |values: &Vec<f64>| values.iter().any(|value| *value != 0.0);
                    assert!(gradient.is_none_or(|values| is_trained(&values)), "{pooling:?}");
                }
            }
        }
    }
}

/// What is learned begins as a mean.
#[test]
fn poolings_begin_alike() {
    for device in quick_devices() {
        let input = Tensor::<3>::random([1, 40, 16], Distribution::Default, &device.device);
        let layer = config().init(&device.device);
        let expected = values(layer.forward(input.clone()));
        for pooling in POOLINGS {
            let learned = config().with_pooling(pooling).init(&device.device);
            let mut same = layer.clone();
            (same.pool_key, same.pool_value) = (learned.pool_key, learned.pool_value);
            close(device.name, &values(same.forward(input.clone())), &expected, F32);
        }
    }
}

#[test]
fn steps_with_positions_have_the_rows_of_the_whole() {
    for device in quick_devices() {
        for own_kv in [true, false] {
            let layer = config()
                .with_pooling(PoolingConfig::Linear)
                .with_own_kv(own_kv)
                .init(&device.device);
            let rotary = RotaryEncodingConfig::new(64, 4).init(&device.device);
            let input = Tensor::<3>::random([2, 45, 16], Distribution::Default, &device.device);
            let rotate = |start: usize| {
                let rotary = &rotary;
                move |heads: Tensor<4>| rotary.apply(heads.swap_dims(1, 2), start).swap_dims(1, 2)
            };
            let whole = layer.forward_with(input.clone(), rotate(0));
            let mut cache = layer.cache();
            let mut rows = vec![];
            for (start, count) in
                [(0, 30), (30, 1), (31, 5)].into_iter().chain((36..45).map(|at| (at, 1)))
            {
                assert_eq!(cache.tokens(), start);
                let part = input.clone().narrow(1, start, count);
                rows.push(layer.forward_cached(part, &mut cache, rotate(start)));
            }
            close(device.name, &values(Tensor::cat(rows, 1)), &values(whole), F32);
        }
    }
}

#[test]
fn parameters_are_counted() {
    let device = &devices()[0].device;
    // Queries 16 x 16, keys and values 16 x 3 x 2 x 8, gates 16 x 12 + 12, output 16 x 16.
    let plain = 256 + 768 + 204 + 256;
    assert_eq!(config().init(device).num_params(), plain);
    let linear = config().with_pooling(PoolingConfig::Linear).init(device);
    assert_eq!(linear.num_params(), plain + 2 * 2 * 8 * 4 * 4);
}

#[test]
#[should_panic(expected = "num_heads: is 4, must be a positive multiple of num_heads_kv, 3")]
fn heads_that_do_not_fit() {
    NativeSparseAttentionConfig::new(16, 4, 3).init(&devices()[0].device);
}

#[test]
#[should_panic(expected = "cmp_block: is 30, must be a multiple of 16 (cmp_stride)")]
fn sizes_that_do_not_fit() {
    NativeSparseAttentionConfig::new(16, 4, 2).with_cmp_block(30).init(&devices()[0].device);
}
