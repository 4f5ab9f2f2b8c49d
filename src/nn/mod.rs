//! Layers: attention of each rank, a transformer block for images, and native sparse attention of sequences.
//!
//! Each is made from a configuration, [`init`](NeighborhoodAttention2dConfig::init) and
//! [`forward`](NeighborhoodAttention2d::forward), as Burn's own layers are, and is a
//! [`Module`](burn::module::Module): it can be part of a model, saved, loaded and trained.
//!
//! ```rust
//! use burn::tensor::{Device, Distribution, Tensor};
//! use burn_natten::nn::NeighborhoodAttention2dConfig;
//!
//! let device = Device::flex().autodiff();
//! // 64 channels, 2 heads, windows of 7 x 7
//! let layer = NeighborhoodAttention2dConfig::new(64, 2, [7, 7]).init(&device);
//! let image = Tensor::<4>::random([1, 16, 16, 64], Distribution::Default, &device);
//! let gradients = layer.forward(image).sum().backward();
//! assert!(layer.qkv.weight.val().grad(&gradients).is_some());
//! ```

mod attention;
mod block;
mod native_sparse;
mod tokens;

#[cfg(feature = "models")]
pub(crate) use attention::dropout;
pub use attention::{
    NeighborhoodAttention1d, NeighborhoodAttention1dConfig, NeighborhoodAttention2d,
    NeighborhoodAttention2dConfig, NeighborhoodAttention3d, NeighborhoodAttention3dConfig,
};
#[cfg(feature = "models")]
pub(crate) use block::drop_path;
pub use block::{NeighborhoodTransformerBlock, NeighborhoodTransformerBlockConfig};
pub use native_sparse::{
    LearnedPooling, NativeSparseAttention, NativeSparseAttentionConfig, NativeSparseProjections,
    PoolingConfig,
};
pub(crate) use tokens::thirds;
pub use tokens::{LayerNorm, conv2d, gelu, linear};
