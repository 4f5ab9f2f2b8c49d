use burn::tensor::{DType, Device};
use burn_natten_kernels::Problem;

use crate::backend::log_once;
use crate::backend::reference::keys_at_a_time;
use crate::options::AttentionOptions;
use crate::tier::{Request, selection};
use crate::{AttentionError, Capabilities, Context, Strategy, Tier};

/// A problem and how its products are going to be computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct UnfusedPlan {
    /// Of one kind of token: its keys and values have the same vectors.
    pub(crate) problem: Problem,
    /// What a hidden slot gets.
    pub(crate) hidden: f32,
    pub(crate) tier: Tier,
    pub(crate) strategy: Strategy,
    /// Slots that the Reference tier gathers at a time.
    pub(crate) slots_at_a_time: usize,
}

impl UnfusedPlan {
    /// Scores: a slot without a key is `-inf`.
    pub(crate) fn qk(
        problem: Problem,
        dtype: DType,
        device: &Device,
        options: &AttentionOptions,
    ) -> Result<Self, AttentionError> {
        Self::new(problem, f32::NEG_INFINITY, dtype, device, options)
    }

    /// Sums: the gradient of a slot without a value is zero.
    pub(crate) fn av(
        problem: Problem,
        dtype: DType,
        device: &Device,
        options: &AttentionOptions,
    ) -> Result<Self, AttentionError> {
        Self::new(problem, 0.0, dtype, device, options)
    }

    fn new(
        problem: Problem,
        hidden: f32,
        dtype: DType,
        device: &Device,
        options: &AttentionOptions,
    ) -> Result<Self, AttentionError> {
        let capabilities = Capabilities::of(device)
            .ok_or_else(|| AttentionError::UnsupportedBackend { device: format!("{device:?}") })?;
        let context = options.context.unwrap_or_else(Context::current);
        let request = Request { problem: &problem, dtype, device: capabilities, context };
        let tier = tier(&request, options.strategy)?;
        let slots_at_a_time = keys_at_a_time(&problem, context.memory());
        Ok(Self { problem, hidden, tier, strategy: options.strategy, slots_at_a_time })
    }

    /// Slots of a query, those of the additional tokens included.
    pub(crate) fn slots(&self) -> usize {
        self.problem.slots() + self.problem.additional
    }
}

/// The direct kernels of the device's own backend, or tensor operations: there are no others.
fn tier(request: &Request<'_>, strategy: Strategy) -> Result<Tier, AttentionError> {
    let first = |strategy| selection(request, strategy).map(|found| found.forward.first());
    match strategy {
        Strategy::Auto => Ok(first(Strategy::Portable).unwrap_or_else(|error| {
            log_once(format!("using tensor operations, because {error}"));
            Tier::Reference
        })),
        Strategy::Portable | Strategy::Reference => first(strategy),
        _ => {
            let reason = "the unfused operators have Portable and Reference".to_string();
            Err(AttentionError::Strategy { strategy, reason })
        }
    }
}
