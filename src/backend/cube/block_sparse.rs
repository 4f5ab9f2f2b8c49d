//! Block-sparse attention, down the ladder of its plan: native Hopper kernels, Portable ones, or else tensor operations.

use burn::backend::DType;
use burn::backend::cubecl::dtype_to_storage_type;
use burn::backend::ops::IntTensorOps;
use burn::tensor::IntDType;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::{CubeBackend, tensor::CubeTensor};
#[cfg(feature = "cuda")]
use burn_natten_kernels::native::sm90;
use burn_natten_kernels::portable::blocks;
use burn_natten_kernels::{KernelError, Operands, Outputs, Saved, Strided};
use cubecl::client::Client;
use cubecl::ir::ElemType;
use cubecl::server::Handle;

use super::memory::{Lay, empty_gradients, empty_outputs, read_by};
use super::{as_they_lie, descend};
use crate::Tier;
use crate::backend::block_sparse::{
    BlockSparseBackwardOps, BlockSparseOps, BlockSparsePlan, reference,
};
use crate::backend::extension::saved;
use crate::backend::{AttentionGradients, AttentionInputs, AttentionResults};

/// Whether kernels are to be launched at all.
fn has_kernels(plan: &BlockSparsePlan) -> bool {
    plan.ladder.has_kernels() && !plan.is_empty()
}

/// What a tier is told of a launch besides its tensors.
struct Launch<'a> {
    client: &'a Client,
    plan: &'a BlockSparsePlan,
    dtype: ElemType,
    lists: &'a Handle,
}

impl Launch<'_> {
    fn forward(
        &self,
        tier: Tier,
        operands: &Operands<Strided>,
        outputs: &Outputs<Handle>,
    ) -> Result<(), KernelError> {
        let Self { client, plan, dtype, lists } = *self;
        match tier {
            #[cfg(feature = "cuda")]
            Tier::Hopper => {
                let element = plan.element();
                sm90::forward_blocks(client, &plan.sparse, element, operands, lists, outputs)
            }
            _ => blocks::forward(client, &plan.sparse, dtype, operands, lists, outputs),
        }
    }

    fn backward(
        &self,
        tier: Tier,
        saved: &Saved<Strided>,
        gradients: &Operands<Option<Handle>>,
    ) -> Result<(), KernelError> {
        let Self { client, plan, dtype, lists } = *self;
        match tier {
            #[cfg(feature = "cuda")]
            Tier::Hopper => {
                let element = plan.element();
                sm90::backward_blocks(client, &plan.sparse, element, saved, lists, gradients)
            }
            _ => blocks::backward(client, &plan.sparse, dtype, saved, lists, gradients),
        }
    }
}

/// Lists as kernels read them: contiguous 32-bit integers. What these do not hold is no block's number, and stays none.
fn as_read(lists: &CubeTensor) -> Handle {
    let (lists, most) = (lists.clone(), i64::from(i32::MAX));
    let lists = match lists.dtype {
        DType::I32 => return into_contiguous(lists).handle,
        DType::I64 => CubeBackend::int_clamp(lists, (-1i64).into(), most.into()),
        DType::U32 | DType::U64 => CubeBackend::int_clamp_max(lists, most.into()),
        _ => lists,
    };
    into_contiguous(CubeBackend::int_cast(lists, IntDType::I32)).handle
}

impl BlockSparseOps for CubeBackend {
    fn block_sparse_forward(
        inputs: AttentionInputs<Self>,
        lists: CubeTensor,
        plan: BlockSparsePlan,
    ) -> AttentionResults<Self> {
        let operands = inputs.operands();
        if has_kernels(&plan) {
            let (query, sparse) = (&operands.query, &plan.sparse);
            let dtype = dtype_to_storage_type(query.dtype);
            let outputs = empty_outputs(query, &sparse.problem);
            let handles = outputs.as_ref().map(|tensor| tensor.handle.clone());
            let read = as_read(&lists);
            let launch = Launch { client: &query.client, plan: &plan, dtype, lists: &read };
            let on = |tier, lay: Lay| {
                launch.forward(tier, &lay.operands(&sparse.problem, &operands), &handles)
            };
            if descend(plan.strategy, plan.ladder, |tier| as_they_lie(|lay| on(tier, lay))) {
                return AttentionResults::new(outputs);
            }
        }
        AttentionResults::new(reference::forward::<Self>(operands, lists, &plan))
    }
}

impl BlockSparseBackwardOps for CubeBackend {
    fn block_sparse_backward(
        inputs: AttentionInputs<Self>,
        lists: CubeTensor,
        results: AttentionResults<Self>,
        gradients: AttentionResults<Self>,
        has_out: bool,
        wanted: Operands<bool>,
        plan: BlockSparsePlan,
    ) -> AttentionGradients<Self> {
        let saved = saved(inputs, results, gradients, has_out);
        if has_kernels(&plan) {
            let (query, sparse) = (&saved.operands.query, &plan.sparse);
            let dtype = dtype_to_storage_type(query.dtype);
            let gradients = empty_gradients(&saved.operands, wanted);
            let handles = gradients
                .as_ref()
                .map(|_, gradient| gradient.as_ref().map(|tensor| tensor.handle.clone()));
            let read = as_read(&lists);
            let launch = Launch { client: &query.client, plan: &plan, dtype, lists: &read };
            let on = |tier| {
                let saved = read_by(tier, &saved);
                as_they_lie(|lay| {
                    launch.backward(tier, &lay.saved(&sparse.problem, &saved), &handles)
                })
            };
            if descend(plan.strategy, plan.ladder, on) {
                return AttentionGradients::new(gradients);
            }
        }
        AttentionGradients::new(reference::backward::<Self>(saved, lists, wanted, &plan))
    }
}
