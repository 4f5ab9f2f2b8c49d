//! What all parts of the model are made of: projections without bias, and two normalizations.

use burn::module::{Module, Param};
use burn::nn::{Initializer, Linear, LinearConfig};
use burn::tensor::{DType, Device, Tensor};

const EPSILON: f64 = 1e-6;

/// A linear layer without bias, as all of them are here.
pub(super) fn linear(inputs: usize, outputs: usize, device: &Device) -> Linear {
    LinearConfig::new(inputs, outputs).with_bias(false).init(device)
}

/// The same that starts at zero.
pub(super) fn zero_linear(inputs: usize, outputs: usize, device: &Device) -> Linear {
    let config = LinearConfig::new(inputs, outputs).with_bias(false);
    config.with_initializer(Initializer::Zeros).init(device)
}

/// The type to compute in: f32, or f64 beside f64.
pub(super) fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 { dtype } else { DType::F32 }
}

/// The type of buffers on a device whose weights may be half.
pub(super) fn wide_of(device: &Device) -> DType {
    wide(device.settings().float_dtype.into())
}

/// A tensor in another type, if it is not in that one.
pub(super) fn cast<const D: usize>(tensor: Tensor<D>, dtype: DType) -> Tensor<D> {
    if tensor.dtype() == dtype { tensor } else { tensor.cast(dtype) }
}

/// Keeps a tensor with the module that is no parameter to train. It stays in f32 when the weights
/// are half.
pub(super) fn buffer<const D: usize>(tensor: Tensor<D>) -> Param<Tensor<D>> {
    Param::from_tensor(tensor).set_require_grad(false)
}

/// `1 / sqrt(sum(x^2) * factor + epsilon)` over the last axis, which is kept with length 1.
///
/// Half types are summed in f32: their squares overflow.
pub(super) fn inverse_norm<const D: usize>(input: Tensor<D>, factor: f64) -> Tensor<D> {
    let dtype = input.dtype();
    let squares = cast(input, wide(dtype)).powi_scalar(2).sum_dim(D - 1) * factor;
    cast((squares + EPSILON).sqrt().recip(), dtype)
}

fn root_mean_square_norm<const D: usize>(input: Tensor<D>, scale: Tensor<D>) -> Tensor<D> {
    let factor = 1.0 / input.dims()[D - 1] as f64;
    input.clone() * (scale * inverse_norm(input, factor))
}

/// `input * scale / sqrt(mean(input^2) + 1e-6)` over the channels.
#[derive(Module, Debug)]
pub struct RmsNorm {
    /// `[channels]`, starts at 1.
    pub scale: Param<Tensor<1>>,
}

impl RmsNorm {
    pub(super) fn new(channels: usize, device: &Device) -> Self {
        Self { scale: Initializer::Ones.init([channels], device) }
    }

    /// Normalizes the last axis.
    ///
    /// # Shapes
    ///
    /// - input: `[.., channels]`
    /// - output: as input
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        root_mean_square_norm(input, self.scale.val().unsqueeze())
    }
}

/// [`RmsNorm`] whose scale depends on the condition: `1 + linear(condition)`.
#[derive(Module, Debug)]
pub struct AdaRmsNorm {
    /// From the condition to the scale less 1, starts at zero.
    pub linear: Linear,
}

impl AdaRmsNorm {
    pub(super) fn new(channels: usize, condition: usize, device: &Device) -> Self {
        Self { linear: zero_linear(condition, channels, device) }
    }

    /// Normalizes the channels.
    ///
    /// # Shapes
    ///
    /// - input: `[batch, height, width, channels]`
    /// - condition: `[batch, mapping width]`
    /// - output: as input
    pub fn forward(&self, input: Tensor<4>, condition: Tensor<2>) -> Tensor<4> {
        let scale = self.linear.forward(condition) + 1.0;
        root_mean_square_norm(input, scale.unsqueeze_dims(&[1, 1]))
    }
}
