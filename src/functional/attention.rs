use burn::tensor::Tensor;

use super::inputs::Inputs;
use crate::problem::{self, Shapes};
use crate::{AttentionError, AttentionOptions};

/// What [`try_attention`] returns. [`merge_attentions`](crate::merge_attentions) takes both parts.
#[derive(Clone, Debug)]
pub struct AttentionOutput {
    /// `[batch, queries, heads, head_dim_v]`, in the dtype of the query.
    pub out: Tensor<4>,
    /// `[batch, queries, heads]`, f32, or f64 for f64 inputs: the natural logarithm of the sum of
    /// the exponentials of the scaled scores.
    pub logsumexp: Tensor<3>,
}

/// Dense attention, `softmax(scale * query key^T) value`, without a matrix of scores in memory.
///
/// # Shapes
///
/// - query: `[batch, queries, heads, head_dim]`
/// - key: `[batch, keys, heads_kv, head_dim]`, where `heads` is a multiple of `heads_kv`
/// - value: `[batch, keys, heads_kv, head_dim_v]`
/// - returns `[batch, queries, heads, head_dim_v]`
///
/// # Panics
///
/// With the text of the [`AttentionError`] that [`try_attention`] returns.
///
/// # Example
///
/// ```rust
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_natten::{AttentionOptions, attention};
///
/// let device = Device::flex();
/// let query = Tensor::<4>::random([2, 10, 8, 16], Distribution::Default, &device);
/// // Cross attention to 30 tokens, with two heads that are shared by four query heads each.
/// let key = Tensor::<4>::random([2, 30, 2, 16], Distribution::Default, &device);
/// let value = Tensor::<4>::random([2, 30, 2, 16], Distribution::Default, &device);
/// let out = attention(query, key, value, AttentionOptions::new());
/// assert_eq!(out.dims(), [2, 10, 8, 16]);
/// ```
///
/// Reference: [FlashAttention](https://arxiv.org/abs/2205.14135),
/// [FlashAttention-2](https://arxiv.org/abs/2307.08691).
#[track_caller]
pub fn attention(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    options: AttentionOptions,
) -> Tensor<4> {
    match try_attention(query, key, value, options) {
        Ok(output) => output.out,
        Err(error) => panic!("{error}"),
    }
}

/// [`attention`], with the logsumexp beside the output.
///
/// A query that sees no key, since there is none or it stands before the first one
/// ([`CausalAlignment`](crate::CausalAlignment)), has the output zero, the logsumexp `-inf`, and no gradient.
///
/// # Errors
///
/// An [`AttentionError`] names the argument that does not fit and what it must be.
///
/// # Example
///
/// ```rust
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_natten::{AttentionOptions, try_attention};
///
/// # fn main() -> Result<(), burn_natten::AttentionError> {
/// let device = Device::flex();
/// let tokens = Tensor::<4>::random([1, 12, 4, 8], Distribution::Default, &device);
/// let options = AttentionOptions::new().with_causal(true);
/// let output = try_attention(tokens.clone(), tokens.clone(), tokens, options)?;
/// assert_eq!(output.logsumexp.dims(), [1, 12, 4]);
/// # Ok(())
/// # }
/// ```
pub fn try_attention(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    mut options: AttentionOptions,
) -> Result<AttentionOutput, AttentionError> {
    let additional = std::mem::take(&mut options.additional);
    let mut inputs = Inputs::try_new(query, key, value, additional)?;
    let mut problem = inputs.dense_problem(&options)?;
    if problem.keys() == 0 && problem.additional > 0 {
        // Only the additional tokens are left, which causality does not hide.
        if let Some((key, value)) = inputs.additional.take() {
            (inputs.key, inputs.value) = (key, value);
        }
        options.is_causal = false;
        problem = inputs.dense_problem(&options)?;
    }
    let (out, logsumexp) = inputs.run(problem, &options)?;
    Ok(AttentionOutput { out, logsumexp })
}

impl Inputs<4> {
    fn dense_problem(
        &self,
        options: &AttentionOptions,
    ) -> Result<burn_natten_kernels::Problem, AttentionError> {
        let shapes = Shapes {
            query: &self.query.dims(),
            key: &self.key.dims(),
            value: &self.value.dims(),
            additional: self.additional.as_ref().map(|(key, value)| (key.dims(), value.dims())),
            bias: None,
        };
        let causal = options.is_causal.then_some(options.alignment);
        problem::dense(shapes, causal, options.scale)
    }
}
