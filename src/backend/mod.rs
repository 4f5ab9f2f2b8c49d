//! How each Burn backend computes the operators.

#[cfg(feature = "autodiff")]
mod autodiff;
#[cfg(feature = "cube")]
mod cube;
pub(crate) mod dispatch;
pub(crate) mod extension;
#[cfg(feature = "flex")]
mod flex;
pub(crate) mod merge;
pub(crate) mod reference;

pub(crate) use dispatch::Plan;
pub(crate) use extension::{AdditionalKv, AttentionBackwardOps, AttentionOps};
