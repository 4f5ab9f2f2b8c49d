//! The operators by tensor operations.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{FloatDType, Shape};

use super::{NormGradients, NormPlan};
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
