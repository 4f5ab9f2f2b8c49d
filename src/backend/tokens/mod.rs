//! What layers do with tokens between two attentions, with gradients that are fast on a GPU: normalization of each, and linear
//! layers.
//!
//! A parameter's gradient is a sum over all tokens. Burn's own sums give a unit of the device to each channel, and its matrix
//! products a cube to each tile of the weights: with some hundred thousand tokens and some hundred channels, most of a GPU
//! waits. Here sums are shared out, products are made for groups of tokens, and these are added up.

#[cfg(feature = "autodiff")]
mod autodiff;
mod extension;
mod reference;

pub(crate) use extension::{NormGradients, NormPlan, TokenGradientOps, TokenOps};
#[cfg(feature = "cube")]
pub(crate) use reference::{flattened, norm, norm_gradients};
