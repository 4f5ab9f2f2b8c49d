//! Merging attentions over disjoint sets of keys, composed of a backend's tensor operations.
//!
//! ```text
//! lse = log sum_i exp(lse_i)     w_i = exp(lse_i - lse)     out = sum_i w_i out_i
//! dout_i = w_i dout              dlse_i = w_i (dout . (out_i - out) + dlse)
//! ```
//!
//! A part that saw no key has `lse_i = -inf` and takes no part, whatever its output holds.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata, get_device_settings};
use burn::tensor::Shape;

use super::accumulator;

pub(crate) fn forward<B: Backend>(
    outs: FloatTensor<B>,
    lses: FloatTensor<B>,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let dtype = outs.dtype();
    let [_, rows, dim] = outs.shape().dims::<3>();
    let lse_dtype = lses.dtype();
    let lses = cast::<B>(lses);
    let max = B::float_max_dim(lses.clone(), 0);
    // Where no part saw a key, `-inf - -inf` would be NaN.
    let max = fill_infinite::<B>(max.clone(), max, 0.0);
    let sum = B::float_sum_dim(B::float_exp(B::float_sub(lses.clone(), max.clone())), 0);
    let lse = B::float_add(B::float_log(sum), max);
    let out = B::float_sum_dim(weigh::<B>(outs, &lses, &lse), 0);
    (
        B::float_cast(B::float_reshape(out, Shape::new([rows, dim])), dtype.into()),
        B::float_cast(B::float_reshape(lse, Shape::new([rows])), lse_dtype.into()),
    )
}

pub(crate) fn backward<B: Backend>(
    outs: FloatTensor<B>,
    lses: FloatTensor<B>,
    out: FloatTensor<B>,
    lse: FloatTensor<B>,
    grad_out: FloatTensor<B>,
    grad_lse: FloatTensor<B>,
) -> (FloatTensor<B>, FloatTensor<B>) {
    let (dtype, lse_dtype) = (outs.dtype(), lses.dtype());
    let [parts, rows, dim] = outs.shape().dims::<3>();
    let row = |tensor: FloatTensor<B>| B::float_reshape(cast::<B>(tensor), Shape::new([1, rows]));
    let matrix =
        |tensor: FloatTensor<B>| B::float_reshape(cast::<B>(tensor), Shape::new([1, rows, dim]));
    let (lse, grad_lse) = (row(lse), row(grad_lse));
    let (out, grad_out) = (matrix(out), matrix(grad_out));
    let lses = cast::<B>(lses);
    let grad_outs = B::float_expand(grad_out.clone(), Shape::new([parts, rows, dim]));
    let grad_outs = weigh::<B>(grad_outs, &lses, &lse);
    let difference = B::float_mul(grad_out, B::float_sub(cast::<B>(outs), out));
    let difference = B::float_sum_dim(difference, 2);
    let difference = B::float_reshape(difference, Shape::new([parts, rows]));
    let difference = B::float_add(difference, grad_lse);
    let difference = B::float_reshape(difference, Shape::new([parts, rows, 1]));
    let grad_lses = weigh::<B>(difference, &lses, &lse);
    (
        B::float_cast(grad_outs, dtype.into()),
        B::float_cast(B::float_reshape(grad_lses, Shape::new([parts, rows])), lse_dtype.into()),
    )
}

/// `exp(lses - lse) * tensor`, zero where a part saw no key.
fn weigh<B: Backend>(
    tensor: FloatTensor<B>,
    lses: &FloatTensor<B>,
    lse: &FloatTensor<B>,
) -> FloatTensor<B> {
    let [parts, rows] = lses.shape().dims::<2>();
    let shape = tensor.shape();
    let tensor = cast::<B>(tensor);
    let column = |tensor: FloatTensor<B>| B::float_reshape(tensor, Shape::new([parts, rows, 1]));
    let weights = column(B::float_exp(B::float_sub(lses.clone(), lse.clone())));
    let lses = B::float_expand(column(lses.clone()), shape);
    fill_infinite::<B>(B::float_mul(tensor, weights), lses, 0.0)
}

/// Replaces `tensor` with `value` wherever `lse` is `-inf`.
fn fill_infinite<B: Backend>(
    tensor: FloatTensor<B>,
    lse: FloatTensor<B>,
    value: f32,
) -> FloatTensor<B> {
    let bool_dtype = get_device_settings::<B>(&lse.device()).bool_dtype;
    let no_key = B::float_equal_elem(lse, f32::NEG_INFINITY.into(), bool_dtype);
    B::float_mask_fill(tensor, no_key, value.into())
}

fn cast<B: Backend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    let dtype = accumulator(tensor.dtype());
    B::float_cast(tensor, dtype.into())
}
