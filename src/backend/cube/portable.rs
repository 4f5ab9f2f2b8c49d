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
    let (allow_untried, _) = launch.plan.context.allow_experimental();
    let dtype = dtype_to_storage_type(launch.plan.dtype);
    portable::forward(launch.client, &launch.plan.problem, dtype, allow_untried, operands, outputs)
}

/// Launches the backward pass.
pub(super) fn backward(
    launch: &Launch<'_>,
    saved: &Saved<Strided>,
    gradients: &Operands<Option<Handle>>,
) -> Result<(), KernelError> {
    let (_, allow_untried) = launch.plan.context.allow_experimental();
    let dtype = dtype_to_storage_type(launch.plan.dtype);
    portable::backward(launch.client, &launch.plan.problem, dtype, allow_untried, saved, gradients)
}
