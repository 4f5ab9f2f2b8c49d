//! Isotropic NAT and DiNAT, which keep one resolution as the Vision Transformer does.
//!
//! A convolution makes a token of 16 x 16 pixels; all blocks have the same sides and channels.
//!
//! Names of fields are those of the PyTorch model, so that
//! [weights](crate::models#weights) have the same keys.
//!
//! Reference: [Dilated Neighborhood Attention Transformer](https://arxiv.org/abs/2209.15001).

use burn::config::Config;
use burn::module::Module;
use burn::nn::Linear;
use burn::tensor::{Device, Tensor};

use super::ConfigError;
use super::Features;
use super::check::{ensure, or_panic};
use super::nat::check_depth;
use super::parts::{
    BlockConfig, NatBlock, PatchEmbed, check_blocks, check_rate, classifier, classify,
    drop_path_rates,
};
use crate::nn::LayerNorm;

/// Configuration of [`Isotropic`].
///
/// # Example
///
/// ```rust
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_natten::models::isotropic::IsotropicConfig;
///
/// let device = Device::flex();
/// let model = IsotropicConfig::new(32, 2, 4)
///     .with_kernel_size(3)
///     .with_num_classes(10)
///     .init(&device);
/// let images = Tensor::<4>::random([2, 3, 64, 64], Distribution::Default, &device);
/// assert_eq!(model.forward(images).dims(), [2, 10]);
/// ```
#[derive(Config, Debug)]
pub struct IsotropicConfig {
    /// Channels.
    pub embed_dim: usize,
    /// Number of blocks.
    pub depth: usize,
    /// Number of heads.
    pub num_heads: usize,
    /// Keys that a query sees along each axis, at least 2.
    #[config(default = 7)]
    pub kernel_size: usize,
    /// Distance between them in every second block, beginning with the second; 1 in the others.
    #[config(default = 1)]
    pub dilation: usize,
    /// Pixels of a token along each side.
    #[config(default = 16)]
    pub patch_size: usize,
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
    /// Probability that the last block skips a branch for a sample while training, below 1; that of
    /// the blocks before it falls evenly to 0.
    #[config(default = 0.0)]
    pub drop_path_rate: f64,
}

impl IsotropicConfig {
    /// All published sizes, by name.
    pub fn published() -> [(&'static str, IsotropicConfig); 4] {
        [
            ("nat_isotropic_small", Self::nat_isotropic_small()),
            ("nat_isotropic_base", Self::nat_isotropic_base()),
            ("dinat_isotropic_small", Self::dinat_isotropic_small()),
            ("dinat_isotropic_base", Self::dinat_isotropic_base()),
        ]
    }

    /// Isotropic NAT-Small, 22 M parameters.
    pub fn nat_isotropic_small() -> Self {
        Self::new(384, 12, 12).with_drop_path_rate(0.1)
    }

    /// Isotropic NAT-Base, 86 M parameters.
    pub fn nat_isotropic_base() -> Self {
        Self::new(768, 12, 24).with_drop_path_rate(0.4)
    }

    /// Isotropic DiNAT-Small, 22 M parameters.
    pub fn dinat_isotropic_small() -> Self {
        Self::nat_isotropic_small().with_dilation(2)
    }

    /// Isotropic DiNAT-Base, 86 M parameters.
    pub fn dinat_isotropic_base() -> Self {
        Self::nat_isotropic_base().with_dilation(2)
    }

    /// Initializes an [`Isotropic`] on `device`. Parameters take memory when they are first used.
    ///
    /// # Panics
    ///
    /// If a field is out of its range.
    pub fn init(&self, device: &Device) -> Isotropic {
        or_panic(self.check());
        let rates = drop_path_rates(self.drop_path_rate, self.depth);
        let layers = rates.into_iter().enumerate().map(|(index, drop_path)| {
            let config = BlockConfig { drop_path, ..self.block(index) };
            NatBlock::new(&config, device)
        });
        let channels = [self.in_chans, self.embed_dim];
        Isotropic {
            patch_embed: PatchEmbed::new(channels, self.patch_size, true, device),
            layers: layers.collect(),
            norm: LayerNorm::new(self.embed_dim, device),
            head: classifier(self.embed_dim, self.num_classes, device),
        }
    }

    /// Whether every field is in its range, as [`init`](Self::init) demands: of a configuration that comes from a file.
    ///
    /// # Errors
    ///
    /// The first field that is not, with its value and the bound.
    pub fn check(&self) -> Result<(), ConfigError> {
        let positive = [
            ("embed_dim", self.embed_dim),
            ("patch_size", self.patch_size),
            ("in_chans", self.in_chans),
        ];
        for (field, value) in positive {
            ensure!(value >= 1, "{field}: is 0, must be at least 1");
        }
        check_depth("depth: it", self.depth)?;
        check_rate(self.drop_path_rate)?;
        check_blocks(&[self.depth], |_, block| self.block(block))
    }

    fn block(&self, index: usize) -> BlockConfig {
        BlockConfig {
            dim: self.embed_dim,
            num_heads: self.num_heads,
            kernel_size: self.kernel_size,
            dilation: if index.is_multiple_of(2) { 1 } else { self.dilation },
            mlp_ratio: self.mlp_ratio,
            qkv_bias: self.qkv_bias,
            qk_scale: self.qk_scale,
            layer_scale: None,
            drop_path: 0.0,
        }
    }
}

/// A transformer of neighborhood attention at one resolution, with a head for classification. Made
/// by [`IsotropicConfig`].
#[derive(Module, Debug)]
pub struct Isotropic {
    /// From pixels to tokens.
    pub patch_embed: PatchEmbed,
    /// The blocks.
    pub layers: Vec<NatBlock>,
    /// Normalization of the output.
    pub norm: LayerNorm,
    /// From channels to classes, if there are classes.
    pub head: Option<Linear>,
}

impl Isotropic {
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

    /// The features of the blocks, as one level.
    ///
    /// # Shapes
    ///
    /// - images: `[batch, in_chans, height, width]`
    /// - output: `[batch, height / patch_size, width / patch_size, embed_dim]`, rounded up
    #[track_caller]
    pub fn forward_features(&self, images: Tensor<4>) -> Features {
        let tokens = self.patch_embed.forward(images);
        let state = self.layers.iter().fold(tokens, |state, block| block.forward(state));
        Features { output: self.norm.forward(state.clone()), levels: vec![state] }
    }
}
