//! The TensorCore tier: CubeCL kernels on matrix units.

use std::sync::Once;

use burn::backend::{DType, cubecl::dtype_to_storage_type};
use burn_natten_kernels::tensor_core::{self, Capability, Choice, Evidence};
use burn_natten_kernels::{KernelError, Operands, Outputs, Saved, Strided};
use cubecl::client::Client;
use cubecl::ir::{ElemType, FloatKind};
use cubecl::server::Handle;

use super::Launch;
use crate::backend::log_once;

/// Launches the forward pass.
pub(super) fn forward(
    launch: &Launch<'_>,
    operands: &Operands<Strided>,
    outputs: &Outputs<Handle>,
) -> Result<(), KernelError> {
    let Launch { client, plan, packed } = *launch;
    say_what_has_run(client);
    let (dtype, choice) = (launch.multiplied(), launch.choice());
    match packed {
        Some(packed) => {
            tensor_core::forward_packed(client, packed, dtype, choice, operands, outputs)
        }
        None => tensor_core::forward(client, &plan.problem, dtype, choice, operands, outputs),
    }
}

/// Launches the backward pass.
pub(super) fn backward(
    launch: &Launch<'_>,
    saved: &Saved<Strided>,
    gradients: &Operands<Option<Handle>>,
) -> Result<(), KernelError> {
    let Launch { client, plan, packed } = *launch;
    let (dtype, choice) = (launch.multiplied(), launch.choice());
    match packed {
        Some(packed) => {
            tensor_core::backward_packed(client, packed, dtype, choice, saved, gradients)
        }
        None => tensor_core::backward(client, &plan.problem, dtype, choice, saved, gradients),
    }
}

/// Says once that kernels for an NVIDIA GPU of this kind have been compiled and not run.
fn say_what_has_run(client: &Client) {
    static SAID: Once = Once::new();
    SAID.call_once(|| {
        let capability = Capability::of(client);
        let fingerprint = &client.properties().identity.fingerprint;
        let sm = fingerprint.strip_prefix("ptx_sm").and_then(|sm| sm.parse().ok());
        if capability.map(|capability| capability.evidence(sm)) == Some(Evidence::Compiled) {
            log_once(format!(
                "the TensorCore kernels have been compiled for {fingerprint}, and have run on compute capability 9.0 alone"
            ));
        }
    });
}

impl Launch<'_> {
    /// What the kernels multiply. They refuse f32, but where it may be rounded.
    fn multiplied(&self) -> ElemType {
        match self.plan.dtype {
            DType::F32 if self.plan.context.allow_tf32() => ElemType::Float(FloatKind::TF32),
            dtype => dtype_to_storage_type(dtype),
        }
    }

    /// How kernels are chosen.
    fn choice(&self) -> Choice {
        let context = self.plan.context;
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
