//! Block-sparse attention: blocks of queries see the blocks of keys that their lists name.
//!
//! An operator of its own beside the windows: it has integers among its inputs, and walks lists where those walk windows.

#[cfg(feature = "autodiff")]
mod autodiff;
mod extension;
mod plan;
pub(crate) mod reference;

pub(crate) use extension::{BlockSparseBackwardOps, BlockSparseOps};
pub(crate) use plan::BlockSparsePlan;

use super::{AttentionGradients, AttentionResults};
