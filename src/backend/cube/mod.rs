//! The tiers on Burn's CubeCL backend, which covers every CubeCL runtime: each pass goes down the ladder of its plan until
//! a tier has launched it.

#[cfg(feature = "cuda")]
mod blackwell;
mod block_sparse;
#[cfg(feature = "cuda")]
mod decode;
mod gate;
#[cfg(feature = "cuda")]
mod hopper;
mod linear;
mod means;
mod memory;
#[cfg(feature = "optim")]
mod optim;
mod portable;
mod select;
mod tensor_core;
mod tokens;
mod unfused;

use std::sync::atomic::Ordering;

use burn_cubecl::{CubeBackend, tensor::CubeTensor};
use burn_natten_kernels::{KernelError, Operands, Outputs, Packed, Problem, Saved, Strided};
use cubecl::client::Client;
use cubecl::server::Handle;

#[cfg(feature = "cuda")]
pub(crate) use blackwell::warm_up as warm_up_blackwell;
#[cfg(feature = "cuda")]
pub(crate) use decode::is_ready_to_decode;
#[cfg(feature = "cuda")]
pub(crate) use hopper::warm_up as warm_up_hopper;
use memory::{Lay, empty_gradients, empty_outputs, read_by};

use super::extension::saved;
use super::{
    AttentionBackwardOps, AttentionGradients, AttentionInputs, AttentionOps, AttentionResults,
    FALLBACKS, Plan, log_once, packed, reference,
};
use crate::tier::Ladder;
use crate::{AttentionError, Strategy, Tier};

/// What a tier is told of a launch besides its tensors.
struct Launch<'a> {
    client: &'a Client,
    plan: &'a Plan,
    /// The sequences of a packed batch that one launch is to have.
    packed: Option<&'a Packed>,
}

impl<'a> Launch<'a> {
    fn new(plan: &'a Plan, query: &'a CubeTensor) -> Self {
        Self { client: &query.client, plan, packed: plan.packed.as_deref() }
    }

    /// What has the shapes of the tensors.
    fn problem(&self) -> &'a Problem {
        self.packed.map_or(&self.plan.problem, Packed::line)
    }

    /// Whether a tier of a ladder launches the pass.
    fn is_done(&self, ladder: Ladder, on: impl Fn(Tier) -> Result<(), KernelError>) -> bool {
        match self.packed {
            Some(_) => at_once(ladder, on),
            None => descend(self.plan.strategy, ladder, on),
        }
    }

    fn forward(
        &self,
        tier: Tier,
        operands: &Operands<Strided>,
        outputs: &Outputs<Handle>,
    ) -> Result<(), KernelError> {
        match tier {
            #[cfg(feature = "cuda")]
            Tier::Blackwell => blackwell::forward(self, operands, outputs),
            #[cfg(feature = "cuda")]
            Tier::Hopper => hopper::forward(self, operands, outputs),
            Tier::TensorCore => tensor_core::forward(self, operands, outputs),
            _ => portable::forward(self, operands, outputs),
        }
    }

    fn backward(
        &self,
        tier: Tier,
        saved: &Saved<Strided>,
        gradients: &Operands<Option<Handle>>,
    ) -> Result<(), KernelError> {
        match tier {
            #[cfg(feature = "cuda")]
            Tier::Blackwell => blackwell::backward(self, saved, gradients),
            #[cfg(feature = "cuda")]
            Tier::Hopper => hopper::backward(self, saved, gradients),
            Tier::TensorCore => tensor_core::backward(self, saved, gradients),
            _ => portable::backward(self, saved, gradients),
        }
    }
}

/// Launches on tensors as they lie, so that a slice of a fused query-key-value projection is not copied, or else on
/// contiguous copies, which every kernel can read.
fn as_they_lie(launch: impl Fn(Lay) -> Result<(), KernelError>) -> Result<(), KernelError> {
    match launch(Lay::AsTheyAre) {
        Err(KernelError::Layout { .. }) => launch(Lay::Contiguous),
        result => result,
    }
}

/// Whether the first tier of a ladder launches a pass over all sequences of a packed batch, which is logged where it does not. Another
/// tier for all of them may be slower than the first one for each shape.
fn at_once(ladder: Ladder, launch: impl Fn(Tier) -> Result<(), KernelError>) -> bool {
    let Err(error) = launch(ladder.first()) else { return true };
    log_once(format!("one launch for each shape of a packed batch, because {error}"));
    false
}

/// The first tier of a ladder that launches a pass; `false` if none but the Reference tier is left.
///
/// # Panics
///
/// If a strategy that was asked for by name fails.
fn descend(
    strategy: Strategy,
    ladder: Ladder,
    launch: impl Fn(Tier) -> Result<(), KernelError>,
) -> bool {
    let mut failure: Option<KernelError> = None;
    for tier in ladder.iter() {
        if let Some(error) = failure.take() {
            FALLBACKS.fetch_add(1, Ordering::Relaxed);
            log_once(format!("using {}, because {error}", tier.kernels()));
        }
        if tier == Tier::Reference {
            return false;
        }
        match launch(tier) {
            Ok(()) => return true,
            Err(error) => failure = Some(error),
        }
    }
    match failure {
        Some(error) if strategy != Strategy::Auto => {
            let reason = error.to_string();
            panic!("{}", AttentionError::Strategy { strategy, reason })
        }
        _ => false,
    }
}

/// Whether the kernels of an operator that has Portable and Reference alone were launched, which is logged where they were
/// not.
///
/// # Panics
///
/// If they were asked for by name.
fn is_launched(strategy: Strategy, result: Result<(), KernelError>) -> bool {
    let Err(error) = result else { return true };
    if strategy != Strategy::Auto {
        let reason = error.to_string();
        panic!("{}", AttentionError::Strategy { strategy, reason })
    }
    FALLBACKS.fetch_add(1, Ordering::Relaxed);
    log_once(format!("using {}, because {error}", Tier::Reference.kernels()));
    false
}

/// The results of a forward pass; `None` where no kernel was launched.
fn launch_forward(operands: &Operands<CubeTensor>, plan: &Plan) -> Option<Outputs<CubeTensor>> {
    if plan.is_empty() || !plan.forward.has_kernels() {
        return None;
    }
    let launch = Launch::new(plan, &operands.query);
    let problem = launch.problem();
    let outputs = empty_outputs(&operands.query, problem);
    let handles = outputs.as_ref().map(|tensor| tensor.handle.clone());
    let on = |tier, lay: Lay| launch.forward(tier, &lay.operands(problem, operands), &handles);
    let on = |tier| as_they_lie(|lay| on(tier, lay));
    launch.is_done(plan.forward, on).then_some(outputs)
}

/// The gradients of a backward pass that are wanted; `None` where no kernel was launched.
fn launch_backward(
    saved: &Saved<CubeTensor>,
    wanted: Operands<bool>,
    plan: &Plan,
) -> Option<Operands<Option<CubeTensor>>> {
    if plan.is_empty() || !plan.backward.has_kernels() {
        return None;
    }
    let launch = Launch::new(plan, &saved.operands.query);
    let gradients = empty_gradients(&saved.operands, wanted);
    let handles =
        gradients.as_ref().map(|_, gradient| gradient.as_ref().map(|tensor| tensor.handle.clone()));
    let on = |tier| {
        let saved = read_by(tier, saved);
        as_they_lie(|lay| launch.backward(tier, &lay.saved(launch.problem(), &saved), &handles))
    };
    launch.is_done(plan.backward, on).then_some(gradients)
}

impl AttentionOps for CubeBackend {
    fn attention_forward(inputs: AttentionInputs<Self>, plan: Plan) -> AttentionResults<Self> {
        let operands = inputs.operands();
        AttentionResults::new(match (launch_forward(&operands, &plan), &plan.parts) {
            (Some(outputs), _) => outputs,
            (None, Some(parts)) => packed::forward::<Self>(operands, parts),
            (None, None) => reference::forward::<Self>(operands, &plan),
        })
    }
}

impl AttentionBackwardOps for CubeBackend {
    fn attention_backward(
        inputs: AttentionInputs<Self>,
        results: AttentionResults<Self>,
        gradients: AttentionResults<Self>,
        has_out: bool,
        wanted: Operands<bool>,
        plan: Plan,
    ) -> AttentionGradients<Self> {
        let saved = saved(inputs, results, gradients, has_out);
        AttentionGradients::new(match (launch_backward(&saved, wanted, &plan), &plan.parts) {
            (Some(gradients), _) => gradients,
            (None, Some(parts)) => packed::backward::<Self>(saved, wanted, parts),
            (None, None) => reference::backward::<Self>(saved, wanted, &plan),
        })
    }
}
