//! Tokens of a sequence, cut out of it.
//!
//! The gradient is joined from its parts: that of Burn's own slices writes zeros everywhere first.

use std::ops::Range;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, backend_extension};
use burn::tensor::{Shape, Slice};

/// The axis of tokens.
pub(crate) const TOKENS: usize = 1;

/// The operator, which is differentiable.
#[backend_extension(
    Cube: cfg(feature = "cube"),
    Flex: cfg(feature = "flex"),
    Autodiff: cfg(feature = "autodiff"),
    Fusion: cfg(feature = "fusion"),
)]
pub trait RowOps: Backend {
    /// `count` tokens from `first` on of `[batch, tokens, ..]`.
    #[fusion(meta = meta::cut)]
    fn cut_rows(tensor: FloatTensor<Self>, first: usize, count: usize) -> FloatTensor<Self> {
        Self::float_slice(tensor, &rows(first..first + count))
    }
}

#[cfg(feature = "flex")]
impl RowOps for burn::backend::flex::Flex {}

#[cfg(feature = "cube")]
impl RowOps for burn_cubecl::CubeBackend {}

/// What cuts such tokens out.
pub(crate) fn rows(range: Range<usize>) -> [Slice; 2] {
    [Slice::from(..), Slice::from(range)]
}

/// `[batch, count, ..]` from one that has such axes.
pub(crate) fn with_rows(shape: &Shape, count: usize) -> Shape {
    let mut shape = shape.clone();
    shape[TOKENS] = count;
    shape
}

#[cfg(feature = "autodiff")]
mod autodiff {
    use burn::backend::TensorMetadata;
    use burn::backend::autodiff::Autodiff;
    use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;

    use super::*;
    use crate::backend::unfused::{LinearMap, record_linear};

    /// How many tokens are before and behind.
    #[derive(Debug)]
    struct Cut {
        before: usize,
        behind: usize,
    }

    impl<B: Backend> LinearMap<B> for Cut {
        fn gradient(&self, gradient: FloatTensor<B>) -> FloatTensor<B> {
            let (shape, device) = (gradient.shape(), gradient.device());
            let dtype = gradient.dtype();
            let zeros = |count: usize| {
                let shape = with_rows(&shape, count);
                (count > 0).then(|| B::float_zeros(shape, &device, dtype.into()))
            };
            let (before, behind) = (zeros(self.before), zeros(self.behind));
            let parts = before.into_iter().chain([gradient]).chain(behind).collect();
            B::float_cat(parts, TOKENS)
        }
    }

    impl<B: RowOps, C: CheckpointStrategy> RowOps for Autodiff<B, C> {
        fn cut_rows(tensor: FloatTensor<Self>, first: usize, count: usize) -> FloatTensor<Self> {
            let inner = tensor.primitive().clone();
            let cut = Cut { before: first, behind: inner.shape()[TOKENS] - first - count };
            record_linear::<B, C, _>(cut, &tensor, B::cut_rows(inner, first, count))
        }
    }
}

/// What fusion must know of an output before it is computed.
#[cfg(feature = "fusion")]
mod meta {
    use burn::backend::fusion::custom::TensorSpec;

    use super::with_rows;

    pub fn cut(tensor: &TensorSpec, _first: &usize, count: &usize) -> TensorSpec {
        TensorSpec::new(with_rows(&tensor.shape, *count), tensor.dtype)
    }
}
