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
mod published;
mod rope;

pub use block::{FeedForward, HditAttention, HditBlock};
pub use condition::{FourierFeatures, HditConditions, MappingBlock, MappingNetwork};
pub use config::{HditAttentionConfig, HditConfig, HditLevelConfig, HditMappingConfig};
pub use layers::{AdaRmsNorm, RmsNorm};
pub use patches::{TokenMerge, TokenSplit};
pub use rope::{AxialRope, positions};

use burn::module::Module;
use burn::nn::{Embedding, Linear};
use burn::tensor::Tensor;

use layers::{cast, wide};

/// Numbers that describe how an image was augmented.
const AUGMENTATIONS: usize = 9;

/// A diffusion model of images. Made by [`HditConfig`].
#[derive(Module, Debug)]
pub struct Hdit {
    /// From pixels to tokens.
    pub patch_in: TokenMerge,
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
    pub down_levels: Vec<Vec<HditBlock>>,
    /// Behind each level of the way down.
    pub merges: Vec<TokenMerge>,
    /// The innermost level.
    pub mid_level: Vec<HditBlock>,
    /// Before each level of the way up.
    pub splits: Vec<TokenSplit>,
    /// The way up, outermost level first.
    pub up_levels: Vec<Vec<HditBlock>>,
    /// Normalization of the output.
    pub out_norm: RmsNorm,
    /// From tokens to pixels.
    pub patch_out: TokenSplit,
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
    /// - sigma: `[batch]`, the standard deviation of the noise, positive, best in f32
    /// - output: as input, whose type need not be that of the weights
    ///
    /// # Panics
    ///
    /// If a side is no multiple, a window is larger than its map, or a condition is missing, not
    /// known to the model or of another shape.
    #[track_caller]
    pub fn forward(
        &self,
        input: Tensor<4>,
        sigma: Tensor<1>,
        conditions: HditConditions,
    ) -> Tensor<4> {
        self.check_input(&input, &sigma);
        let condition = self.condition(sigma, conditions);
        let (dtype, weights) = (input.dtype(), self.patch_in.proj.weight.val().dtype());
        let mut state = self.patch_in.forward(cast(input, weights).permute([0, 2, 3, 1]));
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
        cast(pixels.permute([0, 3, 1, 2]), dtype)
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
        let wide = wide(dtype);
        let noise = cast(sigma.clone(), wide).reshape([batch, 1, 1, 1]);
        let data = self.sigma_data;
        let total = (noise.clone().powi_scalar(2) + data * data).sqrt();
        let (input, inner) = (cast(input, wide), total.recip());
        let output = self.forward(input.clone() * inner.clone(), sigma, conditions);
        let kept = inner.clone().mul_scalar(data).powi_scalar(2);
        cast(input * kept + cast(output, wide) * (noise * data * inner), dtype)
    }

    /// The condition that the blocks see.
    ///
    /// # Shapes
    ///
    /// - sigma: `[batch]`, positive
    /// - output: `[batch, mapping width]`, in the type of the weights
    ///
    /// # Panics
    ///
    /// If a condition is missing, not known to the model or of another shape.
    #[track_caller]
    pub fn condition(&self, sigma: Tensor<1>, conditions: HditConditions) -> Tensor<2> {
        let HditConditions { augmentation, class, mapping } = conditions;
        let [batch] = sigma.dims();
        let wide = wide(sigma.dtype());
        let noise = (cast(sigma, wide).log() / 4.0).reshape([batch, 1]);
        let augmentation = augmentation.unwrap_or_else(|| {
            Tensor::zeros([batch, AUGMENTATIONS], (&noise.device(), noise.dtype()))
        });
        check_shape("augmentation", augmentation.dims(), [batch, AUGMENTATIONS]);
        let dtype = self.time_in_proj.weight.val().dtype();
        let [noise, augmentation] =
            [self.time_emb.forward(noise), self.aug_emb.forward(augmentation)]
                .map(|waves| cast(waves, dtype));
        let mut sum = self.time_in_proj.forward(noise) + self.aug_in_proj.forward(augmentation);
        match (&self.class_emb, class) {
            (Some(embedding), Some(class)) => {
                check_shape("class", class.dims(), [batch]);
                sum = sum + embedding.forward(class.unsqueeze()).squeeze_dim::<2>(0);
            }
            (Some(_), None) => panic!("class: is missing, must be given as the model has classes"),
            (None, Some(_)) => panic!("class: is given, but the model has no classes"),
            (None, None) => {}
        }
        match (&self.mapping_cond_in_proj, mapping) {
            (Some(projection), Some(mapping)) => {
                let inputs = projection.weight.lazy_shape()[0];
                check_shape("mapping", mapping.dims(), [batch, inputs]);
                sum = sum + projection.forward(cast(mapping, dtype));
            }
            (Some(_), None) => {
                panic!("mapping: is missing, must be given as the model has mapping_cond_dim")
            }
            (None, Some(_)) => panic!("mapping: is given, but the model has no mapping_cond_dim"),
            (None, None) => {}
        }
        self.mapping.forward(sum)
    }

    #[track_caller]
    fn check_input(&self, input: &Tensor<4>, sigma: &Tensor<1>) {
        let [batch, channels, _, _] = input.dims();
        let patch: usize = self.patch_in.patch_size.iter().product();
        let expected = self.patch_in.proj.weight.lazy_shape()[0] / patch;
        assert!(channels == expected, "input: has {channels} channels, must have {expected}");
        check_shape("sigma", sigma.dims(), [batch]);
    }
}

#[track_caller]
fn check_shape<const D: usize>(argument: &str, got: [usize; D], expected: [usize; D]) {
    assert!(got == expected, "{argument}: has shape {got:?}, must have {expected:?}");
}

/// The blocks of a level, one after the other.
#[track_caller]
fn run(level: &[HditBlock], input: Tensor<4>, condition: &Tensor<2>) -> Tensor<4> {
    let positions = positions(&input);
    level
        .iter()
        .fold(input, |state, block| block.forward(state, positions.clone(), condition.clone()))
}
