use burn::backend::Dispatch;
use burn::tensor::Tensor;

use super::{cut, span};
use crate::backend::accumulator;
use crate::backend::means::BlockMeanOps;
use crate::backend::tokens::TokenOps;
use crate::backend::unfused::Optional;
use crate::functional::inputs::{is_float, matches};
use crate::options::Sizes;
use crate::problem::native_sparse::{must, sizes};
use crate::problem::same;
use crate::{AttentionError, NativeSparseAttentionOptions};

/// How the tokens of a block become one: a linear map, with or without weights.
///
/// ```text
/// block[i] = sum over r < cmp_block of tokens[i * cmp_stride + r] W[r]
/// ```
///
/// A position encoding of the places in a block would add the same vector to all blocks of a head: keys do without, since a softmax does
/// not see it, and in values it is a bias.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum Pooling {
    /// Their mean.
    #[default]
    Mean,
    /// Weights `[heads_kv, cmp_block]` of the places in a block.
    Weighted(Tensor<2>),
    /// The mean, projected by matrices `[heads_kv, dim, dim]`.
    MeanProjected(Tensor<3>),
    /// A matrix for each place in a block, `[heads_kv, cmp_block, dim, dim]`.
    Linear(Tensor<4>),
}

/// Compresses tokens to blocks, of which one begins every `cmp_stride` tokens. Tokens behind the last whole block are in none.
///
/// # Shapes
///
/// - tokens: `[batch, tokens, heads_kv, dim]`
/// - returns `[batch, blocks, heads_kv, dim]`, where `blocks` is
///   [`compressed_blocks(tokens)`](NativeSparseAttentionOptions::compressed_blocks)
///
/// Sums are held in f32, or f64 for f64. Gradients flow to the tokens and to the weights.
///
/// # Panics
///
/// With the text of the [`AttentionError`] that [`try_compress_tokens`] returns.
///
/// # Example
///
/// ```rust
/// use burn::tensor::{Device, Tensor};
/// use burn_natten::{NativeSparseAttentionOptions, Pooling, compress_tokens};
///
/// let options = NativeSparseAttentionOptions::new().with_cmp_block(4).with_cmp_stride(2);
/// let tokens = Tensor::<1>::from_floats([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], &Device::flex());
/// let blocks = compress_tokens(tokens.reshape([1, 7, 1, 1]), &Pooling::Mean, &options);
/// // Tokens 0 to 3, and 2 to 5.
/// assert_eq!(blocks.into_data().try_to_vec::<f32>().expect("f32"), [2.5, 4.5]);
/// ```
///
/// Reference: [Native Sparse Attention](https://arxiv.org/abs/2502.11089), equation 7.
#[track_caller]
pub fn compress_tokens(
    tokens: Tensor<4>,
    pooling: &Pooling,
    options: &NativeSparseAttentionOptions,
) -> Tensor<4> {
    match try_compress_tokens(tokens, pooling, options) {
        Ok(blocks) => blocks,
        Err(error) => panic!("{error}"),
    }
}

/// [`compress_tokens`], with an error instead of a panic.
///
/// # Errors
///
/// An [`AttentionError`] names what does not fit.
///
/// # Example
///
/// ```rust
/// use burn::tensor::{Device, Tensor};
/// use burn_natten::{NativeSparseAttentionOptions, Pooling, try_compress_tokens};
///
/// let device = Device::flex();
/// let tokens = Tensor::<4>::zeros([1, 100, 2, 8], &device);
/// let weights = Pooling::Weighted(Tensor::zeros([2, 30], &device));
/// let error = try_compress_tokens(tokens, &weights, &NativeSparseAttentionOptions::new())
///     .expect_err("blocks have 32 tokens");
/// assert_eq!(error.to_string(), "pooling: axis 1 (cmp_block) is 30, must be 32 as in options");
/// ```
pub fn try_compress_tokens(
    tokens: Tensor<4>,
    pooling: &Pooling,
    options: &NativeSparseAttentionOptions,
) -> Result<Tensor<4>, AttentionError> {
    sizes(options)?;
    is_float("tokens", &tokens)?;
    pooling.check(("tokens", &tokens), options.sizes.cmp_block)?;
    Ok(compress(tokens, pooling, &options.sizes))
}

impl Pooling {
    /// Fails unless weights fit tokens and blocks.
    pub(super) fn check(
        &self,
        (name, tokens): (&'static str, &Tensor<4>),
        cmp_block: usize,
    ) -> Result<(), AttentionError> {
        const POOLING: &str = "pooling";
        let [_, _, heads, dim] = tokens.dims();
        let of_options =
            |got: &[usize], axis| same(got, POOLING, &[0, cmp_block], "options", axis, "cmp_block");
        let heads_of = |got: &[usize]| same(got, POOLING, &[heads], name, 0, "heads");
        match self {
            Self::Mean => Ok(()),
            Self::Weighted(weights) => {
                matches((POOLING, weights), (name, tokens))?;
                heads_of(&weights.dims())?;
                of_options(&weights.dims(), 1)
            }
            Self::MeanProjected(weights) => {
                matches((POOLING, weights), (name, tokens))?;
                heads_of(&weights.dims())?;
                let want = [heads, dim, dim];
                same(&weights.dims(), POOLING, &want, name, 1, "head_dim")?;
                same(&weights.dims(), POOLING, &want, name, 2, "head_dim")
            }
            Self::Linear(weights) => {
                matches((POOLING, weights), (name, tokens))?;
                heads_of(&weights.dims())?;
                of_options(&weights.dims(), 1)?;
                let want = [heads, cmp_block, dim, dim];
                same(&weights.dims(), POOLING, &want, name, 2, "head_dim")?;
                same(&weights.dims(), POOLING, &want, name, 3, "head_dim")
            }
        }
    }
}

/// Compresses tokens, after the checks.
///
/// A block is `cmp_block / cmp_stride` segments of `cmp_stride` tokens, and a segment is in as many blocks.
pub(super) fn compress(tokens: Tensor<4>, pooling: &Pooling, sizes: &Sizes) -> Tensor<4> {
    let [batch, count, heads, dim] = tokens.dims();
    let blocks = sizes.compressed(count);
    if blocks == 0 {
        return span(tokens, 0, 0);
    }
    let dtype = tokens.dtype();
    let wide = |tokens: Tensor<4>| tokens.cast(accumulator(dtype));
    let segmented = |tokens: Tensor<4>| {
        let reach = sizes.cmp_block / sizes.cmp_stride;
        let segments = blocks + reach - 1;
        let tokens = cut(tokens, 0, segments * sizes.cmp_stride);
        wide(tokens).reshape([batch, segments, sizes.cmp_stride, heads, dim])
    };
    let compressed = match pooling {
        Pooling::Mean => means(tokens, sizes),
        Pooling::Weighted(weights) => weighted(segmented(tokens), weights.clone(), blocks),
        Pooling::MeanProjected(weights) => {
            let means = means(wide(tokens), sizes).swap_dims(1, 2);
            let weights = weights.clone().cast(accumulator(dtype));
            projected(means, weights).swap_dims(1, 2)
        }
        Pooling::Linear(weights) => linear(segmented(tokens), weights.clone(), blocks),
    };
    compressed.cast(dtype)
}

/// Sums, over the segments of each block, of `part(segment)`, which is of all blocks.
fn sum_of_segments<const D: usize>(
    reach: usize,
    mut part: impl FnMut(usize) -> Tensor<D>,
) -> Tensor<D> {
    let first = part(0);
    (1..reach).fold(first, |sum, segment| sum + part(segment))
}

fn means(tokens: Tensor<4>, sizes: &Sizes) -> Tensor<4> {
    Tensor::from_dispatch(Dispatch::block_means(tokens.into_dispatch(), sizes.grid()))
}

/// `tokens` are `[batch, segments, cmp_stride, heads, dim]`.
fn weighted(tokens: Tensor<5>, weights: Tensor<2>, blocks: usize) -> Tensor<4> {
    let [_, segments, stride, heads, _] = tokens.dims();
    // [1, 1, cmp_block, heads, 1]
    let weights = weights.cast(tokens.dtype()).swap_dims(0, 1).unsqueeze::<4>();
    let weights = weights.reshape([1, 1, -1, heads as i32, 1]);
    sum_of_segments(segments - blocks + 1, |segment| {
        let part = tokens.clone().narrow(1, segment, blocks);
        let weights = weights.clone().narrow(2, segment * stride, stride);
        (part * weights).sum_dim(2).squeeze_dim::<4>(2)
    })
}

/// Rows of each head, `[batch, heads, rows, inputs]`, times the matrix of the head, `[heads, inputs, outputs]`: as linear layers, which
/// are summed in f32. Burn's own products of f32 are of rounded factors on a GPU.
fn projected(rows: Tensor<4>, weights: Tensor<3>) -> Tensor<4> {
    let of_head = |head: usize| {
        let rows = rows.clone().narrow(1, head, 1);
        let weight = weights.clone().narrow(0, head, 1).squeeze_dim::<2>(0);
        let product =
            Dispatch::token_linear(rows.into_dispatch(), weight.into_dispatch(), Optional::None);
        Tensor::<4>::from_dispatch(product)
    };
    let [batch, heads, count, _] = rows.dims();
    match heads {
        0 => Tensor::zeros([batch, 0, count, weights.dims()[2]], (&rows.device(), rows.dtype())),
        _ => Tensor::cat((0..heads).map(of_head).collect(), 1),
    }
}

fn linear(tokens: Tensor<5>, weights: Tensor<4>, blocks: usize) -> Tensor<4> {
    let [batch, segments, stride, heads, dim] = tokens.dims();
    let dim_out = weights.dims()[3];
    let weights = weights.cast(tokens.dtype());
    let tokens = tokens.permute([0, 3, 1, 2, 4]).reshape([batch, heads, segments, stride * dim]);
    let compressed = sum_of_segments(segments - blocks + 1, |segment| {
        let weights = weights.clone().narrow(1, segment * stride, stride);
        let weights = weights.reshape([heads, stride * dim, dim_out]);
        projected(tokens.clone().narrow(2, segment, blocks), weights)
    });
    compressed.swap_dims(1, 2)
}

/// Fails unless compressed tokens from elsewhere, or the weights that make them, fit the tokens.
pub(super) fn check_compressed(
    (name, tokens): (&'static str, &Tensor<4>),
    pooling: &Pooling,
    given: Option<&Tensor<4>>,
    sizes: &Sizes,
) -> Result<(), AttentionError> {
    const GIVEN: &str = "compressed tokens";
    let Some(given) = given else {
        return pooling.check((name, tokens), sizes.cmp_block);
    };
    matches((GIVEN, given), (name, tokens))?;
    let (got, like) = (given.dims(), tokens.dims());
    for (axis, what) in [(0, "batch"), (2, "heads"), (3, "head_dim")] {
        same(&got, GIVEN, &like, name, axis, what)?;
    }
    let blocks = sizes.compressed(like[1]);
    must("number of compressed tokens", got[1], got[1] == blocks, || {
        format!("{blocks} (complete blocks of {} tokens)", like[1])
    })
}
