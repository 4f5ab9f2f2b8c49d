//! The operators by tensor operations.

use std::f64::consts::FRAC_1_SQRT_2;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{FloatDType, Shape, Slice};

use super::{ConvolutionPlan, NormGradients, NormPlan, Thirds};
use crate::backend::wide;

/// Rows in one line: `[rows, channels]`.
pub(crate) fn flattened(shape: &Shape) -> [usize; 2] {
    let channels = shape[shape.num_dims() - 1];
    [shape.as_slice()[..shape.num_dims() - 1].iter().product(), channels]
}

/// `(x - mean) / sqrt(variance + epsilon) * gamma + beta` of each row `x`.
pub(crate) fn norm<B: Backend>(
    input: FloatTensor<B>,
    gamma: FloatTensor<B>,
    beta: Option<FloatTensor<B>>,
    plan: NormPlan,
) -> FloatTensor<B> {
    let dtype: FloatDType = input.dtype().into();
    let beta = beta.map(wide::<B>);
    let output = B::layer_norm(wide::<B>(input), wide::<B>(gamma), beta, plan.epsilon);
    B::float_cast(output, dtype)
}

/// The gradients of [`norm`].
pub(crate) fn norm_gradients<B: Backend>(
    input: FloatTensor<B>,
    gamma: FloatTensor<B>,
    gradient: FloatTensor<B>,
    plan: NormPlan,
) -> NormGradients<B> {
    let (shape, dtype): (_, FloatDType) = (input.shape(), input.dtype().into());
    let rows = Shape::new(flattened(&shape));
    let channels = rows[1];
    let in_rows = |tensor| B::float_reshape(wide::<B>(tensor), rows.clone());
    let (input, gradient) = (in_rows(input), in_rows(gradient));
    let gamma = B::float_reshape(wide::<B>(gamma), Shape::new([1, channels]));

    let centered = B::float_sub(input.clone(), B::float_mean_dim(input, 1));
    let variance = B::float_mean_dim(B::float_mul(centered.clone(), centered.clone()), 1);
    let deviation = B::float_sqrt(B::float_add_scalar(variance, plan.epsilon.into()));
    let normal = B::float_div(centered, deviation.clone());

    let product = B::float_mul(gradient.clone(), normal.clone());
    let parameters =
        B::float_cat(vec![B::float_sum_dim(product, 0), B::float_sum_dim(gradient.clone(), 0)], 0);
    let scaled = B::float_mul(gradient, gamma);
    let mean = B::float_mean_dim(scaled.clone(), 1);
    let along = B::float_mean_dim(B::float_mul(scaled.clone(), normal.clone()), 1);
    let rest = B::float_sub(B::float_sub(scaled, mean), B::float_mul(normal, along));
    let input = B::float_reshape(B::float_div(rest, deviation), shape);
    NormGradients {
        input: B::float_cast(input, dtype),
        parameters: B::float_cast(parameters, dtype),
    }
}

/// The gradient of `x * P(x)`, `P(x) + x * p(x)`, where `p` is the density of the normal distribution. Burn's own is that of an
/// approximation.
pub(crate) fn gelu_gradient<B: Backend>(
    input: FloatTensor<B>,
    gradient: FloatTensor<B>,
) -> FloatTensor<B> {
    let dtype: FloatDType = input.dtype().into();
    let x = wide::<B>(input);
    let scaled = B::float_mul_scalar(x.clone(), FRAC_1_SQRT_2.into());
    let twice_below = B::float_add_scalar(B::float_erf(scaled), 1.0f64.into());
    let below = B::float_mul_scalar(twice_below, 0.5f64.into());
    let squares = B::float_mul_scalar(B::float_mul(x.clone(), x.clone()), (-0.5f64).into());
    let density = B::float_mul_scalar(B::float_exp(squares), DENSITY.into());
    let slope = B::float_add(below, B::float_mul(x, density));
    B::float_cast(B::float_mul(wide::<B>(gradient), slope), dtype)
}

/// `1 / sqrt(2 pi)`, the greatest density of the normal distribution.
const DENSITY: f64 = 0.398_942_280_401_432_7;

/// A convolution of maps whose channels come last.
pub(crate) fn convolution<B: Backend>(
    input: FloatTensor<B>,
    weight: FloatTensor<B>,
    bias: Option<FloatTensor<B>>,
    plan: ConvolutionPlan,
) -> FloatTensor<B> {
    let output = B::conv2d(channels_first::<B>(input), weight, bias, plan.options());
    channels_last::<B>(output)
}

/// The gradient of its input.
pub(crate) fn convolution_input<B: Backend>(
    input: FloatTensor<B>,
    weight: FloatTensor<B>,
    gradient: FloatTensor<B>,
    plan: ConvolutionPlan,
) -> FloatTensor<B> {
    let [input, gradient] = [input, gradient].map(channels_first::<B>);
    channels_last::<B>(B::conv2d_x_backward(input, weight, gradient, plan.options()))
}

/// The gradient of its weight.
pub(crate) fn convolution_weight<B: Backend>(
    input: FloatTensor<B>,
    weight: FloatTensor<B>,
    gradient: FloatTensor<B>,
    plan: ConvolutionPlan,
) -> FloatTensor<B> {
    let [input, gradient] = [input, gradient].map(channels_first::<B>);
    B::conv2d_weight_backward(input, weight, gradient, plan.options())
}

fn channels_first<B: Backend>(map: FloatTensor<B>) -> FloatTensor<B> {
    B::float_permute(map, &[0, 3, 1, 2])
}

fn channels_last<B: Backend>(map: FloatTensor<B>) -> FloatTensor<B> {
    B::float_permute(map, &[0, 2, 3, 1])
}

/// Three equal parts of the last axis.
pub(crate) fn thirds<B: Backend>(input: FloatTensor<B>) -> Thirds<B> {
    let shape = input.shape();
    let last = shape.num_dims() - 1;
    let channels = shape[last] / 3;
    let [first, second, third] =
        [0, 1, 2].map(|part| B::float_slice(input.clone(), &third_of(last, channels, part)));
    Thirds { first, second, third }
}

/// What is part of the last axis.
pub(crate) fn third_of(last: usize, channels: usize, part: usize) -> Vec<Slice> {
    let mut slices = vec![Slice::full(); last + 1];
    slices[last] = Slice::from(part * channels..(part + 1) * channels);
    slices
}
