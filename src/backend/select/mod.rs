//! The lists of native sparse attention: scores of blocks, and the best of them; and the best of any scores.
//!
//! ```text
//! P[x]      sum over the heads of a group of softmax(scale q kc)[x] over the compressed blocks that a tile's first query sees
//! score[j]  sum over x of P[x] * (tokens of compressed block x in selection block j) / cmp_stride
//! list      the forced blocks, and of those before the query's the best, the lower number first among equals
//! ```
//!
//! An operator of its own, since scores of all queries and blocks are larger than anything else.

#[cfg(feature = "autodiff")]
mod autodiff;
mod extension;
mod mslk;
mod operands;
mod plan;
pub(crate) mod reference;
mod top;

pub(crate) use extension::{SelectOps, TopPlan};
pub(crate) use operands::{OptionalLists, Selected};
pub(crate) use plan::SelectPlan;
