//! Blackwell (sm_100a, sm_103a): TMA, tensor memory and products that one thread issues, in f16 and bf16.
//!
//! Tiles of queries and keys are N-D boxes of 128 that TMA reads straight from heads-last memory; see `cuda/forward.cu` and
//! `cuda/backward.cu` for the kernels, [`Schedule`] for what they are specialised by and [`plan()`] for the choice among schedules.
//!
//! The kernels have never run on such a GPU. They compile without spills, and run right on a model of the machine. So their first use on a
//! device compares a small problem with the Portable kernels ([`check`]).

mod architecture;
#[cfg(feature = "cuda")]
mod backward;
#[cfg(feature = "cuda")]
pub mod check;
#[cfg(feature = "cuda")]
mod forward;
mod plan;
#[cfg(feature = "cuda")]
mod program;
mod schedule;
mod source;

pub use architecture::Architecture;
#[cfg(feature = "cuda")]
pub use backward::{backward, backward_with, warm_up_backward};
#[cfg(feature = "cuda")]
pub use forward::{forward, forward_with, is_available, warm_up};
pub use plan::{
    BackwardPlan, backward_candidates, candidates, estimate, plan, plan_backward, planned,
    planned_backward, unsupported,
};
pub use schedule::Schedule;
pub use source::delta_source;
