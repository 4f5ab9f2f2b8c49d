//! Training in bf16: weights stay in f32.

use burn::module::{ModuleMapper, Param};
use burn::tensor::{FloatDType, Tensor};

/// Weights in bf16 that pass their gradients on to those they were made from.
pub struct ToHalf;

impl ModuleMapper for ToHalf {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|weights| weights.cast(FloatDType::BF16))
    }
}
