//! Copies of a model: gradients of all arrive at the model, as on one device.

use burn::nn::{Linear, LinearConfig};
use burn::tensor::{Device, Distribution, Tensor};
use burn_natten::parallel::{join_tokens, replicate, split_tokens_into};

use super::pair;
use crate::support::check::{F32, close};
use crate::support::run::values;

#[test]
fn gradients_of_copies_are_those_of_the_model() {
    let devices = pair().unwrap_or_else(|| [Device::flex(), Device::flex()]);
    let devices = devices.map(|device| device.autodiff());
    let model: Linear = LinearConfig::new(6, 4).init(&devices[0]);
    let tokens = Tensor::<3>::random([2, 9, 6], Distribution::Default, &devices[0]);
    let gradients = |out: Tensor<3>| {
        let tape = out.square().mean().backward();
        let bias = model.bias.as_ref().expect("has one by default");
        let weight = model.weight.grad(&tape).expect("is trained");
        (values(weight), values(bias.grad(&tape).expect("is trained")))
    };
    let want = gradients(model.forward(tokens.clone()));

    // Twice, as in two steps.
    for shards in [[5, 4], [1, 8]] {
        let copies = replicate(&model, &devices).expect("can be reached");
        let shards = split_tokens_into(tokens.clone(), &devices, 0, &shards);
        let outs: Vec<_> =
            copies.iter().zip(shards).map(|(copy, shard)| copy.forward(shard)).collect();
        assert_eq!(outs[1].device(), devices[1]);
        let got = gradients(join_tokens(outs, &devices[0], 0));
        close("weight", &got.0, &want.0, F32);
        close("bias", &got.1, &want.1, F32);
    }
}
