//! The Portable tier on Burn's CubeCL backend, which covers every CubeCL runtime, and the way to the
//! native tiers of one vendor's devices.

use burn::backend::{DType, Shape, TensorMetadata, cubecl::dtype_to_storage_type};
use burn_cubecl::{
    CubeBackend, kernel::into_contiguous, ops::numeric::empty_device_contiguous_dtype,
    tensor::CubeTensor,
};
use burn_natten_kernels::portable::{
    self, BackwardInputs, BackwardOutputs, ForwardInputs, ForwardOutputs, KeyValue,
};

use cubecl::server::Handle;

use super::reference::{self, Saved};
use super::{AdditionalKv, AttentionBackwardOps, AttentionOps, Plan, degrade};
use crate::Tier;

impl AttentionOps for CubeBackend {
    fn attention_forward(
        query: CubeTensor,
        key: CubeTensor,
        value: CubeTensor,
        additional: AdditionalKv<Self>,
        plan: Plan,
    ) -> (CubeTensor, CubeTensor) {
        if plan.tier == Tier::Reference || plan.is_empty() {
            return reference::forward::<Self>(query, key, value, additional, &plan);
        }
        #[cfg(feature = "cuda")]
        if plan.tier == Tier::Hopper {
            match super::hopper::forward(&query, &key, &value, &additional, &plan) {
                Ok(outputs) => return outputs,
                Err(error) => degrade("the Portable kernels", &error),
            }
        }
        if plan.tier == Tier::TensorCore {
            match super::tensor_core::forward(&query, &key, &value, &additional, &plan) {
                Ok(outputs) => return outputs,
                Err(error) => degrade("the Portable kernels", &error),
            }
        }
        let [query, key, value] = [query, key, value].map(into_contiguous);
        let additional = contiguous(&additional);
        let (out, lse) = empty_outputs(&query, &plan);
        let inputs = ForwardInputs {
            query: query.handle.clone(),
            key: key.handle.clone(),
            value: value.handle.clone(),
            additional: handles(&additional),
        };
        let outputs = ForwardOutputs { out: out.handle.clone(), lse: lse.handle.clone() };
        let dtype = dtype_to_storage_type(query.dtype());
        let (untried, _) = plan.context.allow_experimental();
        match portable::forward(&query.client, &plan.problem, dtype, untried, &inputs, &outputs) {
            Ok(()) => (out, lse),
            Err(error) => {
                degrade("tensor operations", &error);
                reference::forward::<Self>(query, key, value, additional, &plan)
            }
        }
    }
}

impl AttentionBackwardOps for CubeBackend {
    fn attention_backward(
        query: CubeTensor,
        key: CubeTensor,
        value: CubeTensor,
        additional: AdditionalKv<Self>,
        out: CubeTensor,
        lse: CubeTensor,
        grad_out: CubeTensor,
        grad_lse: CubeTensor,
        plan: Plan,
    ) -> Gradients {
        let saved = Saved { query, key, value, additional, out, lse };
        if plan.tier == Tier::Reference || plan.is_empty() {
            return reference::backward::<Self>(saved, grad_out, grad_lse, &plan);
        }
        #[cfg(feature = "cuda")]
        if plan.tier == Tier::Hopper {
            match super::hopper::backward(&saved, &grad_out, &grad_lse, &plan) {
                Ok(gradients) => return gradients,
                Err(error) => degrade("the Portable kernels", &error),
            }
        }
        if plan.tier == Tier::TensorCore {
            match super::tensor_core::backward(&saved, &grad_out, &grad_lse, &plan) {
                Ok(gradients) => return gradients,
                Err(error) => degrade("the Portable kernels", &error),
            }
        }
        let Saved { query, key, value, additional, out, lse } = saved;
        let [query, key, value, out, lse, grad_out, grad_lse] =
            [query, key, value, out, lse, grad_out, grad_lse].map(into_contiguous);
        let additional = contiguous(&additional);
        let gradients = empty_gradients(&query, &key, &value, &additional);
        let (dq, dk, dv, more) = &gradients;
        let inputs = BackwardInputs {
            query: query.handle.clone(),
            key: key.handle.clone(),
            value: value.handle.clone(),
            additional: handles(&additional),
            out: out.handle.clone(),
            lse: lse.handle.clone(),
            dout: grad_out.handle.clone(),
            dlse: grad_lse.handle.clone(),
        };
        let outputs = BackwardOutputs {
            dq: dq.handle.clone(),
            dk: dk.handle.clone(),
            dv: dv.handle.clone(),
            additional: handles(more),
        };
        let dtype = dtype_to_storage_type(query.dtype());
        let (_, untried) = plan.context.allow_experimental();
        match portable::backward(&query.client, &plan.problem, dtype, untried, &inputs, &outputs) {
            Ok(()) => gradients,
            Err(error) => {
                degrade("tensor operations", &error);
                let saved = Saved { query, key, value, additional, out, lse };
                reference::backward::<Self>(saved, grad_out, grad_lse, &plan)
            }
        }
    }
}

/// Those of query, key, value and the additional tokens.
pub(super) type Gradients = (CubeTensor, CubeTensor, CubeTensor, AdditionalKv<CubeBackend>);

/// Uninitialised outputs of a forward pass: `(out, logsumexp)`.
pub(super) fn empty_outputs(query: &CubeTensor, plan: &Plan) -> (CubeTensor, CubeTensor) {
    let rows = query.shape().as_slice()[..query.shape().num_dims() - 1].to_vec();
    let out = [rows.as_slice(), &[plan.problem.head_dim_v]].concat();
    (empty(query, Shape::from(out), query.dtype()), empty(query, Shape::from(rows), DType::F32))
}

/// Uninitialised gradients of these inputs.
pub(super) fn empty_gradients(
    query: &CubeTensor,
    key: &CubeTensor,
    value: &CubeTensor,
    additional: &AdditionalKv<CubeBackend>,
) -> Gradients {
    (empty_like(query), empty_like(key), empty_like(value), additional.map(empty_like))
}

/// An uninitialised tensor that is contiguous, which others need not be on CUDA.
fn empty(like: &CubeTensor, shape: Shape, dtype: DType) -> CubeTensor {
    empty_device_contiguous_dtype(like.client.clone(), like.device.clone(), shape, dtype)
}

fn empty_like(tensor: &CubeTensor) -> CubeTensor {
    empty(tensor, tensor.shape(), tensor.dtype())
}

/// The memory of a tensor `[batch, tokens.., heads, dim]` with its strides, padded to three axes of tokens.
pub(super) fn strided_memory(tensor: &CubeTensor) -> (Handle, [usize; 5]) {
    if tensor.meta.strides().last() != Some(&1) || tensor.meta.is_tiled() {
        // No stride describes it, as that of the gradient that a sum passes on: one number,
        // repeated.
        return strided_memory(&into_contiguous(tensor.clone()));
    }
    let strides = tensor.meta.strides();
    let rank = strides.len();
    let mut padded = [strides[0], 0, 0, 0, strides[rank - 2]];
    for (axis, stride) in strides[1..rank - 2].iter().enumerate() {
        padded[4 - (rank - 3) + axis] = *stride;
    }
    (tensor.handle.clone(), padded)
}

fn contiguous(additional: &AdditionalKv<CubeBackend>) -> AdditionalKv<CubeBackend> {
    additional.map(|tensor| into_contiguous(tensor.clone()))
}

fn handles(additional: &AdditionalKv<CubeBackend>) -> Option<KeyValue> {
    let handles = additional.pair(|tensor| tensor.handle.clone());
    handles.map(|(key, value)| KeyValue { key, value })
}
