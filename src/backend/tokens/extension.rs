//! The operators as an extension of Burn's backends.

use burn::backend::{Backend, ExtensionType, backend_extension, tensor::FloatTensor};

use super::reference;
use crate::backend::unfused::Optional;

/// What normalization adds to the variance of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormPlan {
    pub(crate) epsilon: f64,
}

/// What normalization gives back.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub struct NormGradients<B: Backend> {
    /// As the input.
    pub input: FloatTensor<B>,
    /// `[2, channels]`, of `gamma` and of `beta`.
    pub parameters: FloatTensor<B>,
}

/// The operators, which are differentiable.
#[backend_extension(
    Cube: cfg(feature = "cube"),
    Flex: cfg(feature = "flex"),
    Autodiff: cfg(feature = "autodiff"),
    Fusion: cfg(feature = "fusion"),
)]
pub trait TokenOps: Backend {
    /// Rows `[.., channels]` with mean 0 and variance 1, times `gamma`, `[channels]`, plus `beta`.
    #[fusion(meta = meta::norm)]
    fn token_norm(
        input: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        #[extension_type] beta: Optional<Self>,
        plan: NormPlan,
    ) -> FloatTensor<Self> {
        reference::norm::<Self>(input, gamma, beta.into_option(), plan)
    }

    /// Rows `[.., channels]` times `weight`, `[channels, outputs]`, plus `bias`, `[outputs]`.
    #[fusion(meta = meta::linear)]
    fn token_linear(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        #[extension_type] bias: Optional<Self>,
    ) -> FloatTensor<Self> {
        Self::linear(input, weight, bias.into_option())
    }
}

/// What only gradients need. Asked of the inner backend only: first derivatives.
#[backend_extension(
    Cube: cfg(feature = "cube"),
    Flex: cfg(feature = "flex"),
    Fusion: cfg(feature = "fusion"),
)]
pub trait TokenGradientOps: Backend {
    /// The gradients of [`TokenOps::token_norm`].
    #[fusion(meta = meta::norm_gradients)]
    fn token_norm_gradients(
        input: FloatTensor<Self>,
        gamma: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        plan: NormPlan,
    ) -> NormGradients<Self> {
        reference::norm_gradients::<Self>(input, gamma, gradient, plan)
    }

    /// The sum of rows `[.., channels]`, `[channels]`.
    #[fusion(meta = meta::sums)]
    fn token_sums(rows: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::linear_bias_backward(rows)
    }

    /// The sum over rows of the products of two rows, `[channels, outputs]`: the gradient of a linear layer's weight.
    #[fusion(meta = meta::outer)]
    fn token_outer(input: FloatTensor<Self>, gradient: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::linear_weight_backward(input, gradient)
    }
}

#[cfg(feature = "flex")]
impl TokenOps for burn::backend::flex::Flex {}

#[cfg(feature = "flex")]
impl TokenGradientOps for burn::backend::flex::Flex {}

/// What fusion must know of an output before it is computed.
#[cfg(feature = "fusion")]
mod meta {
    use burn::backend::fusion::custom::TensorSpec;
    use burn::tensor::Shape;

    use super::{NormGradientsMetadata, NormPlan};
    use crate::backend::unfused::{OptionalMetadata, with_last};

    pub fn norm(
        input: &TensorSpec,
        _gamma: &TensorSpec,
        _beta: &OptionalMetadata,
        _plan: &NormPlan,
    ) -> TensorSpec {
        input.clone()
    }

    pub fn linear(input: &TensorSpec, weight: &TensorSpec, _bias: &OptionalMetadata) -> TensorSpec {
        TensorSpec::new(with_last(&input.shape, weight.shape[1]), input.dtype)
    }

    pub fn norm_gradients(
        input: &TensorSpec,
        gamma: &TensorSpec,
        _gradient: &TensorSpec,
        _plan: &NormPlan,
    ) -> NormGradientsMetadata {
        let parameters = TensorSpec::new(Shape::new([2, gamma.shape[0]]), gamma.dtype);
        NormGradientsMetadata { input: input.clone(), parameters }
    }

    pub fn sums(rows: &TensorSpec) -> TensorSpec {
        TensorSpec::new(Shape::new([last(rows)]), rows.dtype)
    }

    pub fn outer(input: &TensorSpec, gradient: &TensorSpec) -> TensorSpec {
        TensorSpec::new(Shape::new([last(input), last(gradient)]), input.dtype)
    }

    fn last(spec: &TensorSpec) -> usize {
        spec.shape[spec.shape.num_dims() - 1]
    }
}
