//! Packed batches in one launch a pass, where the first tier of the plan has kernels for that.

use burn_cubecl::tensor::CubeTensor;
use burn_natten_kernels::{KernelError, Operands, Outputs, Saved};

use super::memory::{empty_gradients, empty_outputs};
use super::{Launch, as_they_lie, portable, tensor_core};
use crate::Tier;
use crate::backend::{Plan, log_once};

/// The results of a forward pass; `None` where there is no such launch.
pub(super) fn forward(operands: &Operands<CubeTensor>, plan: &Plan) -> Option<Outputs<CubeTensor>> {
    let packed = plan.packed.as_deref()?;
    let launch = Launch::new(plan, &operands.query);
    let outputs = empty_outputs(&operands.query, packed.line());
    let handles = outputs.as_ref().map(|tensor| tensor.handle.clone());
    let result = as_they_lie(|lay| {
        let operands = lay.operands(packed.line(), operands);
        match plan.forward.first() {
            #[cfg(feature = "cuda")]
            Tier::Hopper => super::hopper::forward_packed(&launch, packed, &operands, &handles),
            Tier::TensorCore => tensor_core::forward_packed(&launch, packed, &operands, &handles),
            Tier::Portable => portable::forward_packed(&launch, packed, &operands, &handles),
            tier => Err(no_kernels(tier)),
        }
    });
    is_launched(result).then_some(outputs)
}

/// The gradients of a backward pass that are wanted; `None` where there is no such launch.
pub(super) fn backward(
    saved: &Saved<CubeTensor>,
    wanted: Operands<bool>,
    plan: &Plan,
) -> Option<Operands<Option<CubeTensor>>> {
    let packed = plan.packed.as_deref()?;
    let launch = Launch::new(plan, &saved.operands.query);
    let gradients = empty_gradients(&saved.operands, wanted);
    let handles =
        gradients.as_ref().map(|_, gradient| gradient.as_ref().map(|tensor| tensor.handle.clone()));
    let result = as_they_lie(|lay| {
        let saved = lay.saved(packed.line(), saved);
        match plan.backward.first() {
            #[cfg(feature = "cuda")]
            Tier::Hopper => super::hopper::backward_packed(&launch, packed, &saved, &handles),
            Tier::TensorCore => tensor_core::backward_packed(&launch, packed, &saved, &handles),
            Tier::Portable => portable::backward_packed(&launch, packed, &saved, &handles),
            tier => Err(no_kernels(tier)),
        }
    });
    is_launched(result).then_some(gradients)
}

fn no_kernels(tier: Tier) -> KernelError {
    KernelError::Problem(format!("there are no {} for sequences of several shapes", tier.kernels()))
}

/// Whether all sequences were launched at once, which is logged where they were not.
fn is_launched(result: Result<(), KernelError>) -> bool {
    let Err(error) = result else { return true };
    log_once(format!("one launch for each shape of a packed batch, because {error}"));
    false
}
