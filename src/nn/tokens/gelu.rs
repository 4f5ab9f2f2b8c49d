use burn::backend::Dispatch;
use burn::tensor::Tensor;

use crate::backend::tokens::TokenOps;

/// `x * P(x)` of each element, where `P(x)` is the share of the normal distribution below `x`, as [`burn::tensor::activation::gelu`] has it,
/// with its own derivative.
///
/// On CubeCL's backends both passes are a kernel each, in f16, bf16 and f32, computed in f32. The gradient is that of the function;
/// Burn's is that of an approximation by a hyperbolic tangent.
///
/// # Shapes
///
/// - input: any
/// - output: as input
///
/// ```rust
/// use burn::tensor::{Device, Tensor};
/// use burn_natten::nn::gelu;
///
/// let x = Tensor::<1>::from_data([-1.0, 0.0, 1.0], &Device::flex());
/// let expected = Tensor::from_data([-0.158_655, 0.0, 0.841_345], &Device::flex());
/// assert!(gelu(x).all_close(expected, None, Some(1e-5)));
/// ```
///
/// Reference: [Gaussian Error Linear Units](https://arxiv.org/abs/1606.08415).
pub fn gelu<const D: usize>(input: Tensor<D>) -> Tensor<D> {
    Tensor::from_dispatch(Dispatch::token_gelu(input.into_dispatch()))
}
