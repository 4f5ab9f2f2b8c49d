use burn::backend::Dispatch;
use burn::module::Param;
use burn::nn::Linear;
use burn::tensor::Tensor;

use super::check;
use crate::backend::tokens::TokenOps;

/// Applies a linear layer to every token, as [`Linear::forward`] does, with products and gradients that are fast on a GPU.
///
/// On CUDA, products are those of cuBLASLt where it is installed, in f16, bf16 and f32, summed in f32: nothing is compiled or measured at
/// their first use. On other backends of CubeCL, and without the library, which is logged once, they are Burn's own; the gradients of weight
/// and bias, which are sums over all tokens, are then shared out among groups of tokens and added up in a fixed order, where Burn's leave
/// most of a GPU idle. In half types, the products of a group are rounded before they are added.
///
/// # Shapes
///
/// - input: `[.., d_input]`
/// - output: `[.., d_output]`
///
/// # Panics
///
/// If the last axis of `input` is not `d_input` long.
///
/// ```rust
/// use burn::nn::LinearConfig;
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_natten::nn::linear;
///
/// let device = Device::flex();
/// let layer = LinearConfig::new(32, 96).init(&device);
/// let image = Tensor::<4>::random([2, 6, 6, 32], Distribution::Default, &device);
/// let (output, expected) = (linear(&layer, image.clone()), layer.forward(image));
/// assert!(output.all_close(expected, None, None));
/// ```
#[track_caller]
pub fn linear<const D: usize>(layer: &Linear, input: Tensor<D>) -> Tensor<D> {
    let (weight, bias) = (layer.weight.val(), layer.bias.as_ref().map(Param::val));
    let dtype = input.dtype();
    let is_mixed =
        weight.dtype() != dtype || bias.as_ref().is_some_and(|bias| bias.dtype() != dtype);
    // Quantized weights, and a single token: Burn has these.
    if is_mixed || D == 1 {
        return layer.forward(input);
    }
    check(&input, weight.dims()[0], "d_input");
    let bias = bias.map(Tensor::into_dispatch).into();
    let output = Dispatch::token_linear(input.into_dispatch(), weight.into_dispatch(), bias);
    Tensor::from_dispatch(output)
}
