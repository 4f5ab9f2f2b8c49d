//! The Blackwell tier: native CUDA kernels, by the schedules of the plan, where they pass their check.

use burn::backend::DispatchDevice;
use burn::tensor::Device;
use burn_natten_kernels::native::sm100;
use burn_natten_kernels::{KernelError, Operands, Outputs, Packed, Saved, Strided};
use cubecl::server::Handle;

use super::Launch;
use crate::Tier;
use crate::backend::Plan;

/// Launches the forward pass.
pub(super) fn forward(
    launch: &Launch<'_>,
    operands: &Operands<Strided>,
    outputs: &Outputs<Handle>,
) -> Result<(), KernelError> {
    has_one_shape(launch.packed)?;
    let schedule = launch.plan.blackwell().map_err(KernelError::Problem)?;
    sm100::check::check(launch.client, schedule.element)?;
    sm100::forward_with(launch.client, &schedule, &launch.plan.problem, operands, outputs)
}

/// Launches the backward pass.
pub(super) fn backward(
    launch: &Launch<'_>,
    saved: &Saved<Strided>,
    gradients: &Operands<Option<Handle>>,
) -> Result<(), KernelError> {
    has_one_shape(launch.packed)?;
    let schedules = launch.plan.blackwell_backward().map_err(KernelError::Problem)?;
    sm100::check::check(launch.client, launch.plan.element())?;
    sm100::backward_with(launch.client, &schedules, &launch.plan.problem, saved, gradients)
}

fn has_one_shape(packed: Option<&Packed>) -> Result<(), KernelError> {
    match packed {
        None => Ok(()),
        Some(_) => {
            let kernels = Tier::Blackwell.kernels();
            Err(KernelError::Problem(format!(
                "there are no {kernels} for sequences of several shapes"
            )))
        }
    }
}

/// Checks the kernels of a plan, and compiles them: those of the forward pass and, for training, of the backward pass.
pub(crate) fn warm_up(plan: &Plan, device: &Device, is_training: bool) -> Result<(), KernelError> {
    match device.clone().without_autodiff().as_dispatch() {
        DispatchDevice::Cube(device) => {
            let client = device.client();
            has_one_shape(plan.packed.as_deref())?;
            sm100::check::check(&client, plan.element())?;
            sm100::warm_up(&client, &plan.blackwell().map_err(KernelError::Problem)?)?;
            if is_training {
                let schedules = plan.blackwell_backward().map_err(KernelError::Problem)?;
                sm100::warm_up_backward(&client, &schedules, &plan.problem)?;
            }
            Ok(())
        }
        #[allow(unreachable_patterns)]
        _ => Err(KernelError::Device("CUDA")),
    }
}
