use burn::config::Config;
use burn::tensor::Device;

use super::{ConvDownsample, ConvEmbed, Nat, NatLevel};
use crate::models::ConfigError;
use crate::models::check::{ensure, or_panic};
use crate::models::parts::{BlockConfig, blocks_of_levels, check_blocks, check_rate, classifier};
use crate::nn::LayerNorm;

/// Configuration of [`Nat`], NAT without dilations and DiNAT with them.
///
/// The published sizes are constructors, [`nat_mini`](Self::nat_mini) to
/// [`dinat_large_384_11x11`](Self::dinat_large_384_11x11).
///
/// # Example
///
/// A small one for small images:
///
/// ```rust
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_natten::models::nat::NatConfig;
///
/// let device = Device::flex();
/// let model = NatConfig::new(16, vec![2, 2], vec![2, 4])
///     .with_kernel_size(3)
///     .with_dilations(Some(vec![vec![1, 2], vec![1, 1]]))
///     .with_num_classes(10)
///     .init(&device);
/// let images = Tensor::<4>::random([2, 3, 32, 32], Distribution::Default, &device);
/// assert_eq!(model.forward(images).dims(), [2, 10]);
/// ```
#[derive(Config, Debug)]
pub struct NatConfig {
    /// Channels of the first level, an even number; each level has twice those of the one before.
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
    #[config(default = 3.0)]
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
    /// What the learned scales of the branches start at; without it there are none.
    pub layer_scale: Option<f64>,
    /// Probability that the last block skips a branch for a sample while training, below 1; that of
    /// the blocks before it falls evenly to 0.
    #[config(default = 0.0)]
    pub drop_path_rate: f64,
}

impl NatConfig {
    /// Initializes a [`Nat`] on `device`. Parameters take memory when they are first used.
    ///
    /// # Panics
    ///
    /// If a field is out of its range.
    pub fn init(&self, device: &Device) -> Nat {
        or_panic(self.check());
        let block = |level, block| self.block(level, block);
        let blocks = blocks_of_levels(&self.depths, self.drop_path_rate, block, device);
        let last = self.depths.len() - 1;
        let levels = blocks.into_iter().enumerate().map(|(level, blocks)| {
            let dim = self.embed_dim << level;
            let downsample = (level < last).then(|| ConvDownsample::new(dim, device));
            NatLevel { blocks, downsample }
        });
        let dim = self.embed_dim << last;
        Nat {
            patch_embed: ConvEmbed::new(self.in_chans, self.embed_dim, device),
            levels: levels.collect(),
            norm: LayerNorm::new(dim, device),
            head: classifier(dim, self.num_classes, device),
        }
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
            layer_scale: self.layer_scale,
            drop_path: 0.0,
        }
    }

    /// Whether every field is in its range, as [`init`](Self::init) demands: of a configuration that comes from a file.
    ///
    /// # Errors
    ///
    /// The first field that is not, with its value and the bound.
    pub fn check(&self) -> Result<(), ConfigError> {
        check_levels(&self.depths, &self.num_heads, self.dilations.as_deref())?;
        ensure!(
            self.embed_dim >= 2 && self.embed_dim.is_multiple_of(2),
            "embed_dim: is {}, must be a positive even number",
            self.embed_dim
        );
        ensure!(self.in_chans >= 1, "in_chans: is 0, must be at least 1");
        check_rate(self.drop_path_rate)?;
        check_blocks(&self.depths, |level, block| self.block(level, block))
    }
}

/// A bound that no model comes near, so that a file cannot ask for more blocks than there is memory.
pub(in crate::models) fn check_depth(name: &str, depth: usize) -> Result<(), ConfigError> {
    ensure!(depth <= 4096, "{name} has {depth} blocks, must have at most 4096");
    Ok(())
}

/// What the lists of a configuration must have in common.
pub(in crate::models) fn check_levels(
    depths: &[usize],
    num_heads: &[usize],
    dilations: Option<&[Vec<usize>]>,
) -> Result<(), ConfigError> {
    let levels = depths.len();
    ensure!((1..=16).contains(&levels), "depths: has {levels} levels, must have 1 to 16");
    for (level, depth) in depths.iter().enumerate() {
        check_depth(&format!("depths: level {level}"), *depth)?;
    }
    let got = num_heads.len();
    ensure!(got == levels, "num_heads: has {got} levels, must have {levels} as depths");
    let Some(dilations) = dilations else { return Ok(()) };
    let got = dilations.len();
    ensure!(got == levels, "dilations: has {got} levels, must have {levels} as depths");
    for (level, (dilations, depth)) in dilations.iter().zip(depths).enumerate() {
        let got = dilations.len();
        ensure!(
            got == *depth,
            "dilations: level {level} has {got} blocks, must have {depth} as depths"
        );
    }
    Ok(())
}
