//! The operators as an extension of Burn's backends.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, ExtensionType, TensorMetadata, backend_extension};
#[cfg(any(feature = "cube", feature = "fusion"))]
use burn::tensor::Shape;
use burn::tensor::ops::ConvOptions;
use burn_natten_kernels::tokens::PatchGrid;

use super::reference;
use crate::backend::unfused::Optional;

/// What normalization adds to the variance of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormPlan {
    pub(crate) epsilon: f64,
}

/// Which patches of its input a convolution multiplies with its weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConvolutionPlan {
    pub(crate) grid: PatchGrid,
}

impl ConvolutionPlan {
    /// The same in Burn's terms.
    pub(crate) fn options(&self) -> ConvOptions<2> {
        let padding = self.grid.padding.map(|[before, behind]| (before, behind));
        ConvOptions::new_with_padding(self.grid.stride, padding, [1, 1], 1)
    }
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

/// The shape of what a convolution makes of maps, which has to be possible.
#[cfg(any(feature = "cube", feature = "fusion"))]
pub(crate) fn convolved(input: &Shape, weight: &Shape, plan: ConvolutionPlan) -> Shape {
    let [rows, columns] = plan.grid.count([input[1], input[2]]).unwrap_or([0, 0]);
    Shape::new([input[0], rows, columns, weight[0]])
}

/// Three equal parts of the last axis.
#[derive(ExtensionType)]
#[extension_type(fusion: cfg(feature = "fusion"))]
pub struct Thirds<B: Backend> {
    pub first: FloatTensor<B>,
    pub second: FloatTensor<B>,
    pub third: FloatTensor<B>,
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

    /// Maps `[batch, height, width, channels]`, the patches of which are multiplied with `weight`, `[outputs, channels, size, size]`, plus
    /// `bias`, `[outputs]`.
    #[fusion(meta = meta::convolution)]
    fn token_convolution(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        #[extension_type] bias: Optional<Self>,
        plan: ConvolutionPlan,
    ) -> FloatTensor<Self> {
        reference::convolution::<Self>(input, weight, bias.into_option(), plan)
    }

    /// `x * P(x)`, where `P` is the share of the normal distribution below `x`.
    #[fusion(meta = meta::like)]
    fn token_gelu(input: FloatTensor<Self>) -> FloatTensor<Self> {
        Self::gelu(input)
    }

    /// Rows `[.., 3 channels]` as three tensors `[.., channels]`, views where the backend has them.
    #[fusion(meta = meta::thirds)]
    fn token_thirds(input: FloatTensor<Self>) -> Thirds<Self> {
        reference::thirds::<Self>(input)
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

    /// The tensor whose [thirds](TokenOps::token_thirds) these are, all of one shape.
    #[fusion(meta = meta::whole)]
    fn token_whole(
        first: FloatTensor<Self>,
        second: FloatTensor<Self>,
        third: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        let last = first.shape().num_dims() - 1;
        Self::float_cat(vec![first, second, third], last)
    }

    /// The gradient of a linear layer's input.
    #[fusion(meta = meta::linear_input)]
    fn token_linear_input(
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        Self::linear_x_backward(weight, gradient)
    }

    /// The gradient of [`TokenOps::token_convolution`]'s input.
    #[fusion(meta = meta::convolution_gradient)]
    fn token_convolution_input(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        plan: ConvolutionPlan,
    ) -> FloatTensor<Self> {
        reference::convolution_input::<Self>(input, weight, gradient, plan)
    }

    /// The gradient of [`TokenOps::token_convolution`]'s weight.
    #[fusion(meta = meta::convolution_weight)]
    fn token_convolution_weight(
        input: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
        plan: ConvolutionPlan,
    ) -> FloatTensor<Self> {
        reference::convolution_weight::<Self>(input, weight, gradient, plan)
    }

    /// The gradient of [`TokenOps::token_gelu`].
    #[fusion(meta = meta::gelu_gradient)]
    fn token_gelu_gradient(
        input: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> FloatTensor<Self> {
        reference::gelu_gradient::<Self>(input, gradient)
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

    use super::{ConvolutionPlan, NormGradientsMetadata, NormPlan, ThirdsMetadata};
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

    pub fn like(input: &TensorSpec) -> TensorSpec {
        input.clone()
    }

    pub fn thirds(input: &TensorSpec) -> ThirdsMetadata {
        let third = TensorSpec::new(with_last(&input.shape, last(input) / 3), input.dtype);
        ThirdsMetadata { first: third.clone(), second: third.clone(), third }
    }

    pub fn whole(first: &TensorSpec, _second: &TensorSpec, _third: &TensorSpec) -> TensorSpec {
        TensorSpec::new(with_last(&first.shape, 3 * last(first)), first.dtype)
    }

    pub fn gelu_gradient(input: &TensorSpec, _gradient: &TensorSpec) -> TensorSpec {
        input.clone()
    }

    pub fn linear_input(weight: &TensorSpec, gradient: &TensorSpec) -> TensorSpec {
        TensorSpec::new(with_last(&gradient.shape, weight.shape[0]), gradient.dtype)
    }

    pub fn convolution(
        input: &TensorSpec,
        weight: &TensorSpec,
        _bias: &OptionalMetadata,
        plan: &ConvolutionPlan,
    ) -> TensorSpec {
        let shape = super::convolved(&input.shape, &weight.shape, *plan);
        TensorSpec::new(shape, input.dtype)
    }

    pub fn convolution_gradient(
        input: &TensorSpec,
        _weight: &TensorSpec,
        _gradient: &TensorSpec,
        _plan: &ConvolutionPlan,
    ) -> TensorSpec {
        input.clone()
    }

    pub fn convolution_weight(
        _input: &TensorSpec,
        weight: &TensorSpec,
        _gradient: &TensorSpec,
        _plan: &ConvolutionPlan,
    ) -> TensorSpec {
        weight.clone()
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
