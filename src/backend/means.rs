//! Means of blocks of tokens, one of which begins every so many tokens: what native sparse attention makes of a block.
//!
//! An operator of its own, so that tokens are not written in a wide type: sums are held in f32, or f64 for f64, and rounded once.

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata, backend_extension};
use burn::tensor::{FloatDType, Shape};

use burn_natten_kernels::tokens::BlockGrid;

use super::rows::{TOKENS, rows, with_rows};
use super::wide;

/// The operator, which is differentiable.
#[backend_extension(
    Cube: cfg(feature = "cube"),
    Flex: cfg(feature = "flex"),
    Autodiff: cfg(feature = "autodiff"),
    Fusion: cfg(feature = "fusion"),
)]
pub trait BlockMeanOps: Backend {
    /// Means of the blocks of `[batch, tokens, heads, dim]`: `[batch, blocks, heads, dim]`. Their size is a multiple of the stride, and tokens
    /// behind the last one are in none.
    #[fusion(meta = meta::means)]
    fn block_means(tokens: FloatTensor<Self>, grid: BlockGrid) -> FloatTensor<Self> {
        means::<Self>(tokens, grid)
    }
}

/// What only gradients need. Asked of the inner backend only: first derivatives.
#[backend_extension(
    Cube: cfg(feature = "cube"),
    Flex: cfg(feature = "flex"),
    Fusion: cfg(feature = "fusion"),
)]
pub trait BlockMeanGradientOps: Backend {
    /// The gradient of so many tokens from that of their blocks' means.
    #[fusion(meta = meta::gradient)]
    fn block_means_gradient(
        means: FloatTensor<Self>,
        tokens: usize,
        grid: BlockGrid,
    ) -> FloatTensor<Self> {
        gradient::<Self>(means, tokens, grid)
    }
}

#[cfg(feature = "flex")]
impl BlockMeanOps for burn::backend::flex::Flex {}

#[cfg(feature = "flex")]
impl BlockMeanGradientOps for burn::backend::flex::Flex {}

/// `[batch, segments, stride, heads, dim]`
fn segmented(shape: &Shape, segments: usize, stride: usize) -> Shape {
    Shape::new([shape[0], segments, stride, shape[2], shape[3]])
}

/// The operator by tensor operations. Each segment is summed up once, and blocks add them.
pub(crate) fn means<B: Backend>(tokens: FloatTensor<B>, grid: BlockGrid) -> FloatTensor<B> {
    let (dtype, shape): (FloatDType, _) = (tokens.dtype().into(), tokens.shape());
    let blocks = grid.count(shape[TOKENS]);
    if blocks == 0 {
        return B::float_slice(tokens, &rows(0..0));
    }
    let reach = grid.size / grid.stride;
    let segments = blocks + reach - 1;
    let tokens = wide::<B>(B::float_slice(tokens, &rows(0..segments * grid.stride)));
    let sums = B::float_reshape(tokens, segmented(&shape, segments, grid.stride));
    let sums = B::float_reshape(B::float_sum_dim(sums, TOKENS + 1), with_rows(&shape, segments));
    let of_segment = |first: usize| B::float_slice(sums.clone(), &rows(first..first + blocks));
    let sum = (1..reach).map(of_segment).fold(of_segment(0), B::float_add);
    B::float_cast(B::float_div_scalar(sum, grid.size.into()), dtype)
}

/// The gradient of [`means`].
pub(crate) fn gradient<B: Backend>(
    means: FloatTensor<B>,
    tokens: usize,
    grid: BlockGrid,
) -> FloatTensor<B> {
    let (dtype, shape): (FloatDType, _) = (means.dtype().into(), means.shape());
    let device = means.device();
    let blocks = shape[TOKENS];
    let wide_type = super::accumulator(means.dtype()).into();
    if blocks == 0 {
        return B::float_zeros(with_rows(&shape, tokens), &device, dtype);
    }
    let share = B::float_div_scalar(wide::<B>(means), grid.size.into());
    let reach = grid.size / grid.stride;
    let segments = blocks + reach - 1;
    let sums = match reach {
        1 => share,
        _ => {
            let zeros = B::float_zeros(with_rows(&shape, segments), &device, wide_type);
            (0..reach).fold(zeros, |sums, first| {
                let range = rows(first..first + blocks);
                let sum = B::float_add(B::float_slice(sums.clone(), &range), share.clone());
                B::float_slice_assign(sums, &range, sum)
            })
        }
    };
    let sums = B::float_reshape(sums, segmented(&shape, segments, 1));
    let each = B::float_expand(sums, segmented(&shape, segments, grid.stride));
    let count = segments * grid.stride;
    let each = B::float_cast(B::float_reshape(each, with_rows(&shape, count)), dtype);
    if count == tokens {
        return each;
    }
    let whole = B::float_zeros(with_rows(&shape, tokens), &device, dtype);
    B::float_slice_assign(whole, &rows(0..count), each)
}

#[cfg(feature = "autodiff")]
mod autodiff {
    use burn::backend::autodiff::Autodiff;
    use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;

    use super::*;
    use crate::backend::unfused::{LinearMap, record_linear};

    #[derive(Debug)]
    struct Means {
        tokens: usize,
        grid: BlockGrid,
    }

    impl<B: BlockMeanGradientOps> LinearMap<B> for Means {
        fn gradient(&self, gradient: FloatTensor<B>) -> FloatTensor<B> {
            B::block_means_gradient(gradient, self.tokens, self.grid)
        }
    }

    impl<B, C> BlockMeanOps for Autodiff<B, C>
    where
        B: BlockMeanOps + BlockMeanGradientOps,
        C: CheckpointStrategy,
    {
        fn block_means(tokens: FloatTensor<Self>, grid: BlockGrid) -> FloatTensor<Self> {
            let inner = tokens.primitive().clone();
            let means = Means { tokens: inner.shape()[TOKENS], grid };
            record_linear::<B, C, _>(means, &tokens, B::block_means(inner, grid))
        }
    }
}

/// What fusion must know of an output before it is computed.
#[cfg(feature = "fusion")]
mod meta {
    use burn::backend::fusion::custom::TensorSpec;

    use super::{BlockGrid, TOKENS, with_rows};

    pub fn means(tokens: &TensorSpec, grid: &BlockGrid) -> TensorSpec {
        let blocks = grid.count(tokens.shape[TOKENS]);
        TensorSpec::new(with_rows(&tokens.shape, blocks), tokens.dtype)
    }

    pub fn gradient(means: &TensorSpec, tokens: &usize, _grid: &BlockGrid) -> TensorSpec {
        TensorSpec::new(with_rows(&means.shape, *tokens), means.dtype)
    }
}
