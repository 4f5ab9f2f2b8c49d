//! A hierarchical vision transformer, after DiNAT.
//!
//! ```text
//! picture -> convolutions -> 2 blocks -> halve -> 2 blocks -> mean -> linear -> logits
//! ```
//!
//! Blocks alternate between a dense window and a dilated one: the first sees what is near, the
//! second spreads it over the picture. Attention itself does not know where a token is; a learned
//! embedding of each position tells it. Pictures may have any size, and each its own: the embedding
//! is stretched over it, and windows shrink to what there is.
//!
//! Layers are those of this crate where Burn has such layers, too: the gradients of their weights
//! are sums over all tokens, which take GPUs long otherwise.

use burn::config::Config;
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig, PaddingConfig2d};
use burn::tensor::{Device, FloatDType, Tensor};
use burn::train::{ClassificationOutput, InferenceStep, TrainOutput, TrainStep};
use burn_natten::nn::{
    LayerNorm, NeighborhoodTransformerBlock, NeighborhoodTransformerBlockConfig, gelu, linear,
};

use crate::loader::Batch;
use crate::positions::Positions;
use crate::tokens::Tokens;

/// The convolutions halve larger pictures until their side is at most this.
const LARGEST_FIRST_STAGE: usize = 24;

/// Configuration of [`VisionTransformer`].
#[derive(Config, Debug)]
pub struct VisionTransformerConfig {
    /// Channels of a picture.
    pub channels: usize,
    /// Height and width of the pictures that positions are learned for and windows fit into.
    pub side: usize,
    /// Number of classes.
    pub classes: usize,
    /// Side of a window.
    pub kernel_size: usize,
    /// Dilation of every second block.
    pub dilation: usize,
    /// Channels of each stage.
    #[config(default = "[32, 64]")]
    pub dims: [usize; 2],
    /// Blocks of each stage.
    #[config(default = "[2, 2]")]
    pub depths: [usize; 2],
    /// Channels of a head.
    #[config(default = 16)]
    pub head_dim: usize,
    /// Probability of skipping half a block for a picture while training.
    #[config(default = 0.05)]
    pub drop_path: f64,
}

impl VisionTransformerConfig {
    /// Height and width of the first stage.
    pub fn first_side(picture_side: usize) -> usize {
        let mut side = picture_side;
        while side > LARGEST_FIRST_STAGE {
            side = side.div_ceil(2);
        }
        side
    }

    /// Initializes the model on `device`.
    pub fn init(&self, device: &Device) -> VisionTransformer {
        let side = Self::first_side(self.side);
        let [narrow, wide] = self.dims;
        let mut stem = Vec::new();
        let (mut channels, mut size) = (self.channels, self.side);
        while size > side {
            stem.push(convolution(channels, narrow, 2, device));
            (channels, size) = (narrow, size.div_ceil(2));
        }
        // Two more, so that a token knows about the strokes around it rather than single pixels.
        stem.push(convolution(channels, narrow, 1, device));
        stem.push(convolution(narrow, narrow, 1, device));
        VisionTransformer {
            stem,
            positions: Positions::new(side, narrow, device),
            first: self.stage(0, side, device),
            halve: convolution(narrow, wide, 2, device),
            second: self.stage(1, side.div_ceil(2), device),
            norm: LayerNorm::new(wide, device),
            head: LinearConfig::new(wide, self.classes).init(device),
        }
    }

    /// The blocks of a stage; windows shrink where the stage is smaller than they are.
    fn stage(
        &self,
        stage: usize,
        side: usize,
        device: &Device,
    ) -> Vec<NeighborhoodTransformerBlock> {
        let (dim, kernel_size) = (self.dims[stage], self.kernel_size.min(side));
        let blocks = 0..self.depths[stage];
        blocks
            .map(|block| {
                let dilation =
                    if block % 2 == 0 { 1 } else { self.dilation.min(side / kernel_size) };
                NeighborhoodTransformerBlockConfig::new(
                    dim,
                    dim / self.head_dim,
                    [kernel_size, kernel_size],
                )
                .with_dilation([dilation, dilation])
                .with_drop_path(self.drop_path)
                .init(device)
            })
            .collect()
    }
}

/// 3 x 3; with a stride of 2 it halves the side, rounding up.
fn convolution(channels: usize, out: usize, stride: usize, device: &Device) -> Conv2d {
    Conv2dConfig::new([channels, out], [3, 3])
        .with_stride([stride, stride])
        .with_padding(PaddingConfig2d::Explicit(1, 1, 1, 1))
        .init(device)
}

/// Classifies pictures.
#[derive(Module, Debug)]
pub struct VisionTransformer {
    stem: Vec<Conv2d>,
    positions: Positions,
    /// Blocks at the resolution of the convolutions.
    pub first: Vec<NeighborhoodTransformerBlock>,
    /// Between the stages.
    pub halve: Conv2d,
    second: Vec<NeighborhoodTransformerBlock>,
    norm: LayerNorm,
    head: Linear,
}

impl VisionTransformer {
    /// Logits of the classes, `[pictures, classes]`.
    pub fn forward(&self, images: Tokens) -> Tensor<2> {
        let tokens = apply(&self.first, self.tokens(images));
        let tokens = apply(&self.second, tokens.convolve(&self.halve));
        linear(&self.head, tokens.map(|tokens| self.norm.forward(tokens)).mean())
    }

    /// What the first block sees.
    pub fn tokens(&self, images: Tokens) -> Tokens {
        let mut features = images;
        for (index, convolution) in self.stem.iter().enumerate() {
            if index > 0 {
                features = features.map(gelu);
            }
            features = features.convolve(convolution);
        }
        features.by_size(|grids| self.positions.add(grids))
    }

    /// Logits and loss of a batch.
    pub fn classify(&self, batch: Batch) -> ClassificationOutput {
        // The loss of 16-bit logits would lose what it is about, their differences.
        let logits = self.forward(batch.images).cast(FloatDType::F32);
        let loss = CrossEntropyLossConfig::new()
            .init(&logits.device())
            .forward(logits.clone(), batch.classes.clone());
        ClassificationOutput::new(loss, logits, batch.classes)
    }
}

fn apply(blocks: &[NeighborhoodTransformerBlock], tokens: Tokens) -> Tokens {
    blocks.iter().fold(tokens, |tokens, block| tokens.attend(block))
}

impl TrainStep for VisionTransformer {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> TrainOutput<ClassificationOutput> {
        let (together, pictures) = (batch.together.clone(), batch.order.len());
        let output = self.classify(batch);
        let loss = together.weigh(output.loss.clone(), pictures);
        TrainOutput::new(self, together.backward(loss), output)
    }
}

impl InferenceStep for VisionTransformer {
    type Input = Batch;
    type Output = ClassificationOutput;

    fn step(&self, batch: Batch) -> ClassificationOutput {
        self.classify(batch)
    }
}

#[cfg(test)]
mod tests;
