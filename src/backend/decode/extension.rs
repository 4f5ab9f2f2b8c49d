//! Decoding as an extension of Burn's backends.

use burn::backend::{Backend, backend_extension};

use super::{DecodeInputs, DecodePlan, DecodeResults};

/// The operator, which has no gradients.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
pub trait DecodeOps: Backend {
    /// All steps of one more token for each sequence.
    #[fusion(meta = meta::decode)]
    fn decode_attention(
        #[extension_type] inputs: DecodeInputs<Self>,
        plan: DecodePlan,
    ) -> DecodeResults<Self>;
}

/// What fusion must know of an output before it is computed.
#[cfg(feature = "fusion")]
mod meta {
    use burn::backend::fusion::custom::TensorSpec;
    use burn::tensor::DType;

    use super::DecodePlan;
    use crate::backend::accumulator;
    use crate::backend::decode::operands::{DecodeInputsMetadata, DecodeResultsMetadata};

    pub fn decode(inputs: &DecodeInputsMetadata, plan: &DecodePlan) -> DecodeResultsMetadata {
        let dtype = inputs.query.dtype;
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
