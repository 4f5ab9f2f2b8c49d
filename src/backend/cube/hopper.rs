//! The Hopper tier: native CUDA kernels, by the schedules of the plan.

use burn::backend::DispatchDevice;
use burn::tensor::Device;
use burn_natten_kernels::native::sm90;
use burn_natten_kernels::{KernelError, Operands, Outputs, Packed, Saved, Strided};
use cubecl::server::Handle;

use super::Launch;
use crate::backend::Plan;

/// Launches the forward pass.
pub(super) fn forward(
    launch: &Launch<'_>,
    operands: &Operands<Strided>,
    outputs: &Outputs<Handle>,
) -> Result<(), KernelError> {
    let schedule = launch.plan.hopper().map_err(KernelError::Problem)?;
    sm90::forward_with(launch.client, &schedule, &launch.plan.problem, operands, outputs)
}

/// Launches the backward pass.
pub(super) fn backward(
    launch: &Launch<'_>,
    saved: &Saved<Strided>,
    gradients: &Operands<Option<Handle>>,
) -> Result<(), KernelError> {
    let schedules = launch.plan.hopper_backward().map_err(KernelError::Problem)?;
    sm90::backward_with(launch.client, &schedules, &launch.plan.problem, saved, gradients)
}

/// Launches the forward pass of all sequences of a packed batch.
pub(super) fn forward_packed(
    launch: &Launch<'_>,
    packed: &Packed,
    operands: &Operands<Strided>,
    outputs: &Outputs<Handle>,
) -> Result<(), KernelError> {
    let Plan { context, .. } = launch.plan;
    let (element, tiling) = (launch.plan.element(), context.tiling());
    sm90::forward_packed(launch.client, packed, element, tiling, operands, outputs)
}

/// Launches the backward pass of all sequences of a packed batch.
pub(super) fn backward_packed(
    launch: &Launch<'_>,
    packed: &Packed,
    saved: &Saved<Strided>,
    gradients: &Operands<Option<Handle>>,
) -> Result<(), KernelError> {
    let Plan { context, .. } = launch.plan;
    let (element, tiling) = (launch.plan.element(), context.tiling());
    sm90::backward_packed(launch.client, packed, element, tiling, saved, gradients)
}

/// Compiles the kernels of a plan: those of the forward pass and, for training, of the backward pass.
pub(crate) fn warm_up(plan: &Plan, device: &Device, is_training: bool) -> Result<(), KernelError> {
    match device.clone().without_autodiff().as_dispatch() {
        DispatchDevice::Cube(device) => {
            let client = device.client();
            sm90::warm_up(&client, &plan.hopper().map_err(KernelError::Problem)?)?;
            if is_training {
                let schedules = plan.hopper_backward().map_err(KernelError::Problem)?;
                sm90::warm_up_backward(&client, &schedules, &plan.problem)?;
            }
            Ok(())
        }
        #[allow(unreachable_patterns)]
        _ => Err(KernelError::Device("CUDA")),
    }
}
