//! The model of the bench `nat_step`: as large as it was published, and differentiable.

// What the tests do not use of it the bench does.
#[allow(dead_code)]
#[path = "../../benches/nat_step/model.rs"]
mod model;

use burn::module::Module;
use burn::tensor::{Device, Distribution, Int, Tensor};

use model::{NatConfig, STAGES};

#[test]
fn nat_mini_has_20_million_parameters() {
    let config = NatConfig::mini();
    assert_eq!([0, 1, 2, 3].map(|stage| config.stage_side(stage)), [56, 28, 14, 7]);
    let parameters = config.init(&Device::flex()).num_params();
    assert!((19_900_000..20_100_000).contains(&parameters), "{parameters}");
}

#[test]
fn every_stage_has_a_gradient() {
    let device = Device::flex().autodiff();
    let config = NatConfig::tiny();
    assert_eq!(config.window(STAGES - 1), 2);
    let model = config.init(&device);
    let images = Tensor::<4>::random([2, 3, 64, 64], Distribution::Default, &device);
    let images = images.require_grad();
    let loss = model.loss(images.clone(), Tensor::<1, Int>::zeros([2], &device));
    let gradients = loss.backward();
    // It has passed through every stage.
    let gradient = images.grad(&gradients).expect("the loss depends on the pictures");
    let magnitude = gradient.abs().max().into_scalar::<f32>();
    assert!(magnitude.is_finite() && magnitude > 0.0);
}
