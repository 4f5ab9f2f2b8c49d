//! The selection among gradients: it has none.

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::{FloatTensor, IntTensor};

use super::{OptionalLists, SelectOps, SelectPlan, Selected, TopPlan};

impl<B: SelectOps, C: CheckpointStrategy> SelectOps for Autodiff<B, C> {
    fn select_blocks(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        plan: SelectPlan,
    ) -> Selected<Self> {
        let (query, key) = (query.primitive().clone(), key.primitive().clone());
        let Selected { blocks, super_blocks } = B::select_blocks(query, key, plan);
        let super_blocks = match super_blocks {
            OptionalLists::None => OptionalLists::None,
            OptionalLists::Some { lists } => OptionalLists::Some { lists },
        };
        Selected { blocks, super_blocks }
    }

    fn top_blocks(scores: FloatTensor<Self>, plan: TopPlan) -> IntTensor<Self> {
        B::top_blocks(scores.primitive().clone(), plan)
    }
}
