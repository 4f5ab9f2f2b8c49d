//! The table of engines, and the choice among them.

use std::borrow::Cow;

use burn::tensor::DType;
use burn_natten_kernels::native::{sm90, sm100};
use burn_natten_kernels::tensor_core;
use burn_natten_kernels::{Operand, Problem};

use super::{Capabilities, Ladder, TensorCores, Tier};
use crate::{AttentionError, Context, Strategy};

/// What is to be computed, and where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request<'a> {
    pub problem: &'a Problem,
    pub dtype: DType,
    pub device: Capabilities,
    pub context: Context,
}

impl Request<'_> {
    pub(crate) fn is_half(&self) -> bool {
        matches!(self.dtype, DType::F16 | DType::BF16)
    }

    fn is_tf32(&self) -> bool {
        self.dtype == DType::F32 && self.context.allow_tf32()
    }

    fn is_too_large(&self) -> bool {
        self.problem.needs_wide_indices() && !self.device.has_wide_indices
    }
}

/// Why a tier cannot compute a pass.
struct Obstacle {
    reason: Cow<'static, str>,
    /// Whether somebody with such a device and such tensors would expect the tier.
    is_news: bool,
}

/// Said where neither of the two tiers that [`Strategy::Portable`] asks for is for the device.
const NO_DEVICE: &str = "it needs a Flex or a CubeCL device";

pub(crate) const TOO_LARGE: &str =
    "a tensor has more than 2^31 elements and the device no 64-bit indices";

/// Why a pass of the TensorCore tier does not run unless it is allowed.
const NEVER_RUN: &str = "its kernels of cooperative matrices have never run on such a device \
                         (Context::with_allow_experimental allows them)";

impl Tier {
    /// Whether its kernels read an operand. An operand that is new is refused by a tier until it has learnt it: there is no
    /// arm for the rest.
    fn knows(self, operand: Operand) -> bool {
        match operand {
            Operand::Query | Operand::Key | Operand::Value => true,
            Operand::AdditionalKey | Operand::AdditionalValue => match self {
                Self::Blackwell
                | Self::Hopper
                | Self::TensorCore
                | Self::Flex
                | Self::Portable
                | Self::Reference => true,
            },
            Operand::Bias => match self {
                Self::Blackwell => false,
                Self::Hopper | Self::TensorCore | Self::Flex | Self::Portable | Self::Reference => {
                    true
                }
            },
        }
    }

    /// Whether a device is of the kind that it is for. Two tiers have one strategy, each on devices of its own.
    fn is_for(self, device: Capabilities) -> bool {
        match self {
            Self::Flex => device.is_flex,
            Self::Portable => device.is_cube,
            Self::Blackwell | Self::Hopper | Self::TensorCore | Self::Reference => true,
        }
    }

    /// Why it cannot compute the forward pass of a request; `None` if it can.
    fn obstacle(self, request: &Request<'_>) -> Option<Obstacle> {
        let (reason, is_news) = match self {
            Self::Blackwell => {
                (blackwell(request), request.device.has_blackwell && request.is_half())
            }
            Self::Hopper => (hopper(request), request.device.has_hopper && request.is_half()),
            Self::TensorCore => {
                let has_units = request.device.tensor_cores.is_some();
                (tensor_core(request), has_units && (request.is_half() || request.is_tf32()))
            }
            Self::Flex => {
                let reason = (!self.is_for(request.device)).then_some(NO_DEVICE.into());
                (reason, false)
            }
            Self::Portable => (portable(request), request.device.is_cube),
            Self::Reference => (None, false),
        };
        // Of a device that is not there nothing else is to be said.
        let reason = reason.or_else(|| {
            let operand = unknown(request.problem, |operand| self.knows(operand))?;
            Some(format!("its kernels know no {}", operand.name()).into())
        });
        reason.map(|reason| Obstacle { reason, is_news })
    }

    /// Why it cannot compute the backward pass of a request whose forward pass it can compute.
    fn backward_obstacle(self, request: &Request<'_>) -> Option<&'static str> {
        let (_, is_allowed) = request.context.allow_experimental();
        let has_run = |cores: TensorCores| cores.has_run() || is_allowed;
        match self {
            Self::TensorCore => {
                (!request.device.tensor_cores.is_some_and(has_run)).then_some(NEVER_RUN)
            }
            _ => None,
        }
    }
}

/// What a strategy comes to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Selection {
    /// Tiers of the forward pass. One alone where it was asked for by name.
    pub forward: Ladder,
    /// Tiers of the backward pass.
    pub backward: Ladder,
    /// What whoever runs it should log, once.
    pub notes: Vec<String>,
}

/// Picks the tiers of both passes.
///
/// # Errors
///
/// [`AttentionError::Strategy`] if a strategy that was asked for by name cannot run.
pub(crate) fn selection(
    request: &Request<'_>,
    strategy: Strategy,
) -> Result<Selection, AttentionError> {
    let (mut able, mut complaint, mut notes) = (vec![], None, vec![]);
    let mut refused = vec![];
    for tier in Tier::ALL {
        let is_asked = strategy == Strategy::Auto || strategy == tier.strategy();
        match tier.obstacle(request) {
            None => able.push((tier, is_asked)),
            Some(Obstacle { reason, is_news }) => {
                if is_news && able.is_empty() {
                    complaint.get_or_insert(reason.clone());
                }
                if is_asked {
                    refused.push((tier, reason));
                }
            }
        }
    }
    let asked = able.iter().find(|(_, is_asked)| *is_asked).map(|(tier, _)| *tier);
    let Some(first) = asked else {
        let reason = refusal(refused, request.device).into_owned();
        return Err(AttentionError::Strategy { strategy, reason });
    };
    let backward = |tier: &Tier| tier.backward_obstacle(request).is_none();
    let below: Ladder = able.iter().map(|(tier, _)| *tier).filter(backward).collect();
    if strategy == Strategy::Auto {
        notes
            .extend(complaint.map(|reason| format!("using {}, because {reason}", first.kernels())));
        let forward = able.into_iter().map(|(tier, _)| tier).collect();
        return Ok(Selection { forward, backward: below, notes });
    }
    let backward = if backward(&first) { first.into() } else { below };
    Ok(Selection { forward: first.into(), backward, notes })
}

/// The first operand of a problem that kernels do not know.
fn unknown(problem: &Problem, knows: impl Fn(Operand) -> bool) -> Option<Operand> {
    Operand::ALL.into_iter().find(|operand| operand.is_in(problem) && !knows(*operand))
}

/// Why a strategy cannot run, from what its tiers say: that of the device, where there is one.
fn refusal(refused: Vec<(Tier, Cow<'static, str>)>, device: Capabilities) -> Cow<'static, str> {
    let (here, elsewhere): (Vec<_>, Vec<_>) =
        refused.into_iter().partition(|(tier, _)| tier.is_for(device));
    let first = here.into_iter().chain(elsewhere).next();
    first.map_or("this version has no kernels for it".into(), |(_, reason)| reason)
}

/// Picks the tier that computes a problem in `dtype` on a device with these capabilities.
///
/// [`Strategy::Auto`] takes the fastest that can run; any other strategy runs as asked. Nothing is logged: where an operator
/// does without a tier that its device has, it says why, once.
///
/// # Errors
///
/// [`AttentionError::Strategy`] if a strategy that was asked for by name cannot run.
///
/// # Example
///
/// ```rust
/// use burn::tensor::{DType, Device};
/// use burn_natten::plan::Sizes;
/// use burn_natten::{Capabilities, Context, Strategy, Tier, select};
///
/// # fn main() -> Result<(), burn_natten::AttentionError> {
/// let flex = Capabilities::of(&Device::flex()).expect("the feature `flex` is on");
/// let problem = Sizes::new(64).dense(1024, 1024, true, None)?;
/// let select = |strategy| select(&problem, strategy, DType::F32, flex, Context::new());
/// assert_eq!(select(Strategy::Auto)?, Tier::Flex);
/// assert_eq!(select(Strategy::Reference)?, Tier::Reference);
/// let error = select(Strategy::Hopper).expect_err("no GPU");
/// assert!(error.to_string().starts_with("strategy: Hopper cannot run here"));
/// # Ok(())
/// # }
/// ```
pub fn select(
    problem: &Problem,
    strategy: Strategy,
    dtype: DType,
    device: Capabilities,
    context: Context,
) -> Result<Tier, AttentionError> {
    let request = Request { problem, dtype, device, context };
    Ok(selection(&request, strategy)?.forward.first())
}

fn portable(request: &Request<'_>) -> Option<Cow<'static, str>> {
    if !request.device.is_cube {
        Some(NO_DEVICE.into())
    } else if request.dtype == DType::F64 {
        Some("its kernels have no f64".into())
    } else if request.is_too_large() {
        Some(TOO_LARGE.into())
    } else {
        None
    }
}

fn tensor_core(request: &Request<'_>) -> Option<Cow<'static, str>> {
    let Some(tensor_cores) = request.device.tensor_cores else {
        let needs = "it needs matrix units that CubeCL gives access to and planes of 32 units";
        return Some(needs.into());
    };
    let is_f32 = request.dtype == DType::F32;
    if is_f32 && !request.context.allow_tf32() {
        let rounds = "its kernels round f32 to TF32 (Context::with_allow_tf32 allows them)";
        Some(rounds.into())
    } else if is_f32 && !tensor_cores.has_tf32 {
        Some("the device's matrix units have no TF32 that CubeCL gives access to".into())
    } else if !is_f32 && !request.is_half() {
        Some("its kernels run in f16, bf16 and TF32".into())
    } else if !tensor_cores.has_run() && !request.context.allow_experimental().0 {
        Some(NEVER_RUN.into())
    } else if request.dtype == DType::BF16 && !tensor_cores.has_bf16 {
        Some("the device's matrix units sum bf16 in no f32, or it does not round to bf16".into())
    } else if request.is_too_large() {
        Some(TOO_LARGE.into())
    } else {
        tensor_core::unsupported(request.problem).map(Cow::Owned)
    }
}

fn blackwell(request: &Request<'_>) -> Option<Cow<'static, str>> {
    if !request.device.has_blackwell {
        let needs =
            "it needs a GPU of compute capability 10.0 or 10.3, the feature `cuda` and NVRTC";
        Some(needs.into())
    } else if !request.is_half() {
        Some("its kernels run in f16 and bf16".into())
    } else {
        sm100::unsupported(request.problem).map(Cow::Owned)
    }
}

fn hopper(request: &Request<'_>) -> Option<Cow<'static, str>> {
    hopper_for(request, || sm90::unsupported(request.problem)).map(Cow::Owned)
}

/// Why Hopper's kernels cannot compute an operator in a request's type on its device; `None` if they can. `unsupported` says
/// which of its problems they have not.
pub(crate) fn hopper_for(
    request: &Request<'_>,
    unsupported: impl FnOnce() -> Option<String>,
) -> Option<String> {
    if !request.device.has_hopper {
        let needs = "it needs a GPU of compute capability 9.0, the feature `cuda` and NVRTC";
        Some(needs.into())
    } else if !request.is_half() {
        Some("its kernels run in f16 and bf16".into())
    } else {
        unsupported()
    }
}

#[cfg(test)]
mod tests;
