//! The Portable tier.

use burn::backend::cubecl::dtype_to_storage_type;
use burn_natten_kernels::{KernelError, Operands, Outputs, Packed, Saved, Strided, portable};
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

/// Launches the forward pass of all sequences of a packed batch.
pub(super) fn forward_packed(
    launch: &Launch<'_>,
    packed: &Packed,
    operands: &Operands<Strided>,
    outputs: &Outputs<Handle>,
) -> Result<(), KernelError> {
    let (allow_untried, _) = launch.plan.context.allow_experimental();
    let dtype = dtype_to_storage_type(launch.plan.dtype);
    portable::forward_packed(launch.client, packed, dtype, allow_untried, operands, outputs)
}

/// Launches the backward pass of all sequences of a packed batch.
pub(super) fn backward_packed(
    launch: &Launch<'_>,
    packed: &Packed,
    saved: &Saved<Strided>,
    gradients: &Operands<Option<Handle>>,
) -> Result<(), KernelError> {
    let (_, allow_untried) = launch.plan.context.allow_experimental();
    let dtype = dtype_to_storage_type(launch.plan.dtype);
    portable::backward_packed(launch.client, packed, dtype, allow_untried, saved, gradients)
}
