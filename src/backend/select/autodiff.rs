//! The selection among gradients: it has none.

use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::{FloatTensor, IntTensor};

use super::{OptionalLists, SelectOps, SelectPlan, Selected, TopPlan};

fn lifted<B: SelectOps, C: CheckpointStrategy>(of: Selected<B>) -> Selected<Autodiff<B, C>> {
    let super_blocks = match of.super_blocks {
        OptionalLists::None => OptionalLists::None,
        OptionalLists::Some { lists } => OptionalLists::Some { lists },
    };
    Selected { blocks: of.blocks, super_blocks }
}

impl<B: SelectOps, C: CheckpointStrategy> SelectOps for Autodiff<B, C> {
    fn select_blocks(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        plan: SelectPlan,
    ) -> Selected<Self> {
        let (query, key) = (query.primitive().clone(), key.primitive().clone());
        lifted::<B, C>(B::select_blocks(query, key, plan))
    }

    fn select_blocks_by(
        query: FloatTensor<Self>,
        key: FloatTensor<Self>,
        logsumexp: FloatTensor<Self>,
        plan: SelectPlan,
    ) -> Selected<Self> {
        let [query, key, logsumexp] =
            [query, key, logsumexp].map(|tensor| tensor.primitive().clone());
        lifted::<B, C>(B::select_blocks_by(query, key, logsumexp, plan))
    }

    fn top_blocks(scores: FloatTensor<Self>, plan: TopPlan) -> IntTensor<Self> {
        B::top_blocks(scores.primitive().clone(), plan)
    }
}
