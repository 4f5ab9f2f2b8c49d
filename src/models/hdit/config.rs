use burn::config::Config;
use burn::nn::EmbeddingConfig;
use burn::tensor::Device;
use serde::{Deserialize, Serialize};

use super::block::HditBlock;
use super::condition::{FourierFeatures, MappingNetwork};
use super::layers::{RmsNorm, linear};
use super::patches::{TokenMerge, TokenSplit};
use super::{AUGMENTATIONS, Hdit};
use crate::models::ConfigError;
use crate::models::check::{ensure, or_panic};

/// What the tokens of a level attend to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum HditAttentionConfig {
    /// All tokens.
    Global {
        /// Channels of a head, a multiple of 8 that divides the width.
        d_head: usize,
    },
    /// The `kernel_size` x `kernel_size` tokens around.
    Neighborhood {
        /// Channels of a head, a multiple of 8 that divides the width.
        d_head: usize,
        /// Tokens along each axis, at least 2.
        kernel_size: usize,
    },
}

impl HditAttentionConfig {
    /// Channels of a head.
    pub fn d_head(&self) -> usize {
        match *self {
            Self::Global { d_head } | Self::Neighborhood { d_head, .. } => d_head,
        }
    }

    /// Tokens of a window along each axis, if there is one.
    pub fn kernel_size(&self) -> Option<usize> {
        match *self {
            Self::Global { .. } => None,
            Self::Neighborhood { kernel_size, .. } => Some(kernel_size),
        }
    }
}

/// Configuration of a level of [`Hdit`].
#[derive(Config, Debug)]
pub struct HditLevelConfig {
    /// Blocks on the way down, and as many on the way up; of the innermost level, all.
    pub depth: usize,
    /// Channels.
    pub width: usize,
    /// Hidden channels of the feed-forward network.
    pub d_ff: usize,
    /// What a token attends to.
    pub attention: HditAttentionConfig,
    /// Probability of zeroing an element before the last projection of attention and
    /// feed-forward network while training, below 1.
    #[config(default = 0.0)]
    pub dropout: f64,
}

/// Configuration of the network that prepares the conditions of [`Hdit`].
#[derive(Config, Debug)]
pub struct HditMappingConfig {
    /// Number of blocks.
    pub depth: usize,
    /// Channels, an even number.
    pub width: usize,
    /// Hidden channels of a block.
    pub d_ff: usize,
    /// Probability of zeroing an element while training, below 1.
    #[config(default = 0.0)]
    pub dropout: f64,
}

/// Configuration of [`Hdit`].
///
/// # Example
///
/// ```rust
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_natten::models::hdit::{
///     HditAttentionConfig, HditConditions, HditConfig, HditLevelConfig, HditMappingConfig,
/// };
///
/// let near = HditAttentionConfig::Neighborhood { d_head: 16, kernel_size: 7 };
/// let config = HditConfig::new(
///     vec![
///         HditLevelConfig::new(2, 32, 64, near),
///         HditLevelConfig::new(2, 64, 128, HditAttentionConfig::Global { d_head: 16 }),
///     ],
///     HditMappingConfig::new(1, 64, 128),
/// )
/// .with_patch_size([2, 2]);
///
/// let device = Device::flex();
/// let model = config.init(&device);
/// let noisy = Tensor::<4>::random([1, 3, 32, 32], Distribution::Default, &device);
/// let sigma = Tensor::<1>::ones([1], &device);
/// let denoised = model.denoise(noisy, sigma, HditConditions::default());
/// assert_eq!(denoised.dims(), [1, 3, 32, 32]);
/// ```
#[derive(Config, Debug)]
pub struct HditConfig {
    /// The levels, outermost first; each halves height and width of the one before.
    pub levels: Vec<HditLevelConfig>,
    /// The network that prepares the conditions.
    pub mapping: HditMappingConfig,
    /// Channels of the image.
    #[config(default = 3)]
    pub channels: usize,
    /// Height and width of the patches that become a token.
    #[config(default = "[4, 4]")]
    pub patch_size: [usize; 2],
    /// Number of classes; without one the model takes no class.
    #[config(default = 0)]
    pub num_classes: usize,
    /// Channels of a further condition, such as an embedded text; without one there is none.
    #[config(default = 0)]
    pub mapping_cond_dim: usize,
    /// Standard deviation of the data, for [`Hdit::denoise`].
    #[config(default = 1.0)]
    pub sigma_data: f64,
}

impl HditConfig {
    /// Initializes a [`Hdit`] on `device`, as it starts its training: every block is the identity,
    /// and the output is zero.
    ///
    /// # Panics
    ///
    /// If a field is out of its range.
    pub fn init(&self, device: &Device) -> Hdit {
        or_panic(self.check());
        let width = self.mapping.width;
        let (innermost, outer) = self.levels.split_last().expect("there is a level, as checked");
        let level = |level: &HditLevelConfig| -> Vec<HditBlock> {
            (0..level.depth).map(|_| HditBlock::new(level, width, device)).collect()
        };
        let pairs = || self.levels.iter().zip(&self.levels[1..]);
        Hdit {
            patch_in: TokenMerge::new(self.channels, self.levels[0].width, self.patch_size, device),
            time_emb: FourierFeatures::new(1, width, device),
            time_in_proj: linear(width, width, device),
            aug_emb: FourierFeatures::new(AUGMENTATIONS, width, device),
            aug_in_proj: linear(width, width, device),
            class_emb: (self.num_classes > 0)
                .then(|| EmbeddingConfig::new(self.num_classes, width).init(device)),
            mapping_cond_in_proj: (self.mapping_cond_dim > 0)
                .then(|| linear(self.mapping_cond_dim, width, device)),
            mapping: MappingNetwork::new(&self.mapping, device),
            down_levels: outer.iter().map(level).collect(),
            merges: pairs()
                .map(|(outer, inner)| TokenMerge::new(outer.width, inner.width, [2, 2], device))
                .collect(),
            mid_level: level(innermost),
            splits: pairs()
                .map(|(outer, inner)| TokenSplit::of_tokens(inner.width, outer.width, device))
                .collect(),
            up_levels: outer.iter().map(level).collect(),
            out_norm: RmsNorm::new(self.levels[0].width, device),
            patch_out: TokenSplit::of_pixels(
                self.levels[0].width,
                self.channels,
                self.patch_size,
                device,
            ),
            sigma_data: self.sigma_data,
        }
    }

    /// Whether every field is in its range, as [`init`](Self::init) demands: of a configuration that comes from a file.
    ///
    /// # Errors
    ///
    /// The first field that is not, with its value and the bound.
    pub fn check(&self) -> Result<(), ConfigError> {
        ensure!(!self.levels.is_empty(), "levels: has 0 levels, must have at least 1");
        let positive = [
            ("channels", self.channels),
            ("patch_size", self.patch_size[0]),
            ("patch_size", self.patch_size[1]),
            ("mapping.d_ff", self.mapping.d_ff),
        ];
        for (field, value) in positive {
            ensure!(value >= 1, "{field}: is {value}, must be at least 1");
        }
        let width = self.mapping.width;
        ensure!(
            width >= 2 && width.is_multiple_of(2),
            "mapping.width: is {width}, must be a positive even number"
        );
        ensure!(
            self.sigma_data.is_finite() && self.sigma_data > 0.0,
            "sigma_data: is {}, must be positive and finite",
            self.sigma_data
        );
        for (index, level) in self.levels.iter().enumerate() {
            let d_head = level.attention.d_head();
            ensure!(
                d_head >= 8 && d_head.is_multiple_of(8),
                "levels[{index}].attention.d_head: is {d_head}, must be a positive multiple of 8"
            );
            ensure!(
                level.width >= 1 && level.width.is_multiple_of(d_head),
                "levels[{index}].width: is {}, must be a positive multiple of {d_head} (d_head)",
                level.width
            );
            ensure!(level.d_ff >= 1, "levels[{index}].d_ff: is 0, must be at least 1");
            if let Some(kernel_size) = level.attention.kernel_size() {
                ensure!(
                    kernel_size >= 2,
                    "levels[{index}].attention.kernel_size: is {kernel_size}, must be at least 2"
                );
            }
        }
        Ok(())
    }
}
