use burn::backend::Dispatch;
use burn::module::Param;
use burn::nn::Linear;
use burn::tensor::{DType, Tensor};

use super::{check, one_type};
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
/// An input of another type than the weight is computed with in that of the weight, and its output is of its own type.
///
/// # Panics
///
/// If the last axis of `input` is not `d_input` long, or weight and bias are of two types.
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
    if matches!(weight.dtype(), DType::QFloat(_)) {
        return layer.forward(input);
    }
    one_type(&weight, bias.as_ref());
    if weight.dtype() != input.dtype() {
        let dtype = input.dtype();
        return linear(layer, input.cast(weight.dtype())).cast(dtype);
    }
    // A single token.
    if D == 1 {
        return layer.forward(input);
    }
    check(&input, weight.dims()[0], "d_input");
    let bias = bias.map(Tensor::into_dispatch).into();
    let output = Dispatch::token_linear(input.into_dispatch(), weight.into_dispatch(), bias);
    Tensor::from_dispatch(output)
}
