//! The compressed and the selected branch.

use burn::backend::Dispatch;
use burn::tensor::{Int, Tensor};
use burn_natten_kernels::{Axis, Problem};

use super::cut;
use super::select::try_select_blocks;
use crate::backend::{Weighed, accumulator};
use crate::functional::block_sparse::block_sparse_weighed;
use crate::functional::inputs::{Inputs, WeighedOutput};
use crate::functional::{AttentionOutput, BlockSparseOutput, try_attention, try_block_sparse1d};
use crate::options::Edge;
use crate::problem::native_sparse::{must, offset, sizes};
use crate::problem::{Shapes, dense};
use crate::{AttentionError, BlockSparseOptions, Capabilities, NativeSparseAttentionOptions};

/// Attention to compressed blocks: a query sees those whose tokens are all there at the query, its own token among them.
///
/// The first `cmp_block - 1` tokens of a sequence see none: their output is zero, their logsumexp `-inf`, and they have no
/// gradient. Where the options have a `cmp_top`, tiles of queries see so many super-blocks only: those of
/// [`with_cmp_blocks`](NativeSparseAttentionOptions::with_cmp_blocks), or of [`select_blocks`](crate::select_blocks).
///
/// # Shapes
///
/// - query: `[batch, rows, heads, head_dim]`, of the last tokens; the first of them begins a tile
/// - key: `[batch, blocks, heads_kv, head_dim]` and value: `[batch, blocks, heads_kv, head_dim_v]`, of all tokens, as
///   [`compress_tokens`](crate::compress_tokens) makes them
/// - tokens: how many there are
/// - returns `[batch, rows, heads, head_dim_v]`
///
/// # Panics
///
/// With the text of the [`AttentionError`] that [`try_compressed_attention`] returns.
///
/// # Example
///
/// ```rust
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_natten::{NativeSparseAttentionOptions, Pooling, compress_tokens, compressed_attention};
///
/// let device = Device::flex();
/// let options = NativeSparseAttentionOptions::new().with_cmp_block(8).with_cmp_stride(4);
/// let x = Tensor::<4>::random([1, 50, 2, 16], Distribution::Default, &device);
/// let blocks = compress_tokens(x.clone(), &Pooling::Mean, &options);
/// let out = compressed_attention(x, blocks.clone(), blocks.clone(), 50, &options);
/// assert_eq!(out.dims(), [1, 50, 2, 16]);
/// // Tokens 7 to 10 see the first block alone.
/// assert!(out.narrow(1, 10, 1).all_close(blocks.narrow(1, 0, 1), None, Some(1e-6)));
/// ```
///
/// Reference: [Native Sparse Attention](https://arxiv.org/abs/2502.11089), section 3.3.1.
#[track_caller]
pub fn compressed_attention(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    tokens: usize,
    options: &NativeSparseAttentionOptions,
) -> Tensor<4> {
    match try_compressed_attention(query, key, value, tokens, options) {
        Ok(output) => output.out,
        Err(error) => panic!("{error}"),
    }
}

/// [`compressed_attention`], with the logsumexp beside the output.
///
/// # Errors
///
/// An [`AttentionError`] names what does not fit.
///
/// # Example
///
/// ```rust
/// use burn::tensor::{Device, Tensor};
/// use burn_natten::{NativeSparseAttentionOptions, try_compressed_attention};
///
/// let x = |tokens| Tensor::<4>::zeros([1, tokens, 2, 8], &Device::flex());
/// let options = NativeSparseAttentionOptions::new();
/// let error = try_compressed_attention(x(100), x(5), x(5), 99, &options).expect_err("more rows");
/// assert_eq!(error.to_string(), "tokens of query: is 100, must be at most 99 (tokens of key)");
/// ```
pub fn try_compressed_attention(
    query: Tensor<4>,
    key: Tensor<4>,
    value: Tensor<4>,
    tokens: usize,
    options: &NativeSparseAttentionOptions,
) -> Result<AttentionOutput, AttentionError> {
    sizes(options)?;
    offset(query.dims()[1], tokens, options)?;
    let (got, blocks) = (key.dims()[1], options.compressed_blocks(tokens));
    must("blocks of key", got, got == blocks, || {
        format!("{blocks} (complete blocks of {tokens} tokens)")
    })?;
    let lists = match (options.sizes.cmp_top, &options.cmp_blocks) {
        (None, _) => None,
        (Some(_), Some(lists)) => Some(lists.clone()),
        (Some(_), None) => {
            let (query, key) = (query.clone().detach(), key.clone().detach());
            try_select_blocks(query, key, tokens, options)?.cmp_blocks
        }
    };
    Ok(compressed([query, key, value], tokens, lists, options)?.output)
}

/// What a branch gives.
pub(super) struct Branch {
    pub output: AttentionOutput,
    /// The same for the sum of the branches, and the logsumexp once more, where an operator was asked for it: see [`Weighed`].
    pub weighed: Option<(Tensor<4>, [Tensor<3>; 2])>,
}

impl Branch {
    /// By an operator's results, each brought into the shape of a sequence.
    fn new<const D: usize, const L: usize>(
        WeighedOutput { results: (out, logsumexp), weighed }: WeighedOutput<D, L>,
        of_out: impl Fn(Tensor<D>) -> Tensor<4>,
        of_lse: impl Fn(Tensor<L>) -> Tensor<3>,
    ) -> Self {
        let (out, logsumexp) = (of_out(out), of_lse(logsumexp));
        let (weighed, lses) = weighed;
        let weighed = Some((of_out(weighed), lses.map(of_lse)));
        Self { output: AttentionOutput { out, logsumexp }, weighed }
    }

    /// What the sum takes.
    pub fn weighed(&self) -> Option<Weighed<Dispatch>> {
        let (out, [lse, delta]) = self.weighed.clone()?;
        let [lse, delta] = [lse, delta].map(Tensor::into_dispatch);
        Some(Weighed { out: out.into_dispatch(), lse, delta })
    }
}

impl From<AttentionOutput> for Branch {
    fn from(output: AttentionOutput) -> Self {
        Self { output, weighed: None }
    }
}

/// Runs a problem, whose results are each brought into the shape of a sequence.
pub(super) fn run<const D: usize, const L: usize>(
    (inputs, problem): (Inputs<D>, Problem),
    options: &NativeSparseAttentionOptions,
    of_out: impl Fn(Tensor<D>) -> Tensor<4>,
    of_lse: impl Fn(Tensor<L>) -> Tensor<3>,
) -> Result<Branch, AttentionError> {
    if options.is_weighed(&inputs.query) {
        let output = inputs.run_weighed(problem, &options.branch())?;
        return Ok(Branch::new(output, of_out, of_lse));
    }
    let (out, logsumexp) = inputs.run(problem, &options.branch())?;
    Ok(AttentionOutput { out: of_out(out), logsumexp: of_lse(logsumexp) }.into())
}

/// Attention to listed blocks.
fn listed(
    [query, key, value]: [Tensor<4>; 3],
    lists: Tensor<4, Int>,
    mut sparse: BlockSparseOptions<1>,
    options: &NativeSparseAttentionOptions,
) -> Result<Branch, AttentionError> {
    sparse.common = options.branch();
    if options.is_weighed(&query) {
        let output = block_sparse_weighed([query, key, value], lists, &sparse)?;
        return Ok(Branch::new(output, |out| out, |lse| lse));
    }
    let BlockSparseOutput { out, logsumexp } =
        try_block_sparse1d(query, key, value, lists, sparse)?;
    Ok(AttentionOutput { out, logsumexp }.into())
}

/// Attention of rows that see nothing: as many as there are queries.
pub(super) fn blind(query: &Tensor<4>, rows: usize, head_dim_v: usize) -> AttentionOutput {
    let ([batch, _, heads, _], device) = (query.dims(), query.device());
    let out = Tensor::zeros([batch, rows, heads, head_dim_v], (&device, query.dtype()));
    let options = (&device, accumulator(query.dtype()));
    let logsumexp = Tensor::full([batch, rows, heads], f32::NEG_INFINITY, options);
    AttentionOutput { out, logsumexp }
}

/// The compressed branch of the last rows of so many tokens; thinned where there are lists of super-blocks.
pub(super) fn compressed(
    [query, key, value]: [Tensor<4>; 3],
    tokens: usize,
    lists: Option<Tensor<4, Int>>,
    options: &NativeSparseAttentionOptions,
) -> Result<Branch, AttentionError> {
    let ([_, rows, _, _], [_, blocks, _, _]) = (query.dims(), key.dims());
    let (sizes, head_dim_v) = (options.sizes, value.dims()[3]);
    // Where the first row stands, from the first token that sees a block on.
    let at = (tokens - rows) as isize - options.first_seeing() as isize;
    if blocks == 0 || rows == 0 || at + rows as isize <= 0 {
        Inputs::try_new(query.clone(), key.clone(), value.clone(), (None, None))?;
        let (queries, keys, values) = (query.dims(), key.dims(), value.dims());
        let shapes =
            Shapes { query: &queries, key: &keys, value: &values, additional: None, bias: None };
        dense(shapes, None, options.common.scale)?;
        return Ok(blind(&query, rows, head_dim_v).into());
    }
    if options.mslk.is_some_and(|mslk| !mslk.is_causal) {
        return Ok(try_attention(query, key, value, options.branch())?.into());
    }
    if let Some(lists) = lists {
        let edge = Edge { origin: at, step: sizes.cmp_stride };
        let sparse = BlockSparseOptions::<1>::new(sizes.query_tile, sizes.cmp_group);
        return listed([query, key, value], lists, sparse.with_edge(edge), options);
    }
    slanted([query, key, value], at, options)
}

/// Attention of rows that see more and more blocks: row `i` the first `(at + i) / cmp_stride + 1`, none where that is negative, and the last
/// one all.
///
/// The `cmp_stride` rows that see the same blocks are an axis of their own, along which there is one key: the other axis is
/// that of ordinary causal attention, which every tier has. Flex is given that one as the last axis, though its queries are apart in
/// memory: its loops run along the keys of the last axis.
fn slanted(
    [query, key, value]: [Tensor<4>; 3],
    at: isize,
    options: &NativeSparseAttentionOptions,
) -> Result<Branch, AttentionError> {
    let ([batch, rows, heads, dim], stride) = (query.dims(), options.sizes.cmp_stride);
    let [_, blocks, heads_kv, dim_v] = value.dims();
    if stride == 1 {
        return Ok(try_attention(query, key, value, options.branch().with_causal(true))?.into());
    }
    // Rows that see nothing are in groups before all keys.
    let before = at.rem_euclid(stride as isize) as usize;
    let groups = (before + rows).div_ceil(stride);
    if groups == 1 {
        return Ok(try_attention(query, key, value, options.branch())?.into());
    }
    let behind = groups * stride - before - rows;
    let zeros = |count| {
        let options = (&query.device(), query.dtype());
        (count > 0).then(|| Tensor::zeros([batch, count, heads, dim], options))
    };
    let (front, back) = (zeros(before), zeros(behind));
    let whole = match (front, back) {
        (None, None) => query,
        (front, back) => Tensor::cat(front.into_iter().chain([query]).chain(back).collect(), 1),
    };
    let shapes = Shapes {
        query: &whole.dims(),
        key: &key.dims(),
        value: &value.dims(),
        additional: None,
        bias: None,
    };
    let is_flex = Capabilities::of(&whole.device()).is_some_and(|device| device.is_flex);
    let order = if is_flex { [1, 0] } else { [0, 1] };
    let (axes, lengths) =
        ([Axis::dense(groups, blocks, true), Axis::dense(stride, 1, false)], [blocks, 1]);
    let problem = dense(shapes, None, options.common.scale)?.with_axes(order.map(|at| axes[at]));
    let [first, second] = order.map(|at| lengths[at]);
    let inputs = Inputs::try_new(
        whole.reshape([batch, groups, stride, heads, dim]).swap_dims(1, 1 + order[0]),
        key.reshape([batch, first, second, heads_kv, dim]),
        value.reshape([batch, first, second, heads_kv, dim_v]),
        (None, None),
    )?;
    let count = groups * stride;
    let of_out = |out: Tensor<5>| {
        let out = out.swap_dims(1, 1 + order[0]).reshape([batch, count, heads, dim_v]);
        cut(out, before, rows)
    };
    let of_lse = |lse: Tensor<4>| {
        let lse = lse.swap_dims(1, 1 + order[0]).reshape([batch, count, heads]);
        cut(lse, before, rows)
    };
    run((inputs, problem), options, of_out, of_lse)
}

/// The selected branch: raw tokens of listed blocks, up to the query.
pub(super) fn selected(
    [query, key, value]: [Tensor<4>; 3],
    lists: Tensor<4, Int>,
    options: &NativeSparseAttentionOptions,
) -> Result<Branch, AttentionError> {
    let sizes = options.sizes;
    let sparse = BlockSparseOptions::<1>::new(sizes.query_tile, sizes.slc_block);
    let is_causal = options.mslk.is_none_or(|mslk| mslk.is_causal);
    listed([query, key, value], lists, sparse.with_causal(is_causal), options)
}
