//! Models of the papers: NAT, DiNAT, DiNAT_s, isotropic ones, and HDiT, with weights from PyTorch.
//!
//! ```rust
//! use burn::tensor::{Device, Tensor};
//! use burn_natten::models::nat::NatConfig;
//!
//! let device = Device::flex();
//! // Or a published size: NatConfig::dinat_tiny()
//! let config = NatConfig::new(16, vec![1, 1], vec![2, 4]).with_kernel_size(5);
//! let model = config.init(&device);
//! let logits = model.forward(Tensor::ones([1, 3, 64, 64], &device));
//! assert_eq!(logits.dims(), [1, 1000]);
//! ```
//!
//! # Weights
//!
//! [`init_from`](nat::NatConfig::init_from) makes a model with the weights of a `.pth` or
//! `.safetensors` file. Keys are those of the authors' PyTorch models, as all fields here have
//! their names; NAT and DiNAT of `transformers` are known too. [`Weights`] has the options, and saves.
//!
//! The guide has a page on models and their weights.

mod check;
pub mod dinat_s;
pub mod hdit;
pub mod isotropic;
pub mod nat;
mod parts;
mod weights;

pub use check::ConfigError;
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
