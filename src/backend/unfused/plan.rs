use burn::tensor::{DType, Device};
use burn_natten_kernels::Problem;

use crate::backend::direct_or_composed;
use crate::backend::reference::keys_at_a_time;
use crate::options::AttentionOptions;
use crate::tier::Request;
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

fn tier(request: &Request<'_>, strategy: Strategy) -> Result<Tier, AttentionError> {
    const REFUSAL: &str = "the unfused operators have Portable and Reference";
    direct_or_composed(request, strategy, request.problem.weights(), REFUSAL)
}

#[cfg(test)]
mod tests {
    use burn_natten_kernels::Axis;

    use super::*;
    use crate::tier::TOO_LARGE;

    #[test]
    fn weights_that_kernels_cannot_index_are_an_error_before_anything_is_launched() {
        let side = Axis::neighborhood(256, 31);
        let of = |batch, device, strategy| {
            let problem = Problem::new([side, side], 8, 32).with_batch(batch);
            assert!(!problem.needs_wide_indices(), "its tensors are small beside the weights");
            let (dtype, context) = (DType::F32, Context::new());
            tier(&Request { problem: &problem, dtype, device, context }, strategy)
        };
        let narrow = Capabilities::cube();
        assert_eq!(of(4, narrow, Strategy::Portable), Ok(Tier::Portable));
        let error = of(5, narrow, Strategy::Portable).expect_err("2.5e9 weights");
        assert!(error.to_string().contains(TOO_LARGE), "{error}");
        assert_eq!(of(5, narrow, Strategy::Auto), Ok(Tier::Reference));
        let wide = narrow.with_wide_indices(true);
        assert_eq!(of(5, wide, Strategy::Portable), Ok(Tier::Portable));
        assert_eq!(of(5, Capabilities::flex(), Strategy::Portable), Ok(Tier::Flex));
    }
}
