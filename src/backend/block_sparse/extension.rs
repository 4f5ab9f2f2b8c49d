//! Block-sparse attention as an extension of Burn's backends.

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, backend_extension};
use burn_natten_kernels::{Operands, Saved};

use super::{AttentionGradients, AttentionResults, BlockSparsePlan, reference};
use crate::backend::extension::saved;
use crate::backend::{AttentionInputs, WeighedResults};

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

    /// The same where the results are weighed and summed up with others, by
    /// [`gate_weighed`](crate::backend::gate::GateOps::gate_weighed).
    #[fusion(meta = meta::forward_weighed)]
    fn block_sparse_forward_weighed(
        #[extension_type] inputs: AttentionInputs<Self>,
        lists: IntTensor<Self>,
        plan: BlockSparsePlan,
    ) -> WeighedResults<Self> {
        WeighedResults::new(Self::block_sparse_forward(inputs, lists, plan))
    }
}

/// Its gradients. Asked of the inner backend only: first derivatives.
#[backend_extension(
    Cube: cfg(feature = "cube"),
    Flex: cfg(feature = "flex"),
    Fusion: cfg(feature = "fusion"),
)]
pub trait BlockSparseBackwardOps: Backend {
    /// Gradients of the inputs that are `wanted`, from the forward pass' inputs and results and the gradients of the latter, where `out`
    /// [counts](Saved::has_out) or does not.
    #[fusion(meta = meta::backward)]
    fn block_sparse_backward(
        #[extension_type] inputs: AttentionInputs<Self>,
        lists: IntTensor<Self>,
        #[extension_type] results: AttentionResults<Self>,
        #[extension_type] gradients: AttentionResults<Self>,
        has_out: bool,
        wanted: Operands<bool>,
        plan: BlockSparsePlan,
    ) -> AttentionGradients<Self> {
        let saved: Saved<FloatTensor<Self>> = saved(inputs, results, gradients, has_out);
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
        WeighedResultsMetadata,
    };

    pub fn forward(
        inputs: &AttentionInputsMetadata,
        _lists: &TensorSpec,
        _plan: &BlockSparsePlan,
    ) -> AttentionResultsMetadata {
        meta::results(inputs)
    }

    pub fn forward_weighed(
        inputs: &AttentionInputsMetadata,
        _lists: &TensorSpec,
        _plan: &BlockSparsePlan,
    ) -> WeighedResultsMetadata {
        meta::weighed(meta::results(inputs))
    }

    pub fn backward(
        inputs: &AttentionInputsMetadata,
        _lists: &TensorSpec,
        _results: &AttentionResultsMetadata,
        _gradients: &AttentionResultsMetadata,
        _has_out: &bool,
        wanted: &Operands<bool>,
        _plan: &BlockSparsePlan,
    ) -> AttentionGradientsMetadata {
        meta::gradients(inputs, wanted)
    }
}
