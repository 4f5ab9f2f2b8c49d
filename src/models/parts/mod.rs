//! What NAT, DiNAT, DiNAT_s and the isotropic models have in common.

mod attention;
mod block;
mod head;
mod levels;
mod patch;

pub use attention::BiasedAttention;
pub use block::{Mlp, NatBlock};
pub use patch::PatchEmbed;

pub(super) use block::BlockConfig;
pub(super) use head::{check_rate, classifier, classify, drop_path_rates};
pub(super) use levels::{blocks_of_levels, check_blocks, features};

use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::{Device, Tensor};

/// A linear layer that starts with small normal weights and no bias, as the papers' do.
pub(super) fn linear(inputs: usize, outputs: usize, bias: bool, device: &Device) -> Linear {
    let mut linear =
        LinearConfig::new(inputs, outputs).with_bias(false).with_initializer(SMALL).init(device);
    linear.bias = bias.then(|| Initializer::Zeros.init([outputs], device));
    linear
}

/// How weights and position biases start.
pub(super) const SMALL: Initializer = Initializer::Normal { mean: 0.0, std: 0.02 };

/// Appends zeros at the bottom and at the right of a map, `[batch, height, width, channels]`.
pub(super) fn pad_to(map: Tensor<4>, target: [usize; 2]) -> Tensor<4> {
    let mut map = map;
    for (axis, target) in [1, 2].into_iter().zip(target) {
        let mut shape = map.dims();
        if shape[axis] < target {
            shape[axis] = target - shape[axis];
            let zeros = Tensor::zeros(shape, (&map.device(), map.dtype()));
            map = Tensor::cat(vec![map, zeros], axis);
        }
    }
    map
}
