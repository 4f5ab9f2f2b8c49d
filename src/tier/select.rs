//! The table of engines, and the choice among them.

use std::borrow::Cow;

use burn::tensor::DType;
use burn_natten_kernels::native::sm90;
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
    fn is_half(&self) -> bool {
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

const TOO_LARGE: &str = "a tensor has more than 2^31 elements and the device no 64-bit indices";

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
                Self::Hopper | Self::TensorCore | Self::Flex | Self::Portable | Self::Reference => {
                    true
                }
            },
            Operand::Bias => match self {
                Self::TensorCore => false,
                Self::Hopper | Self::Flex | Self::Portable | Self::Reference => true,
            },
        }
    }

    /// Whether a device is of the kind that it is for. Two tiers have one strategy, each on devices of its own.
    fn is_for(self, device: Capabilities) -> bool {
        match self {
            Self::Flex => device.is_flex,
            Self::Portable => device.is_cube,
            Self::Hopper | Self::TensorCore | Self::Reference => true,
        }
    }

    /// Why it cannot compute the forward pass of a request; `None` if it can.
    fn obstacle(self, request: &Request<'_>) -> Option<Obstacle> {
        let (reason, is_news) = match self {
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
        Some("the device's matrix units sum bf16 in no f32".into())
    } else if request.is_too_large() {
        Some(TOO_LARGE.into())
    } else {
        tensor_core::unsupported(request.problem).map(Cow::Owned)
    }
}

fn hopper(request: &Request<'_>) -> Option<Cow<'static, str>> {
    if !request.device.has_hopper {
        let needs = "it needs a GPU of compute capability 9.0, the feature `cuda` and NVRTC";
        Some(needs.into())
    } else if !request.is_half() {
        Some("its kernels run in f16 and bf16".into())
    } else {
        sm90::unsupported(request.problem).map(Cow::Owned)
    }
}

#[cfg(test)]
mod tests {
    use burn_natten_kernels::Axis;

    use super::*;

    const CUBE: Capabilities = Capabilities::cube();
    const FLEX: Capabilities = Capabilities::flex();
    const HOPPER: Capabilities = CUBE.with_hopper(true).with_wide_indices(true);

    fn cuda(sm: u32) -> Capabilities {
        CUBE.with_wide_indices(true).with_hopper(sm == 90).with_tensor_cores(TensorCores::cuda(sm))
    }

    fn problem(tokens: usize) -> Problem {
        Problem::new([Axis::dense(tokens, tokens, false)], 1, 64)
    }

    fn of_dim(head_dim: usize) -> Problem {
        Problem::new([Axis::dense(16, 16, false)], 1, head_dim)
    }

    fn tier(strategy: Strategy, dtype: DType, device: Capabilities) -> Tier {
        select(&problem(16), strategy, dtype, device, Context::new()).expect("a tier")
    }

    #[test]
    fn auto_takes_the_kernels_of_the_device() {
        assert_eq!(tier(Strategy::Auto, DType::F64, FLEX), Tier::Flex);
        assert_eq!(tier(Strategy::Auto, DType::BF16, CUBE), Tier::Portable);
        assert_eq!(tier(Strategy::Auto, DType::F64, CUBE), Tier::Reference);
        assert_eq!(tier(Strategy::Reference, DType::F32, CUBE), Tier::Reference);
        assert_eq!(tier(Strategy::Auto, DType::BF16, HOPPER), Tier::Hopper);
        assert_eq!(tier(Strategy::Auto, DType::F32, HOPPER), Tier::Portable);
        assert_eq!(tier(Strategy::Portable, DType::F16, HOPPER), Tier::Portable);
    }

    #[test]
    fn what_hopper_does_not_cover_is_portable_unless_it_was_named() {
        let odd = of_dim(20);
        let of = |strategy| select(&odd, strategy, DType::F16, HOPPER, Context::new());
        assert_eq!(of(Strategy::Auto).expect("a tier"), Tier::Portable);
        assert_eq!(
            of(Strategy::Hopper).expect_err("no multiple of 8").to_string(),
            "strategy: Hopper cannot run here, head_dim is 20, not a multiple of 8 up to 256"
        );
    }

    #[test]
    fn a_position_bias_is_for_tiers_that_know_it() {
        let plane = [Axis::neighborhood(9, 3), Axis::neighborhood(9, 3)];
        let problem = Problem::new(plane, 2, 64).with_bias(true);
        let of = |strategy, device| select(&problem, strategy, DType::BF16, device, Context::new());
        assert_eq!(of(Strategy::Auto, FLEX), Ok(Tier::Flex));
        assert_eq!(of(Strategy::Auto, cuda(90)), Ok(Tier::Hopper));
        assert_eq!(of(Strategy::Auto, cuda(80)), Ok(Tier::Portable));
        assert_eq!(
            of(Strategy::TensorCore, cuda(90)).expect_err("it has no bias").to_string(),
            "strategy: TensorCore cannot run here, there is a position bias"
        );
        // Sums of its gradient have to fit beside the tiles.
        let side = Axis::neighborhood(40, 19);
        let large = Problem::new([side, side], 2, 64).with_bias(true);
        let of = |strategy| select(&large, strategy, DType::BF16, cuda(90), Context::new());
        assert_eq!(of(Strategy::Auto), Ok(Tier::Portable));
        assert_eq!(
            of(Strategy::Hopper).expect_err("37 x 37 entries").to_string(),
            "strategy: Hopper cannot run here, the position bias has more than 860 entries for a head"
        );
    }

    #[test]
    fn tensor_cores_come_between_hopper_and_portable() {
        assert_eq!(tier(Strategy::Auto, DType::BF16, cuda(80)), Tier::TensorCore);
        assert_eq!(tier(Strategy::Auto, DType::BF16, cuda(90)), Tier::Hopper);
        assert_eq!(tier(Strategy::TensorCore, DType::F16, cuda(90)), Tier::TensorCore);
        assert_eq!(tier(Strategy::Auto, DType::BF16, cuda(75)), Tier::Portable);
        assert_eq!(tier(Strategy::Auto, DType::F32, cuda(80)), Tier::Portable);
        let odd = of_dim(20);
        let of = |problem| {
            select(&problem, Strategy::Auto, DType::F16, cuda(90), Context::new()).expect("a tier")
        };
        assert_eq!(of(odd), Tier::TensorCore);
        assert_eq!(of(of_dim(300)), Tier::Portable);
    }

    #[test]
    fn f32_is_multiplied_in_tf32_only_where_that_is_allowed() {
        let allowed = Context::new().with_allow_tf32(true);
        let of = |strategy, dtype, device, context| {
            select(&problem(16), strategy, dtype, device, context)
        };
        for sm in [80, 90] {
            let auto = |dtype, context| of(Strategy::Auto, dtype, cuda(sm), context);
            assert_eq!(auto(DType::F32, Context::new()), Ok(Tier::Portable));
            assert_eq!(auto(DType::F32, allowed), Ok(Tier::TensorCore));
            assert_eq!(auto(DType::F64, allowed), Ok(Tier::Reference));
            assert_eq!(auto(DType::F16, allowed), auto(DType::F16, Context::new()));
        }
        assert_eq!(of(Strategy::Auto, DType::F32, CUBE, allowed), Ok(Tier::Portable));
        assert_eq!(of(Strategy::Auto, DType::F32, cuda(75), allowed), Ok(Tier::Portable));
        let named = |dtype, device, context| of(Strategy::TensorCore, dtype, device, context);
        assert_eq!(named(DType::F32, cuda(90), allowed), Ok(Tier::TensorCore));
        let text = |result: Result<Tier, AttentionError>| result.expect_err("refused").to_string();
        assert_eq!(
            text(named(DType::F32, cuda(80), Context::new())),
            "strategy: TensorCore cannot run here, its kernels round f32 to TF32 \
             (Context::with_allow_tf32 allows them)"
        );
        assert_eq!(
            text(named(DType::F64, cuda(80), allowed)),
            "strategy: TensorCore cannot run here, its kernels run in f16, bf16 and TF32"
        );
        // Cooperative matrices have none.
        let tensor_cores = TensorCores::cuda(80).map(|cores| cores.with_cmma([16, 16, 16]));
        let cooperative = CUBE.with_tensor_cores(tensor_cores);
        let experimental = allowed.with_allow_experimental(true, true);
        assert!(text(named(DType::F32, cooperative, experimental)).contains("have no TF32"));
    }

    #[test]
    fn what_has_never_run_is_asked_for() {
        let cooperative = TensorCores::cuda(80).map(|cores| cores.with_cmma([16, 16, 16]));
        let device = CUBE.with_tensor_cores(cooperative);
        let of = |strategy, context| select(&problem(16), strategy, DType::F16, device, context);
        let allowed = Context::new().with_allow_experimental(true, false);
        assert_eq!(of(Strategy::Auto, Context::new()), Ok(Tier::Portable));
        assert_eq!(of(Strategy::Auto, allowed), Ok(Tier::TensorCore));
        assert_eq!(of(Strategy::TensorCore, allowed), Ok(Tier::TensorCore));
        let error = of(Strategy::TensorCore, Context::new()).expect_err("not allowed");
        assert!(error.to_string().contains("Context::with_allow_experimental"), "{error}");
    }

    #[test]
    fn a_backward_pass_that_has_never_run_is_asked_for_by_itself() {
        let rungs = |cores: TensorCores, strategy, backward| {
            let context = Context::new().with_allow_experimental(true, backward);
            let device = CUBE.with_tensor_cores(Some(cores));
            let problem = problem(16);
            let request = Request { problem: &problem, dtype: DType::F16, device, context };
            let selection = selection(&request, strategy).expect("allowed");
            assert_eq!(selection.forward.first(), Tier::TensorCore);
            selection.backward.iter().collect::<Vec<_>>()
        };
        let mma = TensorCores::cuda(80).expect("Ampere");
        let cooperative = mma.with_cmma([8, 8, 8]);
        let all = [Tier::TensorCore, Tier::Portable, Tier::Reference];
        for is_allowed in [false, true] {
            assert_eq!(rungs(mma, Strategy::Auto, is_allowed), all);
            assert_eq!(rungs(mma, Strategy::TensorCore, is_allowed), all[..1]);
        }
        for strategy in [Strategy::Auto, Strategy::TensorCore] {
            assert_eq!(rungs(cooperative, strategy, false), all[1..]);
        }
        assert_eq!(rungs(cooperative, Strategy::TensorCore, true), all[..1]);
    }

    #[test]
    fn a_problem_with_an_operand_that_kernels_do_not_know_is_refused() {
        let without_tokens =
            |operand| !matches!(operand, Operand::AdditionalKey | Operand::AdditionalValue);
        let plain = problem(16);
        let with_tokens = plain.with_additional(3);
        assert_eq!(unknown(&plain, without_tokens), None);
        assert_eq!(unknown(&with_tokens, without_tokens), Some(Operand::AdditionalKey));
        for tier in Tier::ALL {
            assert_eq!(unknown(&with_tokens, |operand| tier.knows(operand)), None, "{tier}");
        }
    }

    #[test]
    fn a_strategy_of_two_tiers_is_refused_by_that_of_the_device() {
        let refused = || vec![(Tier::Flex, "flex".into()), (Tier::Portable, "portable".into())];
        assert_eq!(refusal(refused(), FLEX), "flex");
        assert_eq!(refusal(refused(), CUBE), "portable");
        let nothing = Capabilities { is_cube: false, ..CUBE };
        let error = select(&problem(16), Strategy::Portable, DType::F32, nothing, Context::new());
        assert_eq!(
            error.expect_err("no kernels").to_string(),
            "strategy: Portable cannot run here, it needs a Flex or a CubeCL device"
        );
    }

    #[test]
    fn auto_goes_down_tier_by_tier() {
        let of = |problem: &Problem, strategy| {
            let context = Context::new();
            let request = Request { problem, dtype: DType::BF16, device: cuda(90), context };
            selection(&request, strategy).expect("it runs")
        };
        let auto = of(&problem(16), Strategy::Auto);
        let rungs = [Tier::Hopper, Tier::TensorCore, Tier::Portable, Tier::Reference];
        assert_eq!(auto.forward.iter().collect::<Vec<_>>(), rungs);
        assert_eq!((auto.backward, auto.notes), (auto.forward, vec![]));
        // By name there is nothing below.
        let named = of(&problem(16), Strategy::Hopper);
        assert_eq!(named.forward.iter().collect::<Vec<_>>(), [Tier::Hopper]);
        // What a device has and a problem does without is worth a line, and only then.
        let odd = of_dim(20);
        let notes =
            ["using the TensorCore kernels, because head_dim is 20, not a multiple of 8 up to 256"];
        assert_eq!(of(&odd, Strategy::Auto).notes, notes);
        assert!(of(&odd, Strategy::Portable).notes.is_empty());
    }

    #[test]
    fn a_named_strategy_that_cannot_run_says_why() {
        let text = |tokens: usize, strategy, dtype, device| {
            select(&problem(tokens), strategy, dtype, device, Context::new())
                .expect_err("cannot run")
                .to_string()
        };
        assert_eq!(
            text(16, Strategy::Hopper, DType::BF16, FLEX),
            "strategy: Hopper cannot run here, it needs a GPU of compute capability 9.0, the \
             feature `cuda` and NVRTC"
        );
        assert_eq!(
            text(16, Strategy::Hopper, DType::F32, HOPPER),
            "strategy: Hopper cannot run here, its kernels run in f16 and bf16"
        );
        assert_eq!(
            text(16, Strategy::TensorCore, DType::BF16, CUBE),
            "strategy: TensorCore cannot run here, it needs matrix units that CubeCL gives access \
             to and planes of 32 units"
        );
        assert_eq!(
            text(16, Strategy::Blackwell, DType::BF16, HOPPER),
            "strategy: Blackwell cannot run here, this version has no kernels for it"
        );
        assert_eq!(
            text(16, Strategy::Portable, DType::F64, CUBE),
            "strategy: Portable cannot run here, its kernels have no f64"
        );
        assert_eq!(
            text(1 << 26, Strategy::Portable, DType::F32, CUBE),
            "strategy: Portable cannot run here, a tensor has more than 2^31 elements and the \
             device no 64-bit indices"
        );
    }
}
