//! The Portable tier.

use burn::backend::cubecl::dtype_to_storage_type;
use burn_natten_kernels::{KernelError, Operands, Outputs, Saved, Strided, portable};
use cubecl::server::Handle;

use super::Launch;

/// Launches the forward pass.
pub(super) fn forward(
    launch: &Launch<'_>,
    operands: &Operands<Strided>,
    outputs: &Outputs<Handle>,
) -> Result<(), KernelError> {
    let Launch { client, plan, packed } = *launch;
    let (allow_untried, _) = plan.context.allow_experimental();
    let dtype = dtype_to_storage_type(plan.dtype);
    match packed {
        Some(packed) => {
            portable::forward_packed(client, packed, dtype, allow_untried, operands, outputs)
        }
        None => portable::forward(client, &plan.problem, dtype, allow_untried, operands, outputs),
    }
}

/// Launches the backward pass.
pub(super) fn backward(
    launch: &Launch<'_>,
    saved: &Saved<Strided>,
    gradients: &Operands<Option<Handle>>,
) -> Result<(), KernelError> {
    let Launch { client, plan, packed } = *launch;
    let (_, allow_untried) = plan.context.allow_experimental();
    let dtype = dtype_to_storage_type(plan.dtype);
    match packed {
        Some(packed) => {
            portable::backward_packed(client, packed, dtype, allow_untried, saved, gradients)
        }
        None => portable::backward(client, &plan.problem, dtype, allow_untried, saved, gradients),
    }
}
