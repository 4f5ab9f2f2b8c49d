//! What the model is told besides the image: noise, augmentation, class, and more.

use burn::module::{Module, Param};
use burn::nn::{Dropout, Linear};
use burn::tensor::{Device, Distribution, Int, Tensor};

use super::HditMappingConfig;
use super::block::geglu;
use super::layers::{RmsNorm, buffer, cast, linear, wide, wide_of, zero_linear};
use crate::nn::dropout;

/// What a [`Hdit`](super::Hdit) is told besides the image and its noise.
///
/// ```rust
/// use burn::tensor::{Device, Int, Tensor};
/// use burn_natten::models::hdit::HditConditions;
///
/// let device = Device::flex();
/// let classes = Tensor::<1, Int>::from_data([0, 3], &device);
/// let conditions = HditConditions::default().with_class(classes);
/// assert!(conditions.augmentation.is_none());
/// ```
#[derive(Clone, Debug, Default)]
pub struct HditConditions {
    /// How the image was augmented, `[batch, 9]`; zeros, no augmentation, if absent.
    pub augmentation: Option<Tensor<2>>,
    /// The class, `[batch]`, below `num_classes`; needed if there are classes, else refused.
    pub class: Option<Tensor<1, Int>>,
    /// A further condition, `[batch, mapping_cond_dim]`; needed if its size is set, else refused.
    pub mapping: Option<Tensor<2>>,
}

impl HditConditions {
    /// Says how the image was augmented.
    pub fn with_augmentation(mut self, augmentation: impl Into<Option<Tensor<2>>>) -> Self {
        self.augmentation = augmentation.into();
        self
    }

    /// Sets the class.
    pub fn with_class(mut self, class: impl Into<Option<Tensor<1, Int>>>) -> Self {
        self.class = class.into();
        self
    }

    /// Sets the further condition.
    pub fn with_mapping(mut self, mapping: impl Into<Option<Tensor<2>>>) -> Self {
        self.mapping = mapping.into();
        self
    }
}

/// Fixed random waves: `(cos, sin)(2 pi input weight^T)`.
#[derive(Module, Debug)]
pub struct FourierFeatures {
    /// `[channels / 2, inputs]`, not trained.
    pub weight: Param<Tensor<2>>,
}

impl FourierFeatures {
    pub(super) fn new(inputs: usize, channels: usize, device: &Device) -> Self {
        let normal = Distribution::Normal(0.0, 1.0);
        let options = (device, wide_of(device));
        Self { weight: buffer(Tensor::random([channels / 2, inputs], normal, options)) }
    }

    /// The waves of numbers.
    ///
    /// # Shapes
    ///
    /// - input: `[batch, inputs]`, of any size
    /// - output: `[batch, channels]`, from -1 to 1, in f32, or f64 for an input in f64
    pub fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        // Angles are large, and half types keep few digits of them.
        let wide = wide(input.dtype());
        let weight = cast(self.weight.val(), wide).transpose();
        let angles = cast(input, wide).matmul(weight) * std::f64::consts::TAU;
        Tensor::cat(vec![angles.clone().cos(), angles.sin()], 1)
    }
}

/// A block of the [`MappingNetwork`].
#[derive(Module, Debug)]
pub struct MappingBlock {
    /// Normalization.
    pub norm: RmsNorm,
    /// To the hidden channels and their gates.
    pub up_proj: Linear,
    /// Dropout of the hidden channels.
    pub dropout: Dropout,
    /// From the hidden channels, starts at zero.
    pub down_proj: Linear,
}

impl MappingBlock {
    /// Adds the gated hidden channels to the input.
    ///
    /// # Shapes
    ///
    /// - input: `[batch, mapping width]`
    /// - output: as input
    pub fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let hidden = geglu(self.up_proj.forward(self.norm.forward(input.clone())));
        input + self.down_proj.forward(self.dropout.forward(hidden))
    }
}

/// From the sum of all embedded conditions to the condition of the blocks.
#[derive(Module, Debug)]
pub struct MappingNetwork {
    /// Normalization of the input.
    pub in_norm: RmsNorm,
    /// The blocks.
    pub blocks: Vec<MappingBlock>,
    /// Normalization of the output.
    pub out_norm: RmsNorm,
}

impl MappingNetwork {
    pub(super) fn new(config: &HditMappingConfig, device: &Device) -> Self {
        let HditMappingConfig { depth, width, d_ff, dropout: prob } = *config;
        let block = |_| MappingBlock {
            norm: RmsNorm::new(width, device),
            up_proj: linear(width, 2 * d_ff, device),
            dropout: dropout("mapping.dropout", prob),
            down_proj: zero_linear(d_ff, width, device),
        };
        Self {
            in_norm: RmsNorm::new(width, device),
            blocks: (0..depth).map(block).collect(),
            out_norm: RmsNorm::new(width, device),
        }
    }

    /// Normalizes, applies the blocks one after the other, and normalizes again.
    ///
    /// # Shapes
    ///
    /// - input: `[batch, mapping width]`
    /// - output: as input
    pub fn forward(&self, input: Tensor<2>) -> Tensor<2> {
        let input = self.in_norm.forward(input);
        let output = self.blocks.iter().fold(input, |state, block| block.forward(state));
        self.out_norm.forward(output)
    }
}
