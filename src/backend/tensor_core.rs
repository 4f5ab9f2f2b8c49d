//! The TensorCore tier: CubeCL kernels on matrix units, on Burn's CubeCL backend.

use burn::backend::{DType, TensorMetadata, cubecl::dtype_to_storage_type};
use burn_cubecl::{CubeBackend, kernel::into_contiguous, tensor::CubeTensor};
use burn_natten_kernels::tensor_core::{
    self, BackwardInputs, BackwardOutputs, Capability, Choice, ForwardInputs, ForwardOutputs,
    Strided, TensorCoreError,
};
use cubecl::ir::{ElemType, FloatKind};

use super::cube::{Gradients, empty_gradients, empty_outputs, strided_memory};
use super::dispatch::tensor_core_backward_obstacle;
use super::reference::Saved;
use super::{AdditionalKv, Plan};

/// The forward pass: `(out, logsumexp)`.
pub(super) fn forward(
    query: &CubeTensor,
    key: &CubeTensor,
    value: &CubeTensor,
    additional: &AdditionalKv<CubeBackend>,
    plan: &Plan,
) -> Result<(CubeTensor, CubeTensor), TensorCoreError> {
    let (out, lse) = empty_outputs(query, plan);
    let outputs = ForwardOutputs { out: out.handle.clone(), lse: lse.handle.clone() };
    let inputs = ForwardInputs {
        query: strided(query),
        key: strided(key),
        value: strided(value),
        additional: additional.pair(strided),
    };
    let dtype = multiplied(query, plan);
    let choice = choice(plan);
    tensor_core::forward(&query.client, &plan.problem, dtype, choice, &inputs, &outputs)?;
    Ok((out, lse))
}

/// Why there is no backward pass.
#[derive(Debug, thiserror::Error)]
pub(super) enum BackwardError {
    /// It has to be allowed.
    #[error("{0}")]
    NotAllowed(&'static str),
    /// The kernels refuse it.
    #[error(transparent)]
    Kernels(#[from] TensorCoreError),
}

/// The backward pass: the gradients of query, key, value and the additional tokens.
pub(super) fn backward(
    saved: &Saved<CubeBackend>,
    grad_out: &CubeTensor,
    grad_lse: &CubeTensor,
    plan: &Plan,
) -> Result<Gradients, BackwardError> {
    let Saved { query, key, value, additional, out, lse } = saved;
    let capability = Capability::of(&query.client).ok_or(TensorCoreError::Device)?;
    if let Some(reason) = tensor_core_backward_obstacle(capability, plan.context) {
        return Err(BackwardError::NotAllowed(reason));
    }
    let gradients = empty_gradients(query, key, value, additional);
    let (dq, dk, dv, more) = &gradients;
    let outputs = BackwardOutputs {
        dq: dq.handle.clone(),
        dk: dk.handle.clone(),
        dv: dv.handle.clone(),
        additional: more.pair(|gradient| gradient.handle.clone()),
    };
    let [lse, dlse] = [lse, grad_lse].map(|tensor| into_contiguous(tensor.clone()).handle);
    let launch = |view: &dyn Fn(&CubeTensor) -> Strided| {
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
        let dtype = multiplied(query, plan);
        let choice = choice(plan);
        tensor_core::backward(&query.client, &plan.problem, dtype, choice, &inputs, &outputs)
    };
    match launch(&strided) {
        // Additional tokens need the others in one line, as contiguous copies have them.
        Err(TensorCoreError::Layout(_)) => {
            launch(&|tensor| strided(&into_contiguous(tensor.clone())))
        }
        result => result,
    }?;
    Ok(gradients)
}

/// What the kernels multiply. They refuse f32, but where it may be rounded.
fn multiplied(query: &CubeTensor, plan: &Plan) -> ElemType {
    match query.dtype() {
        DType::F32 if plan.context.allow_tf32() => ElemType::Float(FloatKind::TF32),
        dtype => dtype_to_storage_type(dtype),
    }
}

/// How kernels are chosen.
fn choice(plan: &Plan) -> Choice {
    let context = plan.context;
    match context.tiling() {
        Some(tiling) => Choice::Tiled(tiling),
        None if cfg!(feature = "autotune") && context.autotune() && !context.deterministic() => {
            Choice::Measured
        }
        None => Choice::Modelled,
    }
}

fn strided(tensor: &CubeTensor) -> Strided {
    let (handle, strides) = strided_memory(tensor);
    Strided { handle, strides }
}
