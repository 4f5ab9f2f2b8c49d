//! The selection as an extension of Burn's backends.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, backend_extension};
use burn::tensor::IntDType;

use super::{SelectPlan, Selected, reference};

/// How many of the best scores are listed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TopPlan {
    pub(crate) entries: usize,
    /// The type of lists.
    pub(crate) ints: IntDType,
}

/// The operators. They have no gradient.
#[backend_extension(
    Cube: cfg(feature = "cube"),
    Flex: cfg(feature = "flex"),
    Autodiff: cfg(feature = "autodiff"),
    Fusion: cfg(feature = "fusion"),
)]
pub trait SelectOps: Backend {
    /// Lists for queries `[batch, rows, heads, head_dim]`, by compressed keys `[batch, blocks, heads_kv, head_dim]`.
    #[fusion(meta = meta::select)]
    fn select_blocks(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        plan: SelectPlan,
    ) -> Selected<Self> {
        reference::select::<Self>(query, key, &plan)
    }

    /// The same, with the logsumexp `[batch, rows, heads]` of attention to the compressed keys, which saves a pass over them where a
    /// kernel takes it.
    #[fusion(meta = meta::select_by)]
    fn select_blocks_by(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        _logsumexp: FloatTensor<Self>,
        plan: SelectPlan,
    ) -> Selected<Self> {
        Self::select_blocks(query, key, plan)
    }

    /// The numbers of the highest scores `[batch, tiles, heads, count]`, the highest first, and `-1` in place of what is `-inf` or no number.
    #[fusion(meta = meta::top)]
    fn top_blocks(scores: FloatTensor<Self>, plan: TopPlan) -> IntTensor<Self> {
        reference::top_blocks::<Self>(scores, plan)
    }
}

/// What fusion must know of an output before it is computed.
#[cfg(feature = "fusion")]
mod meta {
    use burn::backend::fusion::custom::TensorSpec;
    use burn::tensor::{DType, Shape};

    use super::{SelectPlan, TopPlan};
    use crate::backend::select::operands::{OptionalListsMetadata, SelectedMetadata};

    pub fn top(scores: &TensorSpec, plan: &TopPlan) -> TensorSpec {
        let [batch, tiles, heads, _] = scores.shape.dims::<4>();
        let shape = Shape::new([batch, tiles, heads, plan.entries]);
        TensorSpec::new(shape, DType::from(plan.ints))
    }

    pub fn select_by(
        query: &TensorSpec,
        key: &TensorSpec,
        _logsumexp: &TensorSpec,
        plan: &SelectPlan,
    ) -> SelectedMetadata {
        select(query, key, plan)
    }

    pub fn select(_query: &TensorSpec, _key: &TensorSpec, plan: &SelectPlan) -> SelectedMetadata {
        let spec = |entries| {
            let shape = [plan.problem.batch, plan.tiles(), plan.list_heads(), entries];
            TensorSpec::new(Shape::new(shape), DType::from(plan.ints))
        };
        SelectedMetadata {
            blocks: spec(plan.sizes.num_selected),
            super_blocks: match plan.sizes.cmp_top {
                Some(entries) => OptionalListsMetadata::Some { lists: spec(entries) },
                None => OptionalListsMetadata::None,
            },
        }
    }
}
