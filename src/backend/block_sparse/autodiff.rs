//! The gradients of block-sparse attention. Lists have none: they are part of the operator.

use burn::backend::Backend;
use burn::backend::autodiff::Autodiff;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::IntTensor;
use burn_natten_kernels::Operands;

use super::{
    AttentionGradients, AttentionResults, BlockSparseBackwardOps, BlockSparseOps, BlockSparsePlan,
};
use crate::backend::autodiff::{
    OPERANDS, Pair, PairBackward, Places, Recorded, gradient_places, operands_of, places, record,
};
use crate::backend::{AttentionInputs, WeighedResults};

#[derive(Debug)]
struct Step<B: Backend> {
    lists: IntTensor<B>,
    plan: BlockSparsePlan,
}

impl<B: BlockSparseBackwardOps> PairBackward<B, OPERANDS> for Step<B> {
    fn gradients(
        &self,
        inputs: Places<B, OPERANDS>,
        (outputs, has_out): (Pair<B>, bool),
        gradients: Pair<B>,
        wanted: [bool; OPERANDS],
    ) -> Places<B, OPERANDS> {
        let operands = operands_of::<B>(inputs);
        let wanted: Operands<bool> = operands.as_ref().map(|operand, _| wanted[operand as usize]);
        let gradients: AttentionGradients<B> = B::block_sparse_backward(
            AttentionInputs::new(operands),
            self.lists.clone(),
            AttentionResults::new(outputs),
            AttentionResults::new(gradients),
            has_out,
            wanted,
            self.plan,
        );
        gradient_places(gradients)
    }
}

fn attend<B, C>(
    inputs: AttentionInputs<Autodiff<B, C>>,
    lists: IntTensor<B>,
    plan: BlockSparsePlan,
) -> Recorded<B, C>
where
    B: BlockSparseOps + BlockSparseBackwardOps,
    C: CheckpointStrategy,
{
    let operands = inputs.operands();
    let inner = operands.as_ref().map(|_, tensor| tensor.primitive().clone());
    let results = B::block_sparse_forward(AttentionInputs::new(inner), lists.clone(), plan);
    let (step, inputs) = (Step { lists, plan }, places(operands.as_ref()));
    record::<B, C, _, OPERANDS>(step, &operands.query, inputs, results.outputs())
}

impl<B, C> BlockSparseOps for Autodiff<B, C>
where
    B: BlockSparseOps + BlockSparseBackwardOps,
    C: CheckpointStrategy,
{
    fn block_sparse_forward(
        inputs: AttentionInputs<Self>,
        lists: IntTensor<Self>,
        plan: BlockSparsePlan,
    ) -> AttentionResults<Self> {
        AttentionResults::new(attend(inputs, lists, plan).pair())
    }

    fn block_sparse_forward_weighed(
        inputs: AttentionInputs<Self>,
        lists: IntTensor<Self>,
        plan: BlockSparsePlan,
    ) -> WeighedResults<Self> {
        attend(inputs, lists, plan).weighed()
    }
}
