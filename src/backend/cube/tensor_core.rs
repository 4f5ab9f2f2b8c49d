//! The TensorCore tier: CubeCL kernels on matrix units.

use burn::backend::{DType, cubecl::dtype_to_storage_type};
use burn_natten_kernels::tensor_core::{self, Choice};
use burn_natten_kernels::{KernelError, Operands, Outputs, Saved, Strided};
use cubecl::ir::{ElemType, FloatKind};
use cubecl::server::Handle;

use super::Launch;

/// Launches the forward pass.
pub(super) fn forward(
    launch: &Launch<'_>,
    operands: &Operands<Strided>,
    outputs: &Outputs<Handle>,
) -> Result<(), KernelError> {
    let (dtype, choice) = (launch.multiplied(), launch.choice());
    tensor_core::forward(launch.client, launch.problem, dtype, choice, operands, outputs)
}

/// Launches the backward pass.
pub(super) fn backward(
    launch: &Launch<'_>,
    saved: &Saved<Strided>,
    gradients: &Operands<Handle>,
) -> Result<(), KernelError> {
    let (dtype, choice) = (launch.multiplied(), launch.choice());
    tensor_core::backward(launch.client, launch.problem, dtype, choice, saved, gradients)
}

impl Launch<'_> {
    /// What the kernels multiply. They refuse f32, but where it may be rounded.
    fn multiplied(&self) -> ElemType {
        match self.dtype {
            DType::F32 if self.context.allow_tf32() => ElemType::Float(FloatKind::TF32),
            dtype => dtype_to_storage_type(dtype),
        }
    }

    /// How kernels are chosen.
    fn choice(&self) -> Choice {
        let context = self.context;
        match context.tiling() {
            Some(tiling) => Choice::Tiled(tiling),
            None if cfg!(feature = "autotune")
                && context.autotune()
                && !context.deterministic() =>
            {
                Choice::Measured
            }
            None => Choice::Modelled,
        }
    }
}
