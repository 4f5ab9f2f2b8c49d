//! What stands between two attentions.

mod convolution;
mod gelu;
mod linear;
mod norm;
mod thirds;

use burn::tensor::Tensor;

pub use convolution::conv2d;
pub use gelu::gelu;
pub use linear::linear;
pub use norm::LayerNorm;
pub(crate) use thirds::thirds;

#[track_caller]
fn check<const D: usize>(input: &Tensor<D>, channels: usize, name: &str) {
    let got = input.dims()[D - 1];
    assert!(got == channels, "input: has {got} channels, must have {channels} ({name})");
}

#[track_caller]
fn one_type<const D: usize>(weight: &Tensor<D>, bias: Option<&Tensor<1>>) {
    let (got, want) = (bias.map(Tensor::dtype), weight.dtype());
    assert!(got.is_none_or(|got| got == want), "bias: is {got:?}, must be {want:?} (weight)");
}
