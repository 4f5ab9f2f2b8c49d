use burn::backend::Dispatch;
use burn::tensor::{Int, Tensor};
use burn_natten_kernels::Operands;

use super::inputs::{Inputs, WeighedOutput, is_on};
use crate::backend::AttentionInputs;
use crate::backend::block_sparse::{BlockSparseOps, BlockSparsePlan};
use crate::problem::{self, Shapes};
use crate::{AttentionError, BlockSparseOptions};

/// What the `try_` operators of block-sparse attention return.
///
/// `D` is the rank of the query, `L` that of the logsumexp, `D - 1`. [`merge_attentions`](crate::merge_attentions) takes both parts.
#[derive(Clone, Debug)]
pub struct BlockSparseOutput<const D: usize, const L: usize> {
    /// `[batch, *space, heads, head_dim_v]`, in the dtype of the query.
    pub out: Tensor<D>,
    /// `[batch, *space, heads]`, f32, or f64 for f64 inputs: the natural logarithm of the sum of
    /// the exponentials of the scaled scores, `-inf` where a query sees no key.
    pub logsumexp: Tensor<L>,
}

/// Defines the operator of a rank and its twin.
macro_rules! block_sparse {
    ($name:ident, $try_name:ident, rank $rank:literal, $d:literal, $l:literal, space $space:literal,
     blocks $blocks:literal, example $dims:literal $block:literal $count:literal) => {
        #[doc = concat!("Block-sparse attention over ", $space, ": queries attend to the keys in listed blocks.")]
        ///
        #[doc = concat!("Tokens are cut into boxes of ", $blocks, ", the last of which along an axis may be short; they are ")]
        /// numbered row-major. For each block of queries and each head there is a list of blocks of keys. Tokens stay where they are
        /// in memory: boxes are no permutation.
        ///
        /// # Lists
        ///
        /// `blocks` is `[batch, query_blocks, heads, entries]`, or `heads_kv` in place of `heads`, with one list for all heads of the
        /// query that share a head of the key. A number that is no block's names nothing: `-1` fills a list that is short. Order does
        /// not matter; a block that is listed twice counts twice, as if its keys were there twice. No gradient flows through lists.
        /// [`block_lists`](crate::block_lists) makes and checks them.
        ///
        /// A query that sees no key has the output zero, the logsumexp `-inf`, and no gradient.
        ///
        /// # Shapes
        ///
        #[doc = concat!("- query: `[batch, ", $space, ", heads, head_dim]`")]
        #[doc = concat!(
            "- key: `[batch, ", $space, ", heads_kv, head_dim]`, of other lengths than the query if they are; `heads` is a multiple of ",
            "`heads_kv`"
        )]
        #[doc = concat!("- value: `[batch, ", $space, ", heads_kv, head_dim_v]`, as many as keys")]
        /// - blocks: `[batch, query_blocks, heads, entries]` or `[batch, query_blocks, heads_kv, entries]`
        #[doc = concat!("- returns `[batch, ", $space, ", heads, head_dim_v]`")]
        ///
        /// # Panics
        ///
        #[doc = concat!(
            "With the text of the [`AttentionError`] that [`", stringify!($try_name), "`] returns."
        )]
        ///
        /// # Example
        ///
        /// ```rust
        /// use burn::tensor::{Device, Distribution, Int, Tensor};
        #[doc = concat!("use burn_natten::{AttentionOptions, BlockSparseOptions, attention, ", stringify!($name), "};")]
        ///
        /// let device = Device::flex();
        #[doc = concat!("let x = Tensor::<", $d, ">::random(", $dims, ", Distribution::Default, &device);")]
        #[doc = concat!("let options = BlockSparseOptions::<", $rank, ">::new(", $block, ", ", $block, ");")]
        /// // Every block of queries sees its own block of keys, for either head.
        #[doc = concat!("let own = Tensor::<1, Int>::arange(0..", $count, ", &device).reshape([1, ", $count, ", 1, 1]).repeat_dim(2, 2);")]
        #[doc = concat!("let out = ", stringify!($name), "(x.clone(), x.clone(), x.clone(), own, options.clone());")]
        #[doc = concat!("assert_eq!(out.dims(), ", $dims, ");")]
        ///
        /// // With all blocks in every list, it is dense attention.
        #[doc = concat!("let all = Tensor::<1, Int>::arange(0..", $count, ", &device).reshape([1, 1, 1, ", $count, "]).repeat(&[1, ", $count, ", 2, 1]);")]
        #[doc = concat!("let out = ", stringify!($name), "(x.clone(), x.clone(), x.clone(), all, options);")]
        /// let line = x.reshape([1, -1, 2, 8]);
        /// let dense = attention(line.clone(), line.clone(), line, AttentionOptions::new());
        /// assert!(out.reshape([1, -1, 2, 8]).all_close(dense, None, Some(1e-5)));
        /// ```
        ///
        /// Reference: [Sparse Transformers](https://arxiv.org/abs/1904.10509), [FlexAttention](https://arxiv.org/abs/2412.05496),
        /// [Native Sparse Attention](https://arxiv.org/abs/2502.11089).
        #[track_caller]
        pub fn $name(
            query: Tensor<$d>,
            key: Tensor<$d>,
            value: Tensor<$d>,
            blocks: Tensor<4, Int>,
            options: BlockSparseOptions<$rank>,
        ) -> Tensor<$d> {
            match $try_name(query, key, value, blocks, options) {
                Ok(output) => output.out,
                Err(error) => panic!("{error}"),
            }
        }

        #[doc = concat!("[`", stringify!($name), "`], with the logsumexp beside the output.")]
        ///
        /// # Errors
        ///
        /// An [`AttentionError`] names the argument and the axis that does not fit, the value it
        /// got and the bound.
        ///
        /// # Example
        ///
        /// ```rust
        /// use burn::tensor::{Device, Int, Tensor};
        #[doc = concat!("use burn_natten::{BlockSparseOptions, ", stringify!($try_name), "};")]
        ///
        /// let device = Device::flex();
        #[doc = concat!("let x = Tensor::<", $d, ">::zeros(", $dims, ", &device);")]
        /// let blocks = Tensor::<4, Int>::zeros([1, 1, 2, 1], &device);
        #[doc = concat!("let options = BlockSparseOptions::<", $rank, ">::new(", $block, ", ", $block, ");")]
        #[doc = concat!("let error = ", stringify!($try_name), "(x.clone(), x.clone(), x, blocks, options)")]
        ///     .expect_err("lists of one block of queries");
        #[doc = concat!("let text = \"blocks: axis 1 (blocks of queries) is 1, must be ", $count, "\";")]
        /// assert!(error.to_string().starts_with(text), "{error}");
        /// ```
        pub fn $try_name(
            query: Tensor<$d>,
            key: Tensor<$d>,
            value: Tensor<$d>,
            blocks: Tensor<4, Int>,
            options: BlockSparseOptions<$rank>,
        ) -> Result<BlockSparseOutput<$d, $l>, AttentionError> {
            block_sparse(query, key, value, blocks, options)
        }
    };
}

block_sparse!(block_sparse1d, try_block_sparse1d, rank 1, 4, 3, space "length",
    blocks "`query_block` and `key_block` tokens", example "[1, 20, 2, 8]" "4" "5");
block_sparse!(block_sparse2d, try_block_sparse2d, rank 2, 5, 4, space "height, width",
    blocks "`query_block` and `key_block` tokens along each axis", example "[1, 8, 9, 2, 8]" "[4, 3]" "6");
block_sparse!(block_sparse3d, try_block_sparse3d, rank 3, 6, 5, space "depth, height, width",
    blocks "`query_block` and `key_block` tokens along each axis", example "[1, 4, 5, 6, 2, 8]" "[2, 4, 3]" "8");

pub(crate) fn block_sparse<const N: usize, const D: usize, const L: usize>(
    query: Tensor<D>,
    key: Tensor<D>,
    value: Tensor<D>,
    blocks: Tensor<4, Int>,
    options: BlockSparseOptions<N>,
) -> Result<BlockSparseOutput<D, L>, AttentionError> {
    let (inputs, plan) = planned([query, key, value], &blocks, &options)?;
    let results = Dispatch::block_sparse_forward(inputs, blocks.into_dispatch(), plan);
    let (out, logsumexp) = (Tensor::from_dispatch(results.out), Tensor::from_dispatch(results.lse));
    Ok(BlockSparseOutput { out, logsumexp })
}

/// The same, and the results for a weighed sum.
pub(crate) fn block_sparse_weighed<const N: usize, const D: usize, const L: usize>(
    tensors: [Tensor<D>; 3],
    blocks: Tensor<4, Int>,
    options: &BlockSparseOptions<N>,
) -> Result<WeighedOutput<D, L>, AttentionError> {
    let (inputs, plan) = planned(tensors, &blocks, options)?;
    let results = Dispatch::block_sparse_forward_weighed(inputs, blocks.into_dispatch(), plan);
    Ok(WeighedOutput::new(results))
}

/// Tensors that fit, and how they are attended to.
fn planned<const N: usize, const D: usize>(
    [query, key, value]: [Tensor<D>; 3],
    blocks: &Tensor<4, Int>,
    options: &BlockSparseOptions<N>,
) -> Result<(AttentionInputs<Dispatch>, BlockSparsePlan), AttentionError> {
    let Inputs { query, key, value, .. } = Inputs::try_new(query, key, value, (None, None))?;
    is_on(("blocks", blocks.device()), ("query", query.device()))?;
    let shapes = Shapes {
        query: &query.dims(),
        key: &key.dims(),
        value: &value.dims(),
        additional: None,
        bias: None,
    };
    let sparse = problem::block_sparse::block_sparse(shapes, blocks.dims(), options)?;
    let plan = BlockSparsePlan::new(sparse, query.dtype(), &query.device(), &options.common)?;
    let operands = Operands::new(query.into_dispatch(), key.into_dispatch(), value.into_dispatch());
    Ok((AttentionInputs::new(operands), plan))
}
