use burn::backend::Dispatch;
use burn::tensor::{Int, Tensor};

use crate::backend::select::{OptionalLists, SelectOps, SelectPlan, Selected};
use crate::functional::inputs::{is_float, matches};
use crate::problem::native_sparse::{must, offset, sizes};
use crate::problem::{Shapes, dense};
use crate::{AttentionError, Capabilities, NativeSparseAttentionOptions};

/// The lists that [`select_blocks`] returns, ascending, with `-1` behind their ends.
#[derive(Clone, Debug)]
pub struct SelectedBlocks {
    /// Blocks of `slc_block` tokens, `[batch, tiles, heads_kv, num_selected]`.
    pub blocks: Tensor<4, Int>,
    /// Super-blocks of `cmp_group` compressed blocks, `[batch, tiles, heads_kv, cmp_top]`, if the options ask for some.
    pub cmp_blocks: Option<Tensor<4, Int>>,
}

/// Chooses for each tile of queries the blocks of tokens that compressed attention points to.
///
/// Compressed blocks that overlap a block give it their probabilities, by as many strides as they share; those of the heads
/// that share a key are summed up. Forced are the first `num_init` blocks, the block of the tile's first query with
/// `num_local - 1` blocks before it, and those of its other queries. The rest of a list is the best among the blocks before,
/// the lower number first among equals. Only the first query of a tile scores, so that no choice depends on what comes behind it.
///
/// # Shapes
///
/// - query: `[batch, rows, heads, head_dim]`, of the last tokens; the first of them begins a tile
/// - compressed_key: `[batch, blocks, heads_kv, head_dim]`, of all tokens, as
///   [`compress_tokens`](crate::compress_tokens) makes them
/// - tokens: how many there are
/// - returns lists for `ceil(rows / query_tile)` tiles and `heads_kv` heads
///
/// Lists have no gradient. Scores are computed in f32, or f64 for f64.
///
/// # Panics
///
/// With the text of the [`AttentionError`] that [`try_select_blocks`] returns.
///
/// # Example
///
/// ```rust
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_natten::{NativeSparseAttentionOptions, Pooling, compress_tokens, select_blocks};
///
/// let device = Device::flex();
/// let options = NativeSparseAttentionOptions::new().with_num_selected(4);
/// let random = |heads| Tensor::<4>::random([1, 500, heads, 16], Distribution::Default, &device);
/// let (query, key) = (random(4), random(2));
/// let compressed = compress_tokens(key, &Pooling::Mean, &options);
/// let lists = select_blocks(query, compressed, 500, &options).blocks;
/// assert_eq!(lists.dims(), [1, 500, 2, 4]);
///
/// // Query 200 is in block 3: it sees that, the one before, the first one, and the only one that is left.
/// let list = lists.slice([0..1, 200..201, 0..1, 0..4]).into_data().convert::<i64>();
/// assert_eq!(list.try_to_vec::<i64>().expect("i64"), [0, 1, 2, 3]);
/// ```
///
/// Reference: [Native Sparse Attention](https://arxiv.org/abs/2502.11089), section 3.3.2.
#[track_caller]
pub fn select_blocks(
    query: Tensor<4>,
    compressed_key: Tensor<4>,
    tokens: usize,
    options: &NativeSparseAttentionOptions,
) -> SelectedBlocks {
    match try_select_blocks(query, compressed_key, tokens, options) {
        Ok(lists) => lists,
        Err(error) => panic!("{error}"),
    }
}

/// [`select_blocks`], with an error instead of a panic.
///
/// # Errors
///
/// An [`AttentionError`] names what does not fit.
///
/// # Example
///
/// ```rust
/// use burn::tensor::{Device, Tensor};
/// use burn_natten::{NativeSparseAttentionOptions, try_select_blocks};
///
/// let x = |tokens| Tensor::<4>::zeros([1, tokens, 2, 8], &Device::flex());
/// let options = NativeSparseAttentionOptions::new();
/// let error = try_select_blocks(x(100), x(6), 100, &options).expect_err("there are 5 blocks");
/// assert_eq!(
///     error.to_string(),
///     "blocks of compressed_key: is 6, must be 5 (complete blocks of 100 tokens)"
/// );
/// ```
pub fn try_select_blocks(
    query: Tensor<4>,
    compressed_key: Tensor<4>,
    tokens: usize,
    options: &NativeSparseAttentionOptions,
) -> Result<SelectedBlocks, AttentionError> {
    select(query, compressed_key, None, tokens, options)
}

/// [`try_select_blocks`], with the logsumexp of the compressed branch if that has attended to all blocks.
pub(super) fn select(
    query: Tensor<4>,
    compressed_key: Tensor<4>,
    logsumexp: Option<Tensor<3>>,
    tokens: usize,
    options: &NativeSparseAttentionOptions,
) -> Result<SelectedBlocks, AttentionError> {
    sizes(options)?;
    is_float("query", &query)?;
    matches(("compressed_key", &compressed_key), ("query", &query))?;
    let (rows, got) = (query.dims()[1], compressed_key.dims()[1]);
    offset(rows, tokens, options)?;
    let blocks = options.compressed_blocks(tokens);
    must("blocks of compressed_key", got, got == blocks, || {
        format!("{blocks} (complete blocks of {tokens} tokens)")
    })?;
    let key = compressed_key.dims();
    let shapes =
        Shapes { query: &query.dims(), key: &key, value: &key, additional: None, bias: None };
    let problem = dense(shapes, None, options.common.scale)?;
    let device = query.device();
    if Capabilities::of(&device).is_none() {
        return Err(AttentionError::UnsupportedBackend { device: format!("{device:?}") });
    }
    let plan = SelectPlan::new(problem, tokens, &device, options);
    let (query, key) = (query.into_dispatch(), compressed_key.into_dispatch());
    let Selected { blocks, super_blocks } = match logsumexp {
        Some(known) => Dispatch::select_blocks_by(query, key, known.into_dispatch(), plan),
        None => Dispatch::select_blocks(query, key, plan),
    };
    let cmp_blocks = match super_blocks {
        OptionalLists::None => None,
        OptionalLists::Some { lists } => Some(Tensor::from_dispatch(lists)),
    };
    Ok(SelectedBlocks { blocks: Tensor::from_dispatch(blocks), cmp_blocks })
}
