use burn::backend::Dispatch;
use burn::module::{Module, Param};
use burn::nn::Initializer;
use burn::tensor::module::layer_norm;
use burn::tensor::{DType, Device, FloatDType, Tensor};

use super::check;
use crate::backend::tokens::{NormPlan, TokenOps};

/// Layer normalization of tokens, as [`burn::nn::LayerNorm`] has it, with a gradient in one pass.
///
/// ```text
/// (x - mean) / sqrt(variance + epsilon) * gamma + beta
/// ```
///
/// Mean and variance are those of a token, over its channels. They and the gradients of `gamma` and `beta`, which are sums over all
/// tokens, are held in f32, or f64 for f64. Names of parameters are those of Burn's layer, and so are records.
///
/// On CubeCL's backends both passes are kernels of this crate, in f16, bf16 and f32 and for at most some thousand channels, and results repeat bit by bit; Burn's
/// own are some 40 operations, of which two leave most of a GPU idle. Where there is no kernel, tensor operations take their place, with a line
/// in the log. Parameters of another type than the input are computed with as Burn does.
///
/// ```rust
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_natten::nn::LayerNorm;
///
/// let device = Device::flex();
/// let norm = LayerNorm::new(32, &device);
/// let image = Tensor::<4>::random([2, 6, 6, 32], Distribution::Default, &device);
/// let mean: f32 = norm.forward(image).mean().into_scalar();
/// assert!(mean.abs() < 1e-5);
/// ```
///
/// Reference: [Layer Normalization](https://arxiv.org/abs/1607.06450).
#[derive(Module, Debug)]
pub struct LayerNorm {
    /// Factor on each channel, `[channels]`.
    pub gamma: Param<Tensor<1>>,
    /// Added to each channel, `[channels]`, if there is one.
    pub beta: Option<Param<Tensor<1>>>,
    /// Added to the variance.
    pub epsilon: f64,
}

impl LayerNorm {
    /// Of `channels`: `gamma` is 1, `beta` is 0 and `epsilon` 1e-5.
    pub fn new(channels: usize, device: &Device) -> Self {
        Self {
            gamma: Initializer::Ones.init([channels], device),
            beta: Some(Initializer::Zeros.init([channels], device)),
            epsilon: 1e-5,
        }
    }

    /// Normalizes every token.
    ///
    /// # Shapes
    ///
    /// - input: `[.., channels]`
    /// - output: as input
    ///
    /// # Panics
    ///
    /// If the last axis of `input` is not `channels` long.
    #[track_caller]
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let (gamma, beta) = (self.gamma.val(), self.beta.as_ref().map(Param::val));
        let [channels] = gamma.dims();
        check(&input, channels, "channels");
        let dtype = input.dtype();
        if gamma.dtype() != dtype || beta.as_ref().is_some_and(|beta| beta.dtype() != dtype) {
            return mixed(input, gamma, beta, self.epsilon);
        }
        let beta = beta.map(Tensor::into_dispatch).into();
        let plan = NormPlan { epsilon: self.epsilon };
        let output = Dispatch::token_norm(input.into_dispatch(), gamma.into_dispatch(), beta, plan);
        Tensor::from_dispatch(output)
    }
}

/// Parameters of another type, quantized ones among them: in f32 where the input is half, as Burn has it.
fn mixed<const D: usize>(
    input: Tensor<D>,
    gamma: Tensor<1>,
    beta: Option<Tensor<1>>,
    epsilon: f64,
) -> Tensor<D> {
    let original: FloatDType = input.dtype().into();
    let plain = |tensor: Tensor<1>| match tensor.dtype() {
        DType::QFloat(_) => tensor.dequantize(),
        _ => tensor,
    };
    let wide = if original == FloatDType::F64 { FloatDType::F64 } else { FloatDType::F32 };
    let beta = beta.map(|beta| plain(beta).cast(wide));
    layer_norm(input.cast(wide), plain(gamma).cast(wide), beta, epsilon).cast(original)
}
