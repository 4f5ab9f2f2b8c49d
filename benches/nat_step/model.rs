//! The Neighborhood Attention Transformer for images.
//!
//! ```text
//! picture -> two convolutions, a quarter of the side -> 4 stages of blocks, halved in between
//!         -> mean -> linear -> logits
//! ```
//!
//! Reference: [Neighborhood Attention Transformer](https://arxiv.org/abs/2204.07143). Its biases by
//! relative position are left out.

use burn::config::Config;
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{LayerNorm, LayerNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::{Device, FloatDType, Int, Tensor};
use burn_natten::nn::{NeighborhoodTransformerBlock, NeighborhoodTransformerBlockConfig};

/// Number of stages.
pub const STAGES: usize = 4;

/// Configuration of [`Nat`].
#[derive(Config, Debug)]
pub struct NatConfig {
    /// Height and width of a picture.
    pub side: usize,
    /// Channels of each stage.
    pub dims: [usize; STAGES],
    /// Heads of each stage.
    pub heads: [usize; STAGES],
    /// Blocks of each stage.
    pub depths: [usize; STAGES],
    /// Side of a window; smaller where a stage is.
    #[config(default = 7)]
    pub kernel_size: usize,
    /// Number of classes.
    #[config(default = 1000)]
    pub classes: usize,
}

impl NatConfig {
    /// NAT-Mini on pictures of 224 x 224.
    pub fn mini() -> Self {
        Self::new(224, [64, 128, 256, 512], [2, 4, 8, 16], [3, 4, 6, 5])
    }

    /// As small as a model with all its parts can be, to try them on a CPU.
    pub fn tiny() -> Self {
        Self::new(64, [16, 32, 64, 128], [1, 2, 4, 8], [1, 2, 1, 1]).with_classes(10)
    }

    /// Height and width of a stage.
    pub fn stage_side(&self, stage: usize) -> usize {
        self.side.div_ceil(4 << stage)
    }

    /// Side of a stage's windows.
    pub fn window(&self, stage: usize) -> usize {
        self.kernel_size.min(self.stage_side(stage))
    }

    /// Initializes the model on `device`.
    pub fn init(&self, device: &Device) -> Nat {
        let [first, .., last] = self.dims;
        let stage = |stage: usize| {
            let (dim, window) = (self.dims[stage], self.window(stage));
            let block = || {
                let config = NeighborhoodTransformerBlockConfig::new(
                    dim,
                    self.heads[stage],
                    [window, window],
                );
                config.init(device)
            };
            Stage {
                halve: (stage > 0).then(|| Halve {
                    convolution: convolution(self.dims[stage - 1], dim, device),
                    norm: LayerNormConfig::new(dim).init(device),
                }),
                blocks: (0..self.depths[stage]).map(|_| block()).collect(),
            }
        };
        Nat {
            stem: vec![convolution(3, first / 2, device), convolution(first / 2, first, device)],
            stem_norm: LayerNormConfig::new(first).init(device),
            stages: (0..STAGES).map(stage).collect(),
            norm: LayerNormConfig::new(last).init(device),
            head: LinearConfig::new(last, self.classes).init(device),
        }
    }
}

/// 3 x 3, and half the side.
fn convolution(channels: usize, out: usize, device: &Device) -> Conv2d {
    Conv2dConfig::new([channels, out], [3, 3])
        .with_stride([2, 2])
        .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
        .init(device)
}

/// Classifies pictures.
#[derive(Module, Debug)]
pub struct Nat {
    stem: Vec<Conv2d>,
    stem_norm: LayerNorm,
    stages: Vec<Stage>,
    norm: LayerNorm,
    head: Linear,
}

#[derive(Module, Debug)]
struct Stage {
    halve: Option<Halve>,
    blocks: Vec<NeighborhoodTransformerBlock>,
}

#[derive(Module, Debug)]
struct Halve {
    convolution: Conv2d,
    norm: LayerNorm,
}

impl Nat {
    /// Logits of the classes.
    ///
    /// # Shapes
    ///
    /// - images: `[batch, 3, side, side]`
    /// - output: `[batch, classes]`
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let features =
            self.stem.iter().fold(images, |features, convolution| convolution.forward(features));
        let tokens = self.stem_norm.forward(features.permute([0, 2, 3, 1]));
        let tokens = self.stages.iter().fold(tokens, |tokens, stage| stage.forward(tokens));
        let tokens = self.norm.forward(tokens);
        let [batch, height, width, channels] = tokens.dims();
        let pooled = tokens.reshape([batch, height * width, channels]).mean_dim(1);
        self.head.forward(pooled.squeeze_dim::<2>(1))
    }

    /// The mean cross-entropy, in f32: 16-bit logits would lose their differences.
    pub fn loss(&self, images: Tensor<4>, classes: Tensor<1, Int>) -> Tensor<1> {
        let logits = self.forward(images).cast(FloatDType::F32);
        CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, classes)
    }
}

impl Stage {
    fn forward(&self, tokens: Tensor<4>) -> Tensor<4> {
        let tokens = match &self.halve {
            Some(Halve { convolution, norm }) => {
                let halved = convolution.forward(tokens.permute([0, 3, 1, 2]));
                norm.forward(halved.permute([0, 2, 3, 1]))
            }
            None => tokens,
        };
        self.blocks.iter().fold(tokens, |tokens, block| block.forward(tokens))
    }
}
