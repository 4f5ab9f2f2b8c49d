//! The Hopper tier: native CUDA kernels on Burn's CubeCL backend.

use burn::backend::{DType, DispatchDevice, TensorMetadata};
use burn::tensor::Device;
use burn_cubecl::{CubeBackend, kernel::into_contiguous, tensor::CubeTensor};
use burn_natten_kernels::Problem;
use burn_natten_kernels::native::sm90::{
    self, BackwardInputs, BackwardOutputs, Element, ForwardInputs, ForwardOutputs, HopperError,
    Strided,
};

use super::cube::{Gradients, empty_gradients, empty_outputs, strided_memory};
use super::reference::Saved;
use super::{AdditionalKv, Plan};

/// The forward pass: `(out, logsumexp)`.
pub(super) fn forward(
    query: &CubeTensor,
    key: &CubeTensor,
    value: &CubeTensor,
    additional: &AdditionalKv<CubeBackend>,
    plan: &Plan,
) -> Result<(CubeTensor, CubeTensor), HopperError> {
    let (out, lse) = empty_outputs(query, plan);
    let outputs = ForwardOutputs { out: out.handle.clone(), lse: lse.handle.clone() };
    reading(|view| {
        let inputs = ForwardInputs {
            query: view(query),
            key: view(key),
            value: view(value),
            additional: additional.pair(view),
        };
        let (element, tiling) = (element(query.dtype()), plan.context.tiling());
        sm90::forward(&query.client, &plan.problem, element, tiling, &inputs, &outputs)
    })?;
    Ok((out, lse))
}

/// The backward pass: the gradients of query, key, value and the additional tokens.
pub(super) fn backward(
    saved: &Saved<CubeBackend>,
    grad_out: &CubeTensor,
    grad_lse: &CubeTensor,
    plan: &Plan,
) -> Result<Gradients, HopperError> {
    let Saved { query, key, value, additional, out, lse } = saved;
    let gradients = empty_gradients(query, key, value, additional);
    let (dq, dk, dv, more) = &gradients;
    let outputs = BackwardOutputs {
        dq: dq.handle.clone(),
        dk: dk.handle.clone(),
        dv: dv.handle.clone(),
        additional: more.pair(|gradient| gradient.handle.clone()),
    };
    let [lse, dlse] = [lse, grad_lse].map(|tensor| into_contiguous(tensor.clone()).handle);
    reading(|view| {
        let inputs = BackwardInputs {
            query: view(query),
            key: view(key),
            value: view(value),
            additional: additional.pair(view),
            out: view(out),
            dout: view(grad_out),
            lse: lse.clone(),
            dlse: dlse.clone(),
        };
        let (element, tiling) = (element(query.dtype()), plan.context.tiling());
        sm90::backward(&query.client, &plan.problem, element, tiling, &inputs, &outputs)
    })?;
    Ok(gradients)
}

/// Launches on tensors as they lie, so that a slice of a fused query-key-value projection is not
/// copied, or else on contiguous copies, which TMA can read.
fn reading(
    launch: impl Fn(&dyn Fn(&CubeTensor) -> Strided) -> Result<(), HopperError>,
) -> Result<(), HopperError> {
    match launch(&strided) {
        Err(HopperError::Layout(_)) => launch(&|tensor| strided(&into_contiguous(tensor.clone()))),
        result => result,
    }
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
    is_training: bool,
) -> Result<(), HopperError> {
    match device.clone().without_autodiff().as_dispatch() {
        DispatchDevice::Cube(device) => {
            let (client, element) = (device.client(), element(dtype));
            sm90::warm_up(&client, problem, element)?;
            match is_training {
                true => sm90::warm_up_backward(&client, problem, element),
                false => Ok(()),
            }
        }
        #[allow(unreachable_patterns)]
        _ => Err(HopperError::Device),
    }
}

fn strided(tensor: &CubeTensor) -> Strided {
    let (handle, strides) = strided_memory(tensor);
    Strided { handle, strides }
}
