use burn::backend::Dispatch;
use burn::tensor::Tensor;

use super::inputs::{is_float, matches, same_device};
use crate::AttentionError;
use crate::Capabilities;
use crate::backend::{AttentionOps, accumulator};
use crate::problem::same;

/// Merges attentions of the same queries to disjoint sets of keys into the attention to all keys.
///
/// ```text
/// logsumexp = log(sum_i exp(logsumexp_i))      out = sum_i exp(logsumexp_i - logsumexp) out_i
/// ```
///
/// # Shapes
///
/// - outputs: at least one, all of the same shape `[.., heads, head_dim_v]` and dtype
/// - logsumexps: as many, of the shape `[.., heads]`
/// - returns the merged output and logsumexp, in the shapes of one part
///
/// The inputs are not written to, and both results are differentiable.
///
/// # Panics
///
/// With the text of the [`AttentionError`] that [`try_merge_attentions`] returns.
///
/// # Example
///
/// ```rust
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_natten::{AttentionOptions, merge_attentions, try_attention};
///
/// # fn main() -> Result<(), burn_natten::AttentionError> {
/// let device = Device::flex();
/// let query = Tensor::<4>::random([1, 4, 2, 8], Distribution::Default, &device);
/// let key = Tensor::<4>::random([1, 10, 2, 8], Distribution::Default, &device);
/// let part = |tokens: std::ops::Range<usize>| {
///     let key = key.clone().slice([0..1, tokens]);
///     try_attention(query.clone(), key.clone(), key, AttentionOptions::new())
/// };
/// let (a, b) = (part(0..7)?, part(7..10)?);
/// let (out, logsumexp) = merge_attentions(vec![a.out, b.out], vec![a.logsumexp, b.logsumexp]);
/// let whole = part(0..10)?;
/// assert!(out.all_close(whole.out, None, Some(1e-5)));
/// assert!(logsumexp.all_close(whole.logsumexp, None, Some(1e-5)));
/// # Ok(())
/// # }
/// ```
///
/// Reference: [FlashAttention](https://arxiv.org/abs/2205.14135), which merges blocks of keys so.
#[track_caller]
pub fn merge_attentions<const D: usize, const L: usize>(
    outputs: Vec<Tensor<D>>,
    logsumexps: Vec<Tensor<L>>,
) -> (Tensor<D>, Tensor<L>) {
    match try_merge_attentions(outputs, logsumexps) {
        Ok(merged) => merged,
        Err(error) => panic!("{error}"),
    }
}

/// [`merge_attentions`], with an error instead of a panic.
///
/// # Errors
///
/// An [`AttentionError`] if there is nothing to merge or the parts do not fit together.
///
/// # Example
///
/// ```rust
/// use burn::tensor::{Device, Tensor};
/// use burn_natten::try_merge_attentions;
///
/// let device = Device::flex();
/// let (out, logsumexp) = (Tensor::<4>::ones([1, 4, 2, 8], &device), Tensor::<3>::ones([1, 4, 2], &device));
/// let error = try_merge_attentions(vec![out.clone(), out], vec![logsumexp]).expect_err("one is missing");
/// assert_eq!(error.to_string(), "logsumexps: has 1 tensors, must have 2 as outputs");
/// ```
pub fn try_merge_attentions<const D: usize, const L: usize>(
    outputs: Vec<Tensor<D>>,
    logsumexps: Vec<Tensor<L>>,
) -> Result<(Tensor<D>, Tensor<L>), AttentionError> {
    let Some(first) = outputs.first() else {
        return Err(AttentionError::EmptyMerge);
    };
    if logsumexps.len() != outputs.len() {
        let (got, expected) = (logsumexps.len(), outputs.len());
        return Err(AttentionError::MergeCount { got, expected });
    }
    if L + 1 != D {
        return Err(AttentionError::Rank { argument: "logsumexps", got: L, expected: D - 1 });
    }
    let shape = first.dims();
    is_float("outputs", first)?;
    let first_lse = &logsumexps[0];
    for (output, logsumexp) in outputs.iter().zip(&logsumexps) {
        matches(("outputs", output), ("outputs[0]", first))?;
        same_device(("logsumexps", logsumexp), ("outputs[0]", first))?;
        if logsumexp.dtype() != accumulator(first.dtype()) {
            return Err(AttentionError::MixedDTypes {
                argument: "logsumexps",
                got: logsumexp.dtype(),
                expected: accumulator(first.dtype()),
                other: "the accumulator of outputs",
            });
        }
        for axis in 0..D {
            same(&output.dims(), "outputs", &shape, "outputs[0]", axis, "any")?;
        }
        for axis in 0..L {
            same(&logsumexp.dims(), "logsumexps", &shape, "outputs[0]", axis, "any")?;
        }
    }
    let device = first.device();
    if Capabilities::of(&device).is_none() {
        return Err(AttentionError::UnsupportedBackend { device: format!("{device:?}") });
    }
    let (parts, lse_shape) = (outputs.len(), first_lse.dims());
    if parts == 1 || shape.iter().product::<usize>() == 0 {
        // One part is the whole, and a part without elements is like any other.
        let mut parts = outputs.into_iter().zip(logsumexps);
        return parts.next().ok_or(AttentionError::EmptyMerge);
    }
    let (rows, dim) = (lse_shape.iter().product::<usize>(), shape[D - 1]);
    let outs = outputs.into_iter().map(|out| out.reshape([1, rows, dim])).collect();
    let lses = logsumexps.into_iter().map(|lse| lse.reshape([1, rows])).collect();
    let (out, lse) = Dispatch::merge_forward(
        Tensor::<3>::cat(outs, 0).into_dispatch(),
        Tensor::<2>::cat(lses, 0).into_dispatch(),
    );
    Ok((
        Tensor::<2>::from_dispatch(out).reshape(shape),
        Tensor::<1>::from_dispatch(lse).reshape(lse_shape),
    ))
}
