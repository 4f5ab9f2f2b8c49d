//! The products as an extension of Burn's backends.

use burn::backend::{Backend, backend_extension, tensor::FloatTensor};

use super::{Optional, Tokens, UnfusedPlan, reference};

/// What the operators are: differentiable.
#[backend_extension(
    Cube: cfg(feature = "cube"),
    Flex: cfg(feature = "flex"),
    Autodiff: cfg(feature = "autodiff"),
    Fusion: cfg(feature = "fusion"),
)]
pub trait UnfusedOps: Backend {
    /// Weights `[batch, *space, heads, slots]` of rows `[batch, *space, heads, dim]`, with a bias `[heads, *offsets]` or without.
    #[fusion(meta = meta::dots)]
    fn unfused_dots(
        rows: FloatTensor<Self>,
        #[extension_type] tokens: Tokens<Self>,
        #[extension_type] bias: Optional<Self>,
        plan: UnfusedPlan,
    ) -> FloatTensor<Self> {
        reference::dots::<Self>(rows, tokens, bias.into_option(), &plan)
    }

    /// Rows `[batch, *space, heads, dim]` of weights `[batch, *space, heads, slots]`.
    #[fusion(meta = meta::sums)]
    fn unfused_sums(
        weights: FloatTensor<Self>,
        #[extension_type] tokens: Tokens<Self>,
        plan: UnfusedPlan,
    ) -> FloatTensor<Self> {
        reference::sums::<Self>(weights, tokens, &plan)
    }
}

/// What only gradients need. Asked of the inner backend only: first derivatives.
#[backend_extension(
    Cube: cfg(feature = "cube"),
    Flex: cfg(feature = "flex"),
    Fusion: cfg(feature = "fusion"),
)]
pub trait UnfusedGradientOps: Backend {
    /// Tokens of weights and rows.
    #[fusion(meta = meta::spread)]
    fn unfused_spread(
        weights: FloatTensor<Self>,
        rows: FloatTensor<Self>,
        plan: UnfusedPlan,
    ) -> Tokens<Self> {
        reference::spread::<Self>(weights, rows, &plan)
    }

    /// The bias, of the shape of `like`, of weights.
    #[fusion(meta = meta::offsets)]
    fn unfused_offsets(
        weights: FloatTensor<Self>,
        like: FloatTensor<Self>,
        plan: UnfusedPlan,
    ) -> FloatTensor<Self> {
        reference::offsets::<Self>(weights, like, &plan)
    }
}

/// What fusion must know of an output before it is computed.
#[cfg(feature = "fusion")]
mod meta {
    use burn::backend::fusion::custom::TensorSpec;
    use burn::tensor::Shape;

    use super::UnfusedPlan;
    use crate::backend::unfused::operands::{OptionalMetadata, TokensMetadata};
    use crate::backend::unfused::{additional_shape, space_shape, with_last};

    pub fn dots(
        rows: &TensorSpec,
        _tokens: &TokensMetadata,
        _bias: &OptionalMetadata,
        plan: &UnfusedPlan,
    ) -> TensorSpec {
        TensorSpec::new(with_last(&rows.shape, plan.slots()), rows.dtype)
    }

    pub fn sums(weights: &TensorSpec, _tokens: &TokensMetadata, plan: &UnfusedPlan) -> TensorSpec {
        TensorSpec::new(with_last(&weights.shape, plan.problem.head_dim), weights.dtype)
    }

    pub fn spread(weights: &TensorSpec, rows: &TensorSpec, plan: &UnfusedPlan) -> TokensMetadata {
        let spec = |shape: Shape| TensorSpec::new(shape, weights.dtype);
        let additional = match additional_shape(&plan.problem) {
            Some(shape) => OptionalMetadata::Some { tensor: spec(shape) },
            None => OptionalMetadata::None,
        };
        TokensMetadata { space: spec(space_shape(&rows.shape, &plan.problem)), additional }
    }

    pub fn offsets(_weights: &TensorSpec, like: &TensorSpec, _plan: &UnfusedPlan) -> TensorSpec {
        like.clone()
    }
}
