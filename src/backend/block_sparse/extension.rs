//! Block-sparse attention as an extension of Burn's backends.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, backend_extension};
use burn_natten_kernels::{Operands, Saved};

use super::{AttentionGradients, AttentionResults, BlockSparsePlan, reference};
use crate::backend::AttentionInputs;
use crate::backend::extension::saved;

/// The operator.
#[backend_extension(
    Cube: cfg(feature = "cube"),
    Flex: cfg(feature = "flex"),
    Autodiff: cfg(feature = "autodiff"),
    Fusion: cfg(feature = "fusion"),
)]
pub trait BlockSparseOps: Backend {
    /// Attention to the blocks in lists `[batch, query_blocks, list_heads, entries]`.
    #[fusion(meta = meta::forward)]
    fn block_sparse_forward(
        #[extension_type] inputs: AttentionInputs<Self>,
        lists: IntTensor<Self>,
        plan: BlockSparsePlan,
    ) -> AttentionResults<Self> {
        AttentionResults::new(reference::forward::<Self>(inputs.operands(), lists, &plan))
    }
}

/// Its gradients. Asked of the inner backend only: first derivatives.
#[backend_extension(
    Cube: cfg(feature = "cube"),
    Flex: cfg(feature = "flex"),
    Fusion: cfg(feature = "fusion"),
)]
pub trait BlockSparseBackwardOps: Backend {
    /// Gradients of the inputs that are `wanted`, from the forward pass' inputs and results and the gradients of the latter.
    #[fusion(meta = meta::backward)]
    fn block_sparse_backward(
        #[extension_type] inputs: AttentionInputs<Self>,
        lists: IntTensor<Self>,
        #[extension_type] results: AttentionResults<Self>,
        #[extension_type] gradients: AttentionResults<Self>,
        wanted: Operands<bool>,
        plan: BlockSparsePlan,
    ) -> AttentionGradients<Self> {
        let saved: Saved<FloatTensor<Self>> = saved(inputs, results, gradients);
        AttentionGradients::new(reference::backward::<Self>(saved, lists, wanted, &plan))
    }
}

/// What fusion must know of an output before it is computed.
#[cfg(feature = "fusion")]
mod meta {
    use burn::backend::fusion::custom::TensorSpec;
    use burn_natten_kernels::Operands;

    use super::BlockSparsePlan;
    use crate::backend::extension::meta;
    use crate::backend::operands::{
        AttentionGradientsMetadata, AttentionInputsMetadata, AttentionResultsMetadata,
    };

    pub fn forward(
        inputs: &AttentionInputsMetadata,
        _lists: &TensorSpec,
        _plan: &BlockSparsePlan,
    ) -> AttentionResultsMetadata {
        meta::results(inputs)
    }

    pub fn backward(
        inputs: &AttentionInputsMetadata,
        _lists: &TensorSpec,
        _results: &AttentionResultsMetadata,
        _gradients: &AttentionResultsMetadata,
        wanted: &Operands<bool>,
        _plan: &BlockSparsePlan,
    ) -> AttentionGradientsMetadata {
        meta::gradients(inputs, wanted)
    }
}
