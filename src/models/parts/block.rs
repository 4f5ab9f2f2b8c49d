use burn::module::{Module, Param};
use burn::nn::{Dropout, Initializer, Linear};
use burn::tensor::{Device, Tensor};

use super::{BiasedAttention, linear};
use crate::models::ConfigError;
use crate::models::check::{ensure, or_panic};
use crate::nn::{LayerNorm, drop_path, dropout, gelu, linear as apply};

/// What a block is made from.
#[derive(Clone, Copy, Debug)]
pub(in crate::models) struct BlockConfig {
    pub dim: usize,
    pub num_heads: usize,
    pub kernel_size: usize,
    pub dilation: usize,
    pub mlp_ratio: f64,
    pub qkv_bias: bool,
    pub qk_scale: Option<f64>,
    pub layer_scale: Option<f64>,
    pub drop_path: f64,
}

impl BlockConfig {
    pub(in crate::models) fn check(&self) -> Result<(), ConfigError> {
        let Self { dim, num_heads, kernel_size, dilation, .. } = *self;
        ensure!(num_heads >= 1, "num_heads: is {num_heads}, must be at least 1");
        ensure!(
            dim >= 1 && dim.is_multiple_of(num_heads),
            "embed_dim: gives {dim} channels, must be a positive multiple of {num_heads} (num_heads)"
        );
        ensure!(kernel_size >= 2, "kernel_size: is {kernel_size}, must be at least 2");
        ensure!(dilation >= 1, "dilation: is {dilation} in a block, must be at least 1");
        for (field, value) in [("qk_scale", self.qk_scale), ("layer_scale", self.layer_scale)] {
            let value = value.unwrap_or(0.0);
            ensure!(value.is_finite(), "{field}: is {value}, must be finite");
        }
        let hidden = dim as f64 * self.mlp_ratio;
        ensure!(
            hidden.is_finite() && hidden >= 1.0,
            "mlp_ratio: is {}, must give {dim} channels * mlp_ratio of at least 1",
            self.mlp_ratio
        );
        Ok(())
    }

    fn hidden(&self) -> usize {
        (self.dim as f64 * self.mlp_ratio) as usize
    }
}

/// Two linear layers with a GELU between.
#[derive(Module, Debug)]
pub struct Mlp {
    /// To the hidden channels.
    pub fc1: Linear,
    /// From the hidden channels.
    pub fc2: Linear,
}

impl Mlp {
    /// Mixes the channels of each position.
    ///
    /// # Shapes
    ///
    /// - input: `[batch, height, width, channels]`
    /// - output: as input
    pub fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        apply(&self.fc2, gelu(apply(&self.fc1, input)))
    }
}

/// A transformer block: attention, then an MLP, each normalized before and added to its input.
///
/// ```text
/// hidden = input  + drop_path(gamma1 * attn(norm1(input)))
/// output = hidden + drop_path(gamma2 * mlp(norm2(hidden)))
/// ```
#[derive(Module, Debug)]
pub struct NatBlock {
    /// Scale of the attention, `[channels]`, if the model has layer scales.
    pub gamma1: Option<Param<Tensor<1>>>,
    /// Scale of the MLP, `[channels]`, if the model has layer scales.
    pub gamma2: Option<Param<Tensor<1>>>,
    /// Normalization before attention.
    pub norm1: LayerNorm,
    /// Attention.
    pub attn: BiasedAttention,
    /// Normalization before the MLP.
    pub norm2: LayerNorm,
    /// MLP.
    pub mlp: Mlp,
    /// Decides, sample by sample, whether a branch is dropped while training.
    pub drop_path: Dropout,
}

impl NatBlock {
    #[track_caller]
    pub(in crate::models) fn new(config: &BlockConfig, device: &Device) -> Self {
        or_panic(config.check());
        let (dim, hidden) = (config.dim, config.hidden());
        let gamma =
            || config.layer_scale.map(|value| Initializer::Constant { value }.init([dim], device));
        Self {
            gamma1: gamma(),
            gamma2: gamma(),
            norm1: LayerNorm::new(dim, device),
            attn: BiasedAttention::new(config, device),
            norm2: LayerNorm::new(dim, device),
            mlp: Mlp {
                fc1: linear(dim, hidden, true, device),
                fc2: linear(hidden, dim, true, device),
            },
            drop_path: dropout("drop_path_rate", config.drop_path),
        }
    }

    /// Attention, then the MLP.
    ///
    /// # Shapes
    ///
    /// - input: `[batch, height, width, channels]`
    /// - output: as input
    #[track_caller]
    pub fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        let attended = self.attn.forward(self.norm1.forward(input.clone()));
        let hidden = input + drop_path(&self.drop_path, scaled(attended, &self.gamma1));
        let mixed = self.mlp.forward(self.norm2.forward(hidden.clone()));
        hidden + drop_path(&self.drop_path, scaled(mixed, &self.gamma2))
    }
}

fn scaled(branch: Tensor<4>, gamma: &Option<Param<Tensor<1>>>) -> Tensor<4> {
    match gamma {
        Some(gamma) => branch * gamma.val().unsqueeze(),
        None => branch,
    }
}
