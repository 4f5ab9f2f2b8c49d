//! What stands between two attentions of a model: tokens, each a row of channels, are normalised, pass through a GELU, come from patches of
//! a map, are summed over branches or averaged over blocks, and gradients of parameters are sums over all of them.
//!
//! A training step of an image model has some hundred thousand rows of fewer than a thousand channels. What is computed of a
//! row is shared out among its units; sums over rows are shared out among cubes and added up in a fixed order, so that results
//! repeat bit by bit. They are held in f32.

#[cfg(feature = "cube")]
mod columns;
#[cfg(feature = "cube")]
mod gate;
#[cfg(feature = "cube")]
mod gelu;
mod grid;
#[cfg(feature = "cube")]
mod matrix;
#[cfg(feature = "cube")]
mod means;
#[cfg(feature = "cube")]
mod norm;
#[cfg(feature = "cube")]
mod patches;
#[cfg(feature = "cube")]
mod rows;
mod tile;

#[cfg(feature = "cube")]
pub use columns::column_sums;
#[cfg(feature = "cube")]
pub use gate::{
    GateInputs, GateStatistics, branch_sum, gated_sum, gated_sum_backward, gated_sum_statistics,
};
#[cfg(feature = "cube")]
pub use gelu::{gelu, gelu_backward};
pub use grid::{BlockGrid, PatchGrid};
#[cfg(feature = "cube")]
pub use matrix::Matrix;
#[cfg(feature = "cube")]
pub use means::TokenBlocks;
#[cfg(feature = "cube")]
pub use norm::{NormInputs, layer_norm, layer_norm_backward};
#[cfg(feature = "cube")]
pub use patches::Maps;
pub use tile::RowTile;
