//! The operators as an extension of Burn's backends.

use burn::backend::{Backend, TensorMetadata, backend_extension, tensor::FloatTensor};
use burn_natten_kernels::{Operands, Outputs, Saved};

use super::{
    AttentionGradients, AttentionInputs, AttentionResults, Plan, WeighedResults, merge, packed,
    reference,
};

/// Forward operators.
#[backend_extension(
    Cube: cfg(feature = "cube"),
    Flex: cfg(feature = "flex"),
    Autodiff: cfg(feature = "autodiff"),
    Fusion: cfg(feature = "fusion"),
)]
pub trait AttentionOps: Backend {
    /// Attention over the windows of `plan`.
    #[fusion(meta = meta::forward)]
    fn attention_forward(
        #[extension_type] inputs: AttentionInputs<Self>,
        plan: Plan,
    ) -> AttentionResults<Self> {
        AttentionResults::new(match &plan.parts {
            Some(parts) => packed::forward::<Self>(inputs.operands(), parts),
            None => reference::forward::<Self>(inputs.operands(), &plan),
        })
    }

    /// The same where the results are weighed and summed up with others, by
    /// [`gate_weighed`](super::gate::GateOps::gate_weighed).
    #[fusion(meta = meta::forward_weighed)]
    fn attention_forward_weighed(
        #[extension_type] inputs: AttentionInputs<Self>,
        plan: Plan,
    ) -> WeighedResults<Self> {
        WeighedResults::new(Self::attention_forward(inputs, plan))
    }

    /// Merges `outs` `[parts, rows, head_dim]` by their `lses` `[parts, rows]`: `(out [rows,
    /// head_dim], lse [rows])`.
    #[fusion(meta = meta::merge)]
    fn merge_forward(
        outs: FloatTensor<Self>,
        lses: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        merge::forward::<Self>(outs, lses)
    }
}

/// Backward operators. They are asked of the inner backend only: first derivatives.
#[backend_extension(
    Cube: cfg(feature = "cube"),
    Flex: cfg(feature = "flex"),
    Fusion: cfg(feature = "fusion"),
)]
pub trait AttentionBackwardOps: Backend {
    /// Gradients of the inputs that are `wanted`, from the forward pass' inputs and results and the gradients of the latter, where `out`
    /// [counts](Saved::has_out) or does not.
    #[fusion(meta = meta::backward)]
    fn attention_backward(
        #[extension_type] inputs: AttentionInputs<Self>,
        #[extension_type] results: AttentionResults<Self>,
        #[extension_type] gradients: AttentionResults<Self>,
        has_out: bool,
        wanted: Operands<bool>,
        plan: Plan,
    ) -> AttentionGradients<Self> {
        let saved = saved(inputs, results, gradients, has_out);
        AttentionGradients::new(match &plan.parts {
            Some(parts) => packed::backward::<Self>(saved, wanted, parts),
            None => reference::backward::<Self>(saved, wanted, &plan),
        })
    }

    /// Gradients of `outs` and `lses`.
    #[fusion(meta = meta::merge_backward)]
    fn merge_backward(
        outs: FloatTensor<Self>,
        lses: FloatTensor<Self>,
        out: FloatTensor<Self>,
        lse: FloatTensor<Self>,
        grad_out: FloatTensor<Self>,
        grad_lse: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        merge::backward::<Self>(outs, lses, out, lse, grad_out, grad_lse)
    }
}

/// All that a backward pass reads; `out` [counts](Saved::has_out) or does not.
pub(crate) fn saved<B: Backend>(
    inputs: AttentionInputs<B>,
    results: AttentionResults<B>,
    gradients: AttentionResults<B>,
    has_out: bool,
) -> Saved<FloatTensor<B>> {
    Saved {
        has_out,
        operands: inputs.operands(),
        outputs: results.outputs(),
        gradients: gradients.outputs(),
    }
}

/// The same with zeros for an output that does not count.
pub(crate) fn with_out<B: Backend>(saved: Saved<FloatTensor<B>>) -> Saved<FloatTensor<B>> {
    if saved.has_out {
        return saved;
    }
    let Outputs { out: like, .. } = &saved.gradients;
    let out = B::float_zeros(like.shape(), &like.device(), like.dtype().into());
    Saved { outputs: Outputs { out, lse: saved.outputs.lse }, has_out: true, ..saved }
}

/// What fusion must know of an output before it is computed.
#[cfg(feature = "fusion")]
pub(crate) mod meta {
    use super::Plan;
    use crate::backend::accumulator;
    use crate::backend::operands::{
        AdditionalKvMetadata, AttentionGradientsMetadata, AttentionInputsMetadata,
        AttentionResultsMetadata, GradientMetadata, PositionBiasMetadata, WeighedMetadata,
        WeighedResultsMetadata,
    };
    use burn::backend::fusion::custom::TensorSpec;
    use burn::tensor::Shape;
    use burn_natten_kernels::Operands;

    pub fn forward(inputs: &AttentionInputsMetadata, _plan: &Plan) -> AttentionResultsMetadata {
        results(inputs)
    }

    /// Those of an attention to whatever keys.
    pub fn results(inputs: &AttentionInputsMetadata) -> AttentionResultsMetadata {
        let AttentionInputsMetadata { query, value, .. } = inputs;
        let rows = &query.shape.as_slice()[..query.shape.num_dims() - 1];
        let head_dim_v = value.shape[value.shape.num_dims() - 1];
        let out = Shape::from([rows, &[head_dim_v]].concat());
        AttentionResultsMetadata {
            out: TensorSpec::new(out, query.dtype),
            lse: TensorSpec::new(Shape::from(rows.to_vec()), accumulator(query.dtype)),
        }
    }

    pub fn forward_weighed(
        inputs: &AttentionInputsMetadata,
        _plan: &Plan,
    ) -> WeighedResultsMetadata {
        weighed(results(inputs))
    }

    /// Of an attention with such results.
    pub fn weighed(results: AttentionResultsMetadata) -> WeighedResultsMetadata {
        let AttentionResultsMetadata { out, lse } = &results;
        let weighed = WeighedMetadata { out: out.clone(), lse: lse.clone(), delta: lse.clone() };
        WeighedResultsMetadata { results, weighed }
    }

    pub fn backward(
        inputs: &AttentionInputsMetadata,
        _results: &AttentionResultsMetadata,
        _gradients: &AttentionResultsMetadata,
        _has_out: &bool,
        wanted: &Operands<bool>,
        _plan: &Plan,
    ) -> AttentionGradientsMetadata {
        gradients(inputs, wanted)
    }

    /// Those of an attention to whatever keys.
    pub fn gradients(
        inputs: &AttentionInputsMetadata,
        wanted: &Operands<bool>,
    ) -> AttentionGradientsMetadata {
        let of = |is_wanted: bool, like: &TensorSpec| match is_wanted {
            true => GradientMetadata::Of(like.clone()),
            false => GradientMetadata::Unwanted,
        };
        let AttentionInputsMetadata { query, key, value, additional, bias } = inputs;
        let (additional_key, additional_value) = match (additional, wanted.additional) {
            (AdditionalKvMetadata::Tokens { key, value }, Some(wanted)) => {
                (of(wanted.key, key), of(wanted.value, value))
            }
            _ => (GradientMetadata::Unwanted, GradientMetadata::Unwanted),
        };
        AttentionGradientsMetadata {
            query: of(wanted.query, query),
            key: of(wanted.key, key),
            value: of(wanted.value, value),
            additional_key,
            additional_value,
            bias: match (bias, wanted.bias) {
                (PositionBiasMetadata::Relative { bias }, Some(is_wanted)) => of(is_wanted, bias),
                _ => GradientMetadata::Unwanted,
            },
        }
    }

    pub fn merge(outs: &TensorSpec, lses: &TensorSpec) -> (TensorSpec, TensorSpec) {
        let first = |spec: &TensorSpec| {
            TensorSpec::new(Shape::from(spec.shape.as_slice()[1..].to_vec()), spec.dtype)
        };
        (first(outs), first(lses))
    }

    pub fn merge_backward(
        outs: &TensorSpec,
        lses: &TensorSpec,
        _out: &TensorSpec,
        _lse: &TensorSpec,
        _grad_out: &TensorSpec,
        _grad_lse: &TensorSpec,
    ) -> (TensorSpec, TensorSpec) {
        (outs.clone(), lses.clone())
    }
}
