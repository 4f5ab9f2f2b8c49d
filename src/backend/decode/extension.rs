//! Decoding as an extension of Burn's backends.

use burn::backend::{Backend, backend_extension};

use super::{AppendInputs, AppendPlan, AppendResults, DecodeInputs, DecodePlan, DecodeResults};

/// The operators, which have no gradients.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub trait DecodeOps: Backend {
    /// All steps of one more token for each sequence.
    #[fusion(meta = meta::decode)]
    fn decode_attention(
        #[extension_type] inputs: DecodeInputs<Self>,
        plan: DecodePlan,
    ) -> DecodeResults<Self>;

    /// The same of a token that is not in memory yet: it goes there, and where a compressed block is complete with it, the mean of its tokens.
    #[fusion(meta = meta::append)]
    fn decode_append(
        #[extension_type] inputs: AppendInputs<Self>,
        plan: AppendPlan,
    ) -> AppendResults<Self>;
}

/// What fusion must know of an output before it is computed.
#[cfg(feature = "fusion")]
mod meta {
    use burn::backend::fusion::custom::TensorSpec;
    use burn::tensor::DType;

    use super::{AppendPlan, DecodePlan};
    use crate::backend::accumulator;
    use crate::backend::decode::operands::{
        AppendInputsMetadata, AppendResultsMetadata, DecodeInputsMetadata, DecodeResultsMetadata,
    };

    pub fn decode(inputs: &DecodeInputsMetadata, plan: &DecodePlan) -> DecodeResultsMetadata {
        results(inputs.query.dtype, plan)
    }

    pub fn append(inputs: &AppendInputsMetadata, plan: &AppendPlan) -> AppendResultsMetadata {
        AppendResultsMetadata {
            results: results(inputs.query.dtype, &plan.decode),
            keys: inputs.keys.clone(),
            values: inputs.values.clone(),
        }
    }

    fn results(dtype: DType, plan: &DecodePlan) -> DecodeResultsMetadata {
        let out = || TensorSpec::new(plan.out(), dtype);
        let lse = || TensorSpec::new(plan.logsumexp(), accumulator(dtype));
        DecodeResultsMetadata {
            out: out(),
            compressed: out(),
            selected: out(),
            window: out(),
            compressed_logsumexp: lse(),
            selected_logsumexp: lse(),
            window_logsumexp: lse(),
            blocks: TensorSpec::new(plan.lists(), DType::from(plan.ints)),
        }
    }
}
