//! What layers do with tokens between two attentions, with gradients that are fast on a GPU: normalization of each, linear
//! layers, GELU, and convolutions of maps whose channels come last.
//!
//! A parameter's gradient is a sum over all tokens. Burn's own sums give a unit of the device to each channel, and its matrix
//! products a cube to each tile of the weights: with some hundred thousand tokens and some hundred channels, most of a GPU
//! waits. Here sums are shared out, products are made for groups of tokens, and these are added up.

#[cfg(feature = "autodiff")]
mod autodiff;
mod extension;
mod reference;

#[cfg(feature = "cube")]
pub(crate) use extension::convolved;
pub(crate) use extension::{
    ConvolutionPlan, NormGradients, NormPlan, Thirds, TokenGradientOps, TokenOps,
};
#[cfg(feature = "cube")]
pub(crate) use reference::{
    convolution, convolution_input, convolution_weight, flattened, gelu_gradient, norm,
    norm_gradients, third_of, thirds,
};
