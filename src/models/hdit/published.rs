//! The configurations that k-diffusion comes with, of models whose attention is known here.

use super::{HditAttentionConfig, HditConfig, HditLevelConfig, HditMappingConfig};

/// Hidden channels of all feed-forward networks, as a multiple of their channels.
const HIDDEN: usize = 3;
/// Channels of all heads.
const D_HEAD: usize = 64;

fn level(depth: usize, width: usize, kernel_size: Option<usize>, dropout: f64) -> HditLevelConfig {
    let d_head = D_HEAD;
    let attention = match kernel_size {
        Some(kernel_size) => HditAttentionConfig::Neighborhood { d_head, kernel_size },
        None => HditAttentionConfig::Global { d_head },
    };
    HditLevelConfig::new(depth, width, HIDDEN * width, attention).with_dropout(dropout)
}

fn mapping() -> HditMappingConfig {
    HditMappingConfig::new(2, 256, HIDDEN * 256)
}

/// Ten classes, and the one for "no class".
const TEN_CLASSES: usize = 11;

impl HditConfig {
    /// Flowers of 256 x 256: `config_oxford_flowers.json`.
    ///
    /// ```rust
    /// use burn_natten::models::hdit::HditConfig;
    ///
    /// let config = HditConfig::oxford_flowers();
    /// assert_eq!(config.levels.iter().map(|level| level.width).sum::<usize>(), 896);
    /// ```
    pub fn oxford_flowers() -> Self {
        let near = Some(7);
        let levels =
            vec![level(2, 128, near, 0.0), level(2, 256, near, 0.0), level(4, 512, None, 0.1)];
        Self::new(levels, mapping()).with_sigma_data(0.5)
    }

    /// CIFAR-10, 32 x 32: `config_cifar10_transformer.json`.
    pub fn cifar10() -> Self {
        Self::new(vec![level(2, 256, None, 0.05), level(4, 512, None, 0.05)], mapping())
            .with_patch_size([2, 2])
            .with_num_classes(TEN_CLASSES)
            .with_sigma_data(0.5)
    }

    /// MNIST, 28 x 28: `config_mnist_transformer.json`.
    pub fn mnist() -> Self {
        Self::new(vec![level(8, 256, None, 0.05)], mapping())
            .with_channels(1)
            .with_num_classes(TEN_CLASSES)
            .with_sigma_data(0.6162)
    }
}
