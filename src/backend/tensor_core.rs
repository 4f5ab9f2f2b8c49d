//! The TensorCore tier: CubeCL kernels on matrix units, on Burn's CubeCL backend.

use burn::backend::{TensorMetadata, cubecl::dtype_to_storage_type};
use burn_cubecl::{CubeBackend, tensor::CubeTensor};
use burn_natten_kernels::tensor_core::{
    self, ForwardInputs, ForwardOutputs, Strided, TensorCoreError,
};

use super::cube::{empty_outputs, strided_memory};
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
    let dtype = dtype_to_storage_type(query.dtype());
    let tiling = plan.context.tiling();
    tensor_core::forward(&query.client, &plan.problem, dtype, tiling, &inputs, &outputs)?;
    Ok((out, lse))
}

fn strided(tensor: &CubeTensor) -> Strided {
    let (handle, strides) = strided_memory(tensor);
    Strided { handle, strides }
}
