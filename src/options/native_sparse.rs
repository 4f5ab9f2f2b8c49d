use burn::tensor::{DType, Int, Tensor};
use burn_natten_kernels::tokens::BlockGrid;

use super::{AttentionOptions, Strategy};
use crate::Context;
use crate::nsa::Pooling;

/// Parameters of [`native_sparse_attention`](crate::native_sparse_attention).
///
/// The [guide](crate::guide::native_sparse_attention) says what each is for. All lengths are in tokens, unless they say
/// otherwise.
///
/// ```rust
/// use burn_natten::NativeSparseAttentionOptions;
///
/// // The paper's sizes, and smaller ones.
/// let paper = NativeSparseAttentionOptions::new();
/// let small = NativeSparseAttentionOptions::new()
///     .with_cmp_block(8)
///     .with_cmp_stride(4)
///     .with_slc_block(16)
///     .with_num_selected(4)
///     .with_window(32);
/// assert_eq!((paper.compressed_blocks(1000), small.compressed_blocks(1000)), (61, 249));
/// ```
///
/// Reference: [Native Sparse Attention](https://arxiv.org/abs/2502.11089).
#[derive(Clone, Debug)]
pub struct NativeSparseAttentionOptions {
    pub(crate) sizes: Sizes,
    pub(crate) mslk: Option<Mslk>,
    pub(crate) pool_key: Pooling,
    pub(crate) pool_value: Pooling,
    pub(crate) compressed: Option<(Tensor<4>, Tensor<4>)>,
    pub(crate) blocks: Option<Tensor<4, Int>>,
    pub(crate) cmp_blocks: Option<Tensor<4, Int>>,
    pub(crate) nonnegative_gates: bool,
    pub(crate) common: AttentionOptions,
}

/// The numbers among the options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sizes {
    pub cmp_block: usize,
    pub cmp_stride: usize,
    pub slc_block: usize,
    pub num_selected: usize,
    pub num_init: usize,
    pub num_local: usize,
    pub window: usize,
    pub query_tile: usize,
    pub cmp_top: Option<usize>,
    pub cmp_group: usize,
}

impl Sizes {
    const PAPER: Self = Self {
        cmp_block: 32,
        cmp_stride: 16,
        slc_block: 64,
        num_selected: 16,
        num_init: 1,
        num_local: 2,
        window: 512,
        query_tile: 1,
        cmp_top: None,
        cmp_group: 128,
    };

    /// Compressed blocks that are complete within the first `tokens`.
    pub const fn compressed(&self, tokens: usize) -> usize {
        self.grid().count(tokens)
    }

    /// Which tokens are in compressed blocks.
    pub const fn grid(&self) -> BlockGrid {
        BlockGrid { size: self.cmp_block, stride: self.cmp_stride }
    }

    /// Of the tile whose first query stands here: the selection blocks of its first and of its last query, which may be behind the
    /// end of the sequence.
    pub const fn own(&self, first: usize) -> (usize, usize) {
        (first / self.slc_block, (first + self.query_tile - 1) / self.slc_block)
    }

    /// The super-blocks that fill while such a tile lasts: the first one, and the end.
    pub const fn filling(&self, first: usize) -> (usize, usize) {
        let (seen, last) = (self.compressed(first + 1), self.compressed(first + self.query_tile));
        (seen / self.cmp_group, last.div_ceil(self.cmp_group))
    }
}

/// What MSLK computes instead of the paper's attention: see [`with_mslk`](NativeSparseAttentionOptions::with_mslk).
///
/// ```rust
/// use burn_natten::{Mslk, NativeSparseAttentionOptions};
///
/// let options = NativeSparseAttentionOptions::new()
///     .with_cmp_block(64)
///     .with_cmp_stride(64)
///     .with_query_tile(256)
///     .with_mslk(Mslk::new().with_repeats(true));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Mslk {
    pub(crate) is_causal: bool,
    pub(crate) has_repeats: bool,
}

impl Mslk {
    /// Causal, and lists that are short where there are few blocks.
    pub const fn new() -> Self {
        Self { is_causal: true, has_repeats: false }
    }

    /// Whether selected tokens and windows end at the query; `true` by default. Without, nothing is masked, and a window is
    /// `window / 2` tokens to either side.
    pub const fn with_causal(mut self, is_causal: bool) -> Self {
        self.is_causal = is_causal;
        self
    }

    /// Whether a list that is short is filled with block 0, each of which weighs again; `false` by default.
    pub const fn with_repeats(mut self, has_repeats: bool) -> Self {
        self.has_repeats = has_repeats;
        self
    }
}

impl Default for Mslk {
    fn default() -> Self {
        Self::new()
    }
}

impl NativeSparseAttentionOptions {
    /// The paper's sizes: compressed blocks of 32 tokens, one every 16; for each query 16 selected blocks of 64 tokens, of
    /// which one is the first and two end with its own; a window of 512 tokens. Means compress, and the scale is
    /// `head_dim^-0.5`.
    pub fn new() -> Self {
        Self {
            sizes: Sizes::PAPER,
            mslk: None,
            pool_key: Pooling::Mean,
            pool_value: Pooling::Mean,
            compressed: None,
            blocks: None,
            cmp_blocks: None,
            nonnegative_gates: false,
            common: AttentionOptions::new(),
        }
    }

    /// Tokens of a compressed block, a multiple of [`cmp_stride`](Self::with_cmp_stride); 32 by default.
    pub fn with_cmp_block(mut self, tokens: usize) -> Self {
        self.sizes.cmp_block = tokens;
        self
    }

    /// Tokens from one compressed block to the next, at least 1; 16 by default.
    pub fn with_cmp_stride(mut self, tokens: usize) -> Self {
        self.sizes.cmp_stride = tokens;
        self
    }

    /// Tokens of a block that can be selected, a multiple of [`cmp_stride`](Self::with_cmp_stride); 64 by default.
    pub fn with_slc_block(mut self, tokens: usize) -> Self {
        self.sizes.slc_block = tokens;
        self
    }

    /// Blocks that are selected, the forced ones among them; 16 by default. There has to be room for those: at least
    /// `num_init + num_local - 1 + max(1, query_tile / slc_block)`.
    pub fn with_num_selected(mut self, blocks: usize) -> Self {
        self.sizes.num_selected = blocks;
        self
    }

    /// Blocks at the start of the sequence that are always selected; 1 by default.
    pub fn with_num_init(mut self, blocks: usize) -> Self {
        self.sizes.num_init = blocks;
        self
    }

    /// Blocks at the query that are always selected, its own and those before it, at least 1; 2 by default.
    pub fn with_num_local(mut self, blocks: usize) -> Self {
        self.sizes.num_local = blocks;
        self
    }

    /// Tokens that a query sees in the window, its own among them; 512 by default. Zero switches the window off, and one that
    /// is longer than the sequence is all of it.
    pub fn with_window(mut self, tokens: usize) -> Self {
        self.sizes.window = tokens;
        self
    }

    /// Queries that share a list of blocks, by the choice of the first of them; 1 by default, as in the paper. It divides
    /// [`slc_block`](Self::with_slc_block) or is a multiple of it.
    pub fn with_query_tile(mut self, queries: usize) -> Self {
        self.sizes.query_tile = queries;
        self
    }

    /// How many super-blocks of compressed blocks the compressed branch attends to; all by default, which takes time by the
    /// square of the length. There has to be room for those that are still filling: at least
    /// `1 + ceil(ceil((query_tile - 1) / cmp_stride) / cmp_group)`.
    pub fn with_cmp_top(mut self, super_blocks: impl Into<Option<usize>>) -> Self {
        self.sizes.cmp_top = super_blocks.into();
        self
    }

    /// Compressed blocks of a super-block, at least 1; 128 by default.
    pub fn with_cmp_group(mut self, blocks: usize) -> Self {
        self.sizes.cmp_group = blocks;
        self
    }

    /// How keys, and how values, of a block become one; means by default. Compressed keys and values have the head dimensions
    /// of keys and values.
    ///
    /// ```rust
    /// use burn::tensor::{Device, Tensor};
    /// use burn_natten::{NativeSparseAttentionOptions, Pooling};
    ///
    /// // A weight for each head and place in a block: here means again.
    /// let weights = || Pooling::Weighted(Tensor::full([2, 32], 1.0 / 32.0, &Device::flex()));
    /// let options = NativeSparseAttentionOptions::new().with_pooling(weights(), weights());
    /// ```
    pub fn with_pooling(mut self, key: Pooling, value: Pooling) -> Self {
        (self.pool_key, self.pool_value) = (key, value);
        self
    }

    /// Compressed keys `[batch, blocks, heads_kv, head_dim]` and values `[batch, blocks, heads_kv, head_dim_v]` from elsewhere, such
    /// as an MLP, with [`compressed_blocks`](Self::compressed_blocks) blocks. Pooling is then left out; gradients flow to them.
    pub fn with_compressed(
        mut self,
        compressed: impl Into<Option<(Tensor<4>, Tensor<4>)>>,
    ) -> Self {
        self.compressed = compressed.into();
        self
    }

    /// Lists of selected blocks `[batch, tiles, heads_kv, entries]` from elsewhere, such as another layer; those of
    /// [`select_blocks`](crate::select_blocks) by default. They are read as those of
    /// [`block_sparse1d`](crate::block_sparse1d) are.
    pub fn with_blocks(mut self, blocks: impl Into<Option<Tensor<4, Int>>>) -> Self {
        self.blocks = blocks.into();
        self
    }

    /// Lists of super-blocks for the compressed branch, `[batch, tiles, heads_kv, entries]`, from elsewhere. They are read where
    /// [`with_cmp_top`](Self::with_cmp_top) asks for some, and [`with_blocks`](Self::with_blocks) gives the other ones.
    pub fn with_cmp_blocks(mut self, blocks: impl Into<Option<Tensor<4, Int>>>) -> Self {
        self.cmp_blocks = blocks.into();
        self
    }

    /// Computes what MSLK's reference computes instead, to compare with it; off by default.
    ///
    /// Compressed blocks do not overlap and are selection blocks, all three sizes alike; the sequence is a multiple of them and of
    /// the query tile. Each head of the query has lists of its own, by the mean of the tile's queries, with no block forced.
    /// **Queries see what comes behind them**: the compressed block that they are in, and choices that later queries of the tile take part in.
    pub fn with_mslk(mut self, mslk: impl Into<Option<Mslk>>) -> Self {
        self.mslk = mslk.into();
        self
    }

    /// Says that no gate is below zero, as none is that a sigmoid gives; `false` by default.
    ///
    /// Backward passes of the branches then take the gradient of the output and the logarithms of the gates, and no gradient of a branch's
    /// output is written, which is as large as the output. Gates below zero have gradients of NaN for query, keys and values.
    /// It changes nothing in f16, where small gates would be lost, nor where a branch is another kind of attention: a window of one token,
    /// or of the whole sequence, or no complete compressed block.
    pub fn with_nonnegative_gates(mut self, are_nonnegative: bool) -> Self {
        self.nonnegative_gates = are_nonnegative;
        self
    }

    /// Factor on the scores; `head_dim^-0.5` by default. An explicit zero is zero.
    pub fn with_scale(mut self, scale: impl Into<Option<f64>>) -> Self {
        self.common = self.common.with_scale(scale);
        self
    }

    /// Which implementation runs, in each of the branches; [`Strategy::Auto`] by default. By name there are [`Strategy::Portable`] and
    /// [`Strategy::Reference`], those of the selected branch.
    pub fn with_strategy(mut self, strategy: Strategy) -> Self {
        self.common = self.common.with_strategy(strategy);
        self
    }

    /// Settings for this call and its backward pass; [`Context::current`] by default.
    pub fn with_context(mut self, context: Context) -> Self {
        self.common = self.common.with_context(context);
        self
    }

    /// How many compressed blocks a sequence of so many tokens has: those that are complete.
    ///
    /// # Panics
    ///
    /// If `cmp_stride` is zero.
    pub fn compressed_blocks(&self, tokens: usize) -> usize {
        self.sizes.compressed(tokens)
    }

    /// Whether branches of this query give results for a weighed sum.
    pub(crate) fn is_weighed<const D: usize>(&self, query: &Tensor<D>) -> bool {
        self.nonnegative_gates && query.dtype() != DType::F16 && query.device().is_autodiff()
    }

    /// The first token that sees a compressed block. MSLK's see the one that they are in.
    pub(crate) fn first_seeing(&self) -> usize {
        if self.mslk.is_some() { 0 } else { self.sizes.cmp_block - 1 }
    }

    /// The factor on the scores.
    pub(crate) fn scale(&self, head_dim: usize) -> f64 {
        self.common.scale.unwrap_or_else(|| (head_dim as f64).powf(-0.5))
    }

    /// Settings for a branch.
    pub(crate) fn branch(&self) -> AttentionOptions {
        self.common.clone()
    }
}

impl Default for NativeSparseAttentionOptions {
    fn default() -> Self {
        Self::new()
    }
}
