//! Models of the papers.

pub mod dinat_s;
pub mod hdit;
pub mod isotropic;
pub mod nat;
mod parts;
mod weights;

pub use weights::{LoadOptions, LoadReport, Weights, WeightsError};

use burn::tensor::Tensor;

/// What a vision model sees at each resolution, channels last.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Features {
    /// The output of the blocks of each level, before the way to the next level, from the finest.
    pub levels: Vec<Tensor<4>>,
    /// The normalized output of the last level, which the head takes the mean of.
    pub output: Tensor<4>,
}
