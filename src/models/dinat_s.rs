//! DiNAT_s, dilated neighborhood attention in the frame of the Swin Transformer.
//!
//! A convolution makes a token of 4 x 4 pixels; between levels 2 x 2 tokens are merged into one.
//!
//! Names of fields are those of the PyTorch model, so that
//! [weights](crate::models#weights) have the same keys.
//!
//! Reference: [Dilated Neighborhood Attention Transformer](https://arxiv.org/abs/2209.15001),
//! [Swin Transformer](https://arxiv.org/abs/2103.14030).

use burn::config::Config;
use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::{Device, Tensor};

use super::ConfigError;
use super::Features;
use super::check::{ensure, or_panic};
use super::nat::{alternating, check_levels};
use super::parts::{
    BlockConfig, NatBlock, PatchEmbed, blocks_of_levels, check_blocks, check_rate, classifier,
    classify, features, linear, pad_to,
};
use crate::nn::{LayerNorm, linear as apply};

/// Pixels of a token along each side.
const PATCH: usize = 4;

/// Configuration of [`DinatS`].
///
/// The published sizes are constructors, [`dinat_s_tiny`](Self::dinat_s_tiny) to
/// [`dinat_s_large_384`](Self::dinat_s_large_384).
///
/// # Example
///
/// ```rust
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_natten::models::dinat_s::DinatSConfig;
///
/// let device = Device::flex();
/// let model = DinatSConfig::new(16, vec![1, 1], vec![2, 4])
///     .with_kernel_size(3)
///     .with_num_classes(10)
///     .init(&device);
/// let images = Tensor::<4>::random([2, 3, 32, 32], Distribution::Default, &device);
/// assert_eq!(model.forward(images).dims(), [2, 10]);
/// ```
#[derive(Config, Debug)]
pub struct DinatSConfig {
    /// Channels of the first level; each level has twice those of the one before.
    pub embed_dim: usize,
    /// Blocks of each level.
    pub depths: Vec<usize>,
    /// Heads of each level, as many numbers as `depths` has.
    pub num_heads: Vec<usize>,
    /// Keys that a query sees along each axis, at least 2.
    #[config(default = 7)]
    pub kernel_size: usize,
    /// Distance between them, for each block of each level; 1 everywhere if absent.
    pub dilations: Option<Vec<Vec<usize>>>,
    /// Hidden channels of the MLP, as a multiple of its channels.
    #[config(default = 4.0)]
    pub mlp_ratio: f64,
    /// Channels of the image.
    #[config(default = 3)]
    pub in_chans: usize,
    /// Number of classes; with 0 there is no head, and the output is the mean of the features.
    #[config(default = 1000)]
    pub num_classes: usize,
    /// Whether the projection to query, key and value has a bias.
    #[config(default = true)]
    pub qkv_bias: bool,
    /// Factor on the scores; without one `head_dim^-0.5`.
    pub qk_scale: Option<f64>,
    /// Whether the tokens of the image are normalized.
    #[config(default = true)]
    pub patch_norm: bool,
    /// Probability that the last block skips a branch for a sample while training, below 1; that of
    /// the blocks before it falls evenly to 0.
    #[config(default = 0.0)]
    pub drop_path_rate: f64,
}

impl DinatSConfig {
    /// All published sizes, by name.
    pub fn published() -> [(&'static str, DinatSConfig); 6] {
        [
            ("dinat_s_tiny", Self::dinat_s_tiny()),
            ("dinat_s_small", Self::dinat_s_small()),
            ("dinat_s_base", Self::dinat_s_base()),
            ("dinat_s_large", Self::dinat_s_large()),
            ("dinat_s_large_21k", Self::dinat_s_large_21k()),
            ("dinat_s_large_384", Self::dinat_s_large_384()),
        ]
    }

    /// DiNAT_s-Tiny, 28 M parameters.
    pub fn dinat_s_tiny() -> Self {
        size(96, 6, 3, [8, 4, 2, 1]).with_drop_path_rate(0.2)
    }

    /// DiNAT_s-Small, 50 M parameters.
    pub fn dinat_s_small() -> Self {
        size(96, 18, 3, [8, 4, 2, 1]).with_drop_path_rate(0.3)
    }

    /// DiNAT_s-Base, 88 M parameters.
    pub fn dinat_s_base() -> Self {
        size(128, 18, 4, [8, 4, 2, 1]).with_drop_path_rate(0.5)
    }

    /// DiNAT_s-Large at 224 x 224, 197 M parameters.
    pub fn dinat_s_large() -> Self {
        size(192, 18, 6, [8, 4, 2, 1]).with_drop_path_rate(0.35)
    }

    /// DiNAT_s-Large as it was trained on ImageNet-22K; its 21841 classes are set with
    /// [`with_num_classes`](Self::with_num_classes).
    pub fn dinat_s_large_21k() -> Self {
        Self::dinat_s_large().with_drop_path_rate(0.2)
    }

    /// DiNAT_s-Large at 384 x 384.
    pub fn dinat_s_large_384() -> Self {
        size(192, 18, 6, [13, 6, 3, 1]).with_drop_path_rate(0.35)
    }

    /// Initializes a [`DinatS`] on `device`. Parameters take memory when they are first used.
    ///
    /// # Panics
    ///
    /// If a field is out of its range.
    pub fn init(&self, device: &Device) -> DinatS {
        or_panic(self.check());
        let block = |level, block| self.block(level, block);
        let blocks = blocks_of_levels(&self.depths, self.drop_path_rate, block, device);
        let last = self.depths.len() - 1;
        let layers = blocks.into_iter().enumerate().map(|(level, blocks)| {
            let dim = self.embed_dim << level;
            let downsample = (level < last).then(|| PatchMerging::new(dim, device));
            DinatSLevel { blocks, downsample }
        });
        let dim = self.embed_dim << last;
        let channels = [self.in_chans, self.embed_dim];
        DinatS {
            patch_embed: PatchEmbed::new(channels, PATCH, self.patch_norm, device),
            layers: layers.collect(),
            norm: LayerNorm::new(dim, device),
            head: classifier(dim, self.num_classes, device),
        }
    }

    /// Whether every field is in its range, as [`init`](Self::init) demands: of a configuration that comes from a file.
    ///
    /// # Errors
    ///
    /// The first field that is not, with its value and the bound.
    pub fn check(&self) -> Result<(), ConfigError> {
        check_levels(&self.depths, &self.num_heads, self.dilations.as_deref())?;
        for (field, value) in [("embed_dim", self.embed_dim), ("in_chans", self.in_chans)] {
            ensure!(value >= 1, "{field}: is 0, must be at least 1");
        }
        check_rate(self.drop_path_rate)?;
        check_blocks(&self.depths, |level, block| self.block(level, block))
    }

    fn block(&self, level: usize, block: usize) -> BlockConfig {
        BlockConfig {
            dim: self.embed_dim << level,
            num_heads: self.num_heads[level],
            kernel_size: self.kernel_size,
            dilation: self.dilations.as_ref().map_or(1, |dilations| dilations[level][block]),
            mlp_ratio: self.mlp_ratio,
            qkv_bias: self.qkv_bias,
            qk_scale: self.qk_scale,
            layer_scale: None,
            drop_path: 0.0,
        }
    }
}

fn size(embed_dim: usize, third: usize, first_heads: usize, dilations: [usize; 4]) -> DinatSConfig {
    let depths = vec![2, 2, third, 2];
    let dilations = alternating(&depths, &dilations);
    DinatSConfig::new(embed_dim, depths, (0..4).map(|level| first_heads << level).collect())
        .with_dilations(Some(dilations))
}

/// DiNAT_s with a head for classification. Made by [`DinatSConfig`].
#[derive(Module, Debug)]
pub struct DinatS {
    /// From pixels to tokens.
    pub patch_embed: PatchEmbed,
    /// The levels, from the finest.
    pub layers: Vec<DinatSLevel>,
    /// Normalization of the last level.
    pub norm: LayerNorm,
    /// From channels to classes, if there are classes.
    pub head: Option<Linear>,
}

impl DinatS {
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
        let downsample = |level: &DinatSLevel, state| match &level.downsample {
            Some(downsample) => downsample.forward(state),
            None => state,
        };
        features(tokens, &self.layers, [&DinatSLevel::forward_blocks, &downsample], &self.norm)
    }
}

/// Blocks at one resolution, and the way to the next.
#[derive(Module, Debug)]
pub struct DinatSLevel {
    /// The blocks.
    pub blocks: Vec<NatBlock>,
    /// To the next level, if there is one.
    pub downsample: Option<PatchMerging>,
}

impl DinatSLevel {
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

/// Merges 2 x 2 tokens into one with twice the channels.
#[derive(Module, Debug)]
pub struct PatchMerging {
    /// From four times the channels to two times.
    pub reduction: Linear,
    /// Normalization before it.
    pub norm: LayerNorm,
}

impl PatchMerging {
    fn new(dim: usize, device: &Device) -> Self {
        Self {
            reduction: linear(4 * dim, 2 * dim, false, device),
            norm: LayerNorm::new(4 * dim, device),
        }
    }

    /// Merges the tokens of a map, padded with zeros at the bottom and at the right to even sides.
    ///
    /// # Shapes
    ///
    /// - input: `[batch, height, width, dim]`
    /// - output: `[batch, height / 2, width / 2, 2 * dim]`, rounded up
    pub fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        let [_, height, width, _] = input.dims();
        let input = pad_to(input, [height.next_multiple_of(2), width.next_multiple_of(2)]);
        let [batch, height, width, dim] = input.dims();
        let (height, width) = (height / 2, width / 2);
        // Columns vary slower than rows within the four.
        let merged = input
            .reshape([batch, height, 2, width, 2, dim])
            .permute([0, 1, 3, 4, 2, 5])
            .reshape([batch, height, width, 4 * dim]);
        apply(&self.reduction, self.norm.forward(merged))
    }
}
