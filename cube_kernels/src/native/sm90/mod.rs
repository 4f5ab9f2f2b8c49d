//! Hopper (sm_90a): TMA, wgmma and warp-specialised pipelines, in f16 and bf16.
//!
//! Tiles of queries and keys are N-D boxes that TMA reads straight from heads-last memory, without
//! a permutation of tokens; see `cuda/forward.cu` and `cuda/backward.cu` for the kernels, [`Schedule`] for what it is
//! specialised by and [`plan()`] for the choice among schedules.

#[cfg(feature = "cuda")]
mod backward;
#[cfg(feature = "cuda")]
mod blocks;
#[cfg(feature = "cuda")]
mod forward;
#[cfg(feature = "cuda")]
mod inverse;
#[cfg(feature = "cuda")]
mod packed;
mod plan;
#[cfg(feature = "cuda")]
mod program;
mod schedule;
#[cfg(feature = "cuda")]
mod select;
mod selection;
mod source;
mod union;

pub use crate::native::statistics::backward_workspace;
#[cfg(feature = "cuda")]
pub use backward::{backward, backward_with, warm_up_backward};
#[cfg(feature = "cuda")]
pub use blocks::{
    backward_blocks, backward_blocks_with, backward_union, forward_blocks, forward_blocks_with,
    forward_union,
};
#[cfg(feature = "cuda")]
pub use forward::{forward, forward_with, is_available, warm_up};
#[cfg(feature = "cuda")]
pub use inverse::{Items, invert_lists};
#[cfg(feature = "cuda")]
pub use packed::{backward_packed, forward_packed, warm_up_packed};
pub use plan::{
    BackwardPlan, PackedPart, SLOPES_BYTES, Slopes, backward_candidates, block_candidates,
    candidates, estimate, plan, plan_backward, plan_backward_within, plan_tiled, planned,
    planned_backward, planned_blocks, planned_blocks_backward, planned_packed,
    planned_packed_backward, unsupported, unsupported_blocks,
};
pub use schedule::{Element, Gradients, Listed, Mask, Pass, Schedule};
#[cfg(feature = "cuda")]
pub use select::select_blocks;
pub use selection::SelectSchedule;
pub use source::{ARCHITECTURE, OPTIONS, delta_source, inverse_source, lists_source};
pub use union::{Union, UnionKernel};
