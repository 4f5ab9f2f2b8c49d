//! Layers.

mod attention;
mod block;

pub use attention::{
    NeighborhoodAttention1d, NeighborhoodAttention1dConfig, NeighborhoodAttention2d,
    NeighborhoodAttention2dConfig, NeighborhoodAttention3d, NeighborhoodAttention3dConfig,
};
pub use block::{NeighborhoodTransformerBlock, NeighborhoodTransformerBlockConfig};
