//! NAT and DiNAT, hierarchical vision transformers of neighborhood attention.
//!
//! A stem of two convolutions makes a token of 4 x 4 pixels; between levels a convolution halves
//! the sides and doubles the channels. DiNAT is NAT with dilated windows in every second block.
//!
//! Names of fields are those of the PyTorch model, so that
//! [weights](crate::models#weights) have the same keys.
//!
//! Reference: [Neighborhood Attention Transformer](https://arxiv.org/abs/2204.07143),
//! [Dilated Neighborhood Attention Transformer](https://arxiv.org/abs/2209.15001).

mod config;
mod published;

pub use config::NatConfig;
pub(super) use config::{check_depth, check_levels};
pub(super) use published::alternating;

use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{Linear, PaddingConfig2d};
use burn::tensor::{Device, Tensor};

use super::Features;
pub use super::parts::{BiasedAttention, Mlp, NatBlock};
use super::parts::{classify, features};
use crate::nn::{LayerNorm, conv2d};

/// NAT, or DiNAT, with a head for classification. Made by [`NatConfig`].
#[derive(Module, Debug)]
pub struct Nat {
    /// From pixels to tokens.
    pub patch_embed: ConvEmbed,
    /// The levels, from the finest.
    pub levels: Vec<NatLevel>,
    /// Normalization of the last level.
    pub norm: LayerNorm,
    /// From channels to classes, if there are classes.
    pub head: Option<Linear>,
}

impl Nat {
    /// Classifies images.
    ///
    /// # Shapes
    ///
    /// - images: `[batch, in_chans, height, width]`, of any size
    /// - output: `[batch, num_classes]`, logits; without classes `[batch, channels]`, the mean of
    ///   the features
    #[track_caller]
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        classify(self.forward_features(images).output, &self.head)
    }

    /// The features of all levels, for instance for detection or segmentation.
    ///
    /// # Shapes
    ///
    /// - images: `[batch, in_chans, height, width]`
    /// - level `i` of the output: `[batch, height, width, embed_dim * 2^i]` with sides that are
    ///   `2^(i + 2)` times smaller, rounded up
    #[track_caller]
    pub fn forward_features(&self, images: Tensor<4>) -> Features {
        let tokens = self.patch_embed.forward(images);
        let downsample = |level: &NatLevel, state| match &level.downsample {
            Some(downsample) => downsample.forward(state),
            None => state,
        };
        features(tokens, &self.levels, [&NatLevel::forward_blocks, &downsample], &self.norm)
    }
}

/// Two convolutions that make a token of 4 x 4 pixels.
#[derive(Module, Debug)]
pub struct ConvEmbed {
    /// The convolutions.
    pub proj: Vec<Conv2d>,
    /// Normalization.
    pub norm: LayerNorm,
}

impl ConvEmbed {
    fn new(channels: usize, dim: usize, device: &Device) -> Self {
        let convolution = |channels| halving(channels).init(device);
        Self {
            proj: vec![convolution([channels, dim / 2]), convolution([dim / 2, dim])],
            norm: LayerNorm::new(dim, device),
        }
    }

    /// Embeds an image of any size.
    ///
    /// # Shapes
    ///
    /// - image: `[batch, channels, height, width]`
    /// - output: `[batch, height / 4, width / 4, dim]`, rounded up
    pub fn forward(&self, image: Tensor<4>) -> Tensor<4> {
        let pixels = image.permute([0, 2, 3, 1]);
        self.norm.forward(self.proj.iter().fold(pixels, |map, layer| conv2d(layer, map)))
    }
}

/// A convolution that halves the sides and doubles the channels.
#[derive(Module, Debug)]
pub struct ConvDownsample {
    /// The convolution.
    pub reduction: Conv2d,
    /// Normalization.
    pub norm: LayerNorm,
}

impl ConvDownsample {
    fn new(dim: usize, device: &Device) -> Self {
        Self {
            reduction: halving([dim, 2 * dim]).with_bias(false).init(device),
            norm: LayerNorm::new(2 * dim, device),
        }
    }

    /// Halves the sides of a map and doubles its channels.
    ///
    /// # Shapes
    ///
    /// - input: `[batch, height, width, dim]`
    /// - output: `[batch, height / 2, width / 2, 2 * dim]`, rounded up
    pub fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        self.norm.forward(conv2d(&self.reduction, input))
    }
}

fn halving(channels: [usize; 2]) -> Conv2dConfig {
    Conv2dConfig::new(channels, [3, 3])
        .with_stride([2, 2])
        .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
}

/// Blocks at one resolution, and the way to the next.
#[derive(Module, Debug)]
pub struct NatLevel {
    /// The blocks.
    pub blocks: Vec<NatBlock>,
    /// To the next level, if there is one.
    pub downsample: Option<ConvDownsample>,
}

impl NatLevel {
    /// The blocks, one after the other, without the way to the next level.
    ///
    /// # Shapes
    ///
    /// - input: `[batch, height, width, channels]`
    /// - output: as input
    #[track_caller]
    pub fn forward_blocks(&self, input: Tensor<4>) -> Tensor<4> {
        self.blocks.iter().fold(input, |state, block| block.forward(state))
    }
}
