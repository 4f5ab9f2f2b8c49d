//! The Hopper tier: native CUDA kernels on Burn's CubeCL backend.

use burn::backend::{DType, DispatchDevice, TensorMetadata};
use burn::tensor::Device;
use burn_cubecl::{CubeBackend, kernel::into_contiguous, tensor::CubeTensor};
use burn_natten_kernels::Problem;
use burn_natten_kernels::native::sm90::{
    self, Element, ForwardInputs, ForwardOutputs, HopperError, Strided,
};

use super::cube::empty_outputs;
use super::{AdditionalKv, Plan};

/// The forward pass: `(out, logsumexp)`.
///
/// Tensors are read where they lie, so that a slice of a fused query-key-value projection is not
/// copied; what TMA cannot read is copied once.
pub(super) fn forward(
    query: &CubeTensor,
    key: &CubeTensor,
    value: &CubeTensor,
    additional: &AdditionalKv<CubeBackend>,
    plan: &Plan,
) -> Result<(CubeTensor, CubeTensor), HopperError> {
    let problem = &plan.problem;
    let element = element(query.dtype());
    let (out, lse) = empty_outputs(query, plan);
    let outputs = ForwardOutputs { out: out.handle.clone(), lse: lse.handle.clone() };
    let launch = |copy: bool| {
        let view = |tensor: &CubeTensor| match copy {
            true => view(&into_contiguous(tensor.clone())),
            false => view(tensor),
        };
        let inputs = ForwardInputs {
            query: view(query),
            key: view(key),
            value: view(value),
            additional: match additional {
                AdditionalKv::Tokens { key, value } => Some((view(key), view(value))),
                AdditionalKv::None => None,
            },
        };
        let tiling = plan.context.tiling();
        sm90::forward(&query.client, problem, element, tiling, &inputs, &outputs)
    };
    match launch(false) {
        Err(HopperError::Layout(_)) => launch(true)?,
        result => result?,
    }
    Ok((out, lse))
}

/// The kernels know two types, and [`select`](crate::select) lets no other pass.
fn element(dtype: DType) -> Element {
    match dtype {
        DType::F16 => Element::F16,
        _ => Element::Bf16,
    }
}

/// Compiles the kernel for a problem.
pub(crate) fn warm_up(problem: &Problem, dtype: DType, device: &Device) -> Result<(), HopperError> {
    match device.clone().without_autodiff().as_dispatch() {
        DispatchDevice::Cube(device) => sm90::warm_up(&device.client(), problem, element(dtype)),
        #[allow(unreachable_patterns)]
        _ => Err(HopperError::Device),
    }
}

/// A tensor `[batch, tokens.., heads, dim]` with its strides, padded to three axes of tokens.
fn view(tensor: &CubeTensor) -> Strided {
    let strides = tensor.meta.strides();
    let rank = strides.len();
    let [batch, head, vector] = [0, rank - 2, rank - 1].map(|axis| strides[axis]);
    let mut padded = [batch, 0, 0, 0, head];
    for (axis, stride) in strides[1..rank - 2].iter().enumerate() {
        padded[4 - (rank - 3) + axis] = *stride;
    }
    // Vectors that are not contiguous are for the copy: strides of zero say so.
    if vector != 1 || tensor.meta.is_tiled() {
        padded = [0; 5];
    }
    Strided { handle: tensor.handle.clone(), strides: padded }
}
