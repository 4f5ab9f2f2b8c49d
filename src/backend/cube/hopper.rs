//! The Hopper tier: native CUDA kernels, by the schedules of the plan.

use burn::backend::DispatchDevice;
use burn::tensor::Device;
use burn_natten_kernels::native::sm90;
use burn_natten_kernels::{KernelError, Operands, Outputs, Saved, Strided};
use cubecl::server::Handle;

use super::Launch;
use crate::backend::Plan;

/// Launches the forward pass.
pub(super) fn forward(
    launch: &Launch<'_>,
    operands: &Operands<Strided>,
    outputs: &Outputs<Handle>,
) -> Result<(), KernelError> {
    let Launch { client, plan, packed } = *launch;
    if let Some(packed) = packed {
        let (element, tiling) = (plan.element(), plan.context.tiling());
        return sm90::forward_packed(client, packed, element, tiling, operands, outputs);
    }
    let schedule = plan.hopper().map_err(KernelError::Problem)?;
    sm90::forward_with(client, &schedule, &plan.problem, operands, outputs)
}

/// Launches the backward pass.
pub(super) fn backward(
    launch: &Launch<'_>,
    saved: &Saved<Strided>,
    gradients: &Operands<Option<Handle>>,
) -> Result<(), KernelError> {
    let Launch { client, plan, packed } = *launch;
    if let Some(packed) = packed {
        let (element, tiling) = (plan.element(), plan.context.tiling());
        return sm90::backward_packed(client, packed, element, tiling, saved, gradients);
    }
    let schedules = plan.hopper_backward().map_err(KernelError::Problem)?;
    sm90::backward_with(client, &schedules, &plan.problem, saved, gradients)
}

/// Compiles the kernels of a plan: those of the forward pass and, for training, of the backward pass.
pub(crate) fn warm_up(plan: &Plan, device: &Device, is_training: bool) -> Result<(), KernelError> {
    match device.clone().without_autodiff().as_dispatch() {
        DispatchDevice::Cube(device) => {
            let client = device.client();
            if let Some(packed) = &plan.packed {
                let (element, tiling) = (plan.element(), plan.context.tiling());
                return sm90::warm_up_packed(&client, packed, element, tiling, is_training);
            }
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
