//! The Hopper tier: native CUDA kernels.

use burn::backend::{DType, DispatchDevice};
use burn::tensor::Device;
use burn_natten_kernels::native::sm90::{self, Element};
use burn_natten_kernels::{KernelError, Operands, Outputs, Problem, Saved, Strided};
use cubecl::server::Handle;

use super::Launch;
use crate::Context;

/// Launches the forward pass.
pub(super) fn forward(
    launch: &Launch<'_>,
    operands: &Operands<Strided>,
    outputs: &Outputs<Handle>,
) -> Result<(), KernelError> {
    let (element, tiling) = (element(launch.dtype), launch.context.tiling());
    sm90::forward(launch.client, launch.problem, element, tiling, operands, outputs)
}

/// Launches the backward pass.
pub(super) fn backward(
    launch: &Launch<'_>,
    saved: &Saved<Strided>,
    gradients: &Operands<Option<Handle>>,
) -> Result<(), KernelError> {
    let (element, tiling) = (element(launch.dtype), launch.context.tiling());
    sm90::backward(launch.client, launch.problem, element, tiling, saved, gradients)
}

/// The kernels know two types, and [`select`](crate::select) lets no other pass.
fn element(dtype: DType) -> Element {
    match dtype {
        DType::F16 => Element::F16,
        _ => Element::Bf16,
    }
}

/// Compiles the kernels for a problem: those of the forward pass and, for training, of the backward
/// pass.
pub(crate) fn warm_up(
    problem: &Problem,
    dtype: DType,
    device: &Device,
    context: Context,
    is_training: bool,
) -> Result<(), KernelError> {
    match device.clone().without_autodiff().as_dispatch() {
        DispatchDevice::Cube(device) => {
            let (client, element, tiling) = (device.client(), element(dtype), context.tiling());
            sm90::warm_up(&client, problem, element, tiling)?;
            match is_training {
                true => sm90::warm_up_backward(&client, problem, element, tiling),
                false => Ok(()),
            }
        }
        #[allow(unreachable_patterns)]
        _ => Err(KernelError::Device("CUDA")),
    }
}
