//! HDiT, the hourglass diffusion transformer (`image_transformer_v2` of k-diffusion).
//!
//! The tokens of the outer levels attend to their neighborhoods, those of the innermost one to all;
//! between levels 2 x 2 tokens are merged into one. The whole model sees the noise, and what else
//! it is told, through the scales of its normalizations.
//!
//! ```text
//! image -> patch_in -> down level -> merge -> .. -> mid level -> .. -> split -> up level -> patch_out
//!                          |                                            |
//!                          '-------------------- skip ------------------'
//! ```
//!
//! Names of fields are those of the PyTorch model, so that
//! [weights](crate::models#weights) have the same keys.
//!
//! Reference: [Scalable High-Resolution Pixel-Space Image Synthesis with Hourglass Diffusion
//! Transformers](https://arxiv.org/abs/2401.11605).

mod block;
mod condition;
mod config;
mod layers;
mod patches;
mod rope;

pub use block::{Block, FeedForward, HditAttention};
pub use condition::{FourierFeatures, HditConditions, MappingBlock, MappingNetwork};
pub use config::{HditAttentionConfig, HditConfig, HditLevelConfig, HditMappingConfig};
pub use layers::{AdaRmsNorm, RmsNorm};
pub use patches::{Merge, Split};
pub use rope::{AxialRope, positions};

use burn::module::Module;
use burn::nn::{Embedding, Linear};
use burn::tensor::{DType, Tensor};

/// Numbers that describe how an image was augmented.
const AUGMENTATIONS: usize = 9;

/// A diffusion model of images. Made by [`HditConfig`].
#[derive(Module, Debug)]
pub struct Hdit {
    /// From pixels to tokens.
    pub patch_in: Merge,
    /// Waves of the noise.
    pub time_emb: FourierFeatures,
    /// Projection of them.
    pub time_in_proj: Linear,
    /// Waves of the augmentation.
    pub aug_emb: FourierFeatures,
    /// Projection of them.
    pub aug_in_proj: Linear,
    /// The classes, if there are any.
    pub class_emb: Option<Embedding>,
    /// Projection of the further condition, if there is one.
    pub mapping_cond_in_proj: Option<Linear>,
    /// From all conditions to that of the blocks.
    pub mapping: MappingNetwork,
    /// The way down, outermost level first.
    pub down_levels: Vec<Vec<Block>>,
    /// Behind each level of the way down.
    pub merges: Vec<Merge>,
    /// The innermost level.
    pub mid_level: Vec<Block>,
    /// Before each level of the way up.
    pub splits: Vec<Split>,
    /// The way up, outermost level first.
    pub up_levels: Vec<Vec<Block>>,
    /// Normalization of the output.
    pub out_norm: RmsNorm,
    /// From tokens to pixels.
    pub patch_out: Split,
    /// Standard deviation of the data, for [`denoise`](Self::denoise).
    pub sigma_data: f64,
}

impl Hdit {
    /// What the network computes of an image. For the image without its noise see
    /// [`denoise`](Self::denoise).
    ///
    /// # Shapes
    ///
    /// - input: `[batch, channels, height, width]`; the sides are multiples of the patch, times two
    ///   for each level but one
    /// - sigma: `[batch]`, the standard deviation of the noise, positive
    /// - output: as input
    ///
    /// # Panics
    ///
    /// If a side is no multiple, a window is larger than its map, or a condition is missing or
    /// not known to the model.
    #[track_caller]
    pub fn forward(
        &self,
        input: Tensor<4>,
        sigma: Tensor<1>,
        conditions: HditConditions,
    ) -> Tensor<4> {
        let condition = self.condition(sigma, conditions);
        let mut state = self.patch_in.forward(input.permute([0, 2, 3, 1]));
        let mut skips = Vec::with_capacity(self.merges.len());
        for (level, merge) in self.down_levels.iter().zip(&self.merges) {
            state = run(level, state, &condition);
            skips.push(state.clone());
            state = merge.forward(state);
        }
        state = run(&self.mid_level, state, &condition);
        for ((level, split), skip) in self.up_levels.iter().zip(&self.splits).zip(skips).rev() {
            state = run(level, split.forward(state, Some(skip)), &condition);
        }
        let pixels = self.patch_out.forward(self.out_norm.forward(state), None);
        pixels.permute([0, 3, 1, 2])
    }

    /// The image without its noise, preconditioned as in k-diffusion:
    ///
    /// ```text
    /// denoised = c_skip * input + c_out * forward(c_in * input, sigma)
    ///
    /// r^2 = sigma^2 + sigma_data^2
    /// c_skip = sigma_data^2 / r^2      c_out = sigma * sigma_data / r      c_in = 1 / r
    /// ```
    ///
    /// Shapes and panics are those of [`forward`](Self::forward).
    #[track_caller]
    pub fn denoise(
        &self,
        input: Tensor<4>,
        sigma: Tensor<1>,
        conditions: HditConditions,
    ) -> Tensor<4> {
        let (batch, dtype) = (sigma.dims()[0], input.dtype());
        // The square of a sigma above 255 is infinite in f16.
        let wide = if dtype == DType::F64 { dtype } else { DType::F32 };
        let noise = sigma.clone().cast(wide).reshape([batch, 1, 1, 1]);
        let data = self.sigma_data;
        let total = (noise.clone().powi_scalar(2) + data * data).sqrt();
        let (input, inner) = (input.cast(wide), total.recip());
        let output = self.forward((input.clone() * inner.clone()).cast(dtype), sigma, conditions);
        let kept = inner.clone().mul_scalar(data).powi_scalar(2);
        (input * kept + output.cast(wide) * (noise * data * inner)).cast(dtype)
    }

    /// The condition that the blocks see.
    ///
    /// # Shapes
    ///
    /// - sigma: `[batch]`
    /// - output: `[batch, mapping width]`
    ///
    /// # Panics
    ///
    /// If a condition is missing or not known to the model.
    #[track_caller]
    pub fn condition(&self, sigma: Tensor<1>, conditions: HditConditions) -> Tensor<2> {
        let HditConditions { augmentation, class, mapping } = conditions;
        let [batch] = sigma.dims();
        let noise = (sigma.clone().log() / 4.0).reshape([batch, 1]);
        let augmentation = augmentation.unwrap_or_else(|| {
            Tensor::zeros([batch, AUGMENTATIONS], (&noise.device(), noise.dtype()))
        });
        let mut sum = self.time_in_proj.forward(self.time_emb.forward(noise))
            + self.aug_in_proj.forward(self.aug_emb.forward(augmentation));
        match (&self.class_emb, class) {
            (Some(embedding), Some(class)) => {
                sum = sum + embedding.forward(class.unsqueeze()).squeeze_dim::<2>(0);
            }
            (Some(_), None) => panic!("class: is missing, must be given as the model has classes"),
            (None, Some(_)) => panic!("class: is given, but the model has no classes"),
            (None, None) => {}
        }
        match (&self.mapping_cond_in_proj, mapping) {
            (Some(projection), Some(mapping)) => sum = sum + projection.forward(mapping),
            (Some(_), None) => {
                panic!("mapping: is missing, must be given as the model has mapping_cond_dim")
            }
            (None, Some(_)) => panic!("mapping: is given, but the model has no mapping_cond_dim"),
            (None, None) => {}
        }
        self.mapping.forward(sum)
    }
}

/// The blocks of a level, one after the other.
#[track_caller]
fn run(level: &[Block], input: Tensor<4>, condition: &Tensor<2>) -> Tensor<4> {
    let positions = positions(&input);
    level
        .iter()
        .fold(input, |state, block| block.forward(state, positions.clone(), condition.clone()))
}
