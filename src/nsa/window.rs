//! The window branch.

use burn::tensor::Tensor;
use burn_natten_kernels::Axis;

use super::branches::{Branch, blind, run};
use super::cut;
use crate::backend::accumulator;
use crate::functional::inputs::Inputs;
use crate::functional::{AttentionOutput, try_attention, try_merge_attentions};
use crate::problem::{Shapes, dense};
use crate::{AttentionError, NativeSparseAttentionOptions};

/// The window branch: the last tokens up to each query. Queries are of the last tokens; keys may lack what none of them sees.
pub(super) fn window(
    [query, key, value]: [Tensor<4>; 3],
    options: &NativeSparseAttentionOptions,
) -> Result<Branch, AttentionError> {
    let size = options.sizes.window;
    match options.mslk {
        Some(mslk) if !mslk.is_causal => centred([query, key, value], size / 2, options),
        _ => last([query, key, value], size, options),
    }
}

/// The last `size` tokens up to each query.
fn last(
    [query, key, value]: [Tensor<4>; 3],
    size: usize,
    options: &NativeSparseAttentionOptions,
) -> Result<Branch, AttentionError> {
    let rows = query.dims()[1];
    if size == 0 || rows == 0 {
        return Ok(blind(&query, rows, value.dims()[3]).into());
    }
    if size == 1 {
        let own = |tokens: Tensor<4>| {
            let before = tokens.dims()[1] - rows;
            cut(tokens, before, rows)
        };
        return Ok(itself(query, own(key), own(value), options).into());
    }
    // What no query sees.
    let keys = key.dims()[1];
    let unseen = (keys - rows).saturating_sub(size - 1);
    let seen = |tokens: Tensor<4>| cut(tokens, unseen, keys - unseen);
    let (key, value, keys) = (seen(key), seen(value), keys - unseen);
    if size >= keys {
        return Ok(try_attention(query, key, value, options.branch().with_causal(true))?.into());
    }
    let shapes = Shapes {
        query: &query.dims(),
        key: &key.dims(),
        value: &value.dims(),
        additional: None,
        bias: None,
    };
    let mut axis = Axis::neighborhood(keys, size).with_causal(true);
    (axis.queries, axis.origin) = (rows, (keys - rows) as isize);
    let problem = dense(shapes, None, options.common.scale)?.with_axes([axis]);
    let inputs = Inputs::try_new(query, key, value, (None, None))?;
    run((inputs, problem), options, |out| out, |lse| lse)
}

/// Queries that see their own token: its value, with the score.
fn itself(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    options: &NativeSparseAttentionOptions,
) -> AttentionOutput {
    let [batch, rows, heads, dim] = query.dims();
    let [_, _, heads_kv, dim_v] = value.dims();
    let group = heads / heads_kv;
    let sums = accumulator(query.dtype());
    let query = query.cast(sums).reshape([batch, rows, heads_kv, group, dim]);
    let key = key.cast(sums).reshape([batch, rows, heads_kv, 1, dim]);
    let scores = (query * key).sum_dim(4) * options.scale(dim);
    let value = value.reshape([batch, rows, heads_kv, 1, dim_v]);
    let out = value.expand([batch, rows, heads_kv, group, dim_v]);
    AttentionOutput {
        out: out.reshape([batch, rows, heads, dim_v]),
        logsumexp: scores.reshape([batch, rows, heads]),
    }
}

/// Up to `reach` tokens to either side of each query, and its own.
fn centred(
    [query, key, value]: [Tensor<4>; 3],
    reach: usize,
    options: &NativeSparseAttentionOptions,
) -> Result<Branch, AttentionError> {
    let rows = query.dims()[1];
    let before = last([query.clone(), key.clone(), value.clone()], reach + 1, options)?;
    if reach == 0 || rows <= 1 {
        return Ok(before);
    }
    // The tokens behind are those before, seen from the other end, of which a query's own is left out: query `i` stands where
    // token `i + 1` does, and the last one sees none.
    let queries = query.clone().narrow(1, 0, rows - 1).flip([1]);
    let tokens = |tokens: Tensor<4>| tokens.narrow(1, 1, rows - 1).flip([1]);
    let before = before.output;
    let behind = last([queries, tokens(key), tokens(value.clone())], reach, options)?.output;
    let none = blind(&query, 1, value.dims()[3]);
    let out = Tensor::cat(vec![behind.out.flip([1]), none.out], 1);
    let logsumexp = Tensor::cat(vec![behind.logsumexp.flip([1]), none.logsumexp], 1);
    let (out, logsumexp) =
        try_merge_attentions(vec![before.out, out], vec![before.logsumexp, logsumexp])?;
    Ok(AttentionOutput { out, logsumexp }.into())
}
