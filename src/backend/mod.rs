//! How each Burn backend computes the operators.

#[cfg(feature = "autodiff")]
mod autodiff;
pub(crate) mod block_sparse;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "cuda")]
pub(crate) mod decode;
pub(crate) mod exchange;
pub(crate) mod extension;
#[cfg(feature = "flex")]
mod flex;
pub(crate) mod gate;
mod log;
pub(crate) mod means;
pub(crate) mod merge;
mod operands;
#[cfg(feature = "optim")]
pub(crate) mod optim;
mod packed;
mod plan;
pub(crate) mod reference;
pub(crate) mod rows;
pub(crate) mod select;
#[cfg(all(test, feature = "flex"))]
mod tests;
pub(crate) mod tokens;
pub(crate) mod unfused;

#[cfg(feature = "cuda")]
pub(crate) use cube::{is_ready_to_decode, warm_up_blackwell, warm_up_hopper};
pub(crate) use extension::{AttentionBackwardOps, AttentionOps};
pub(crate) use log::{FALLBACKS, log_once};
pub(crate) use operands::Gradient;
pub(crate) use operands::{
    AttentionGradients, AttentionInputs, AttentionResults, Weighed, WeighedResults,
};
pub(crate) use packed::Part;
#[cfg(feature = "cuda")]
pub(crate) use plan::element;
pub(crate) use plan::{Plan, accumulator, direct_or_composed, wide};
