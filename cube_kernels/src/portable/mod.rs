//! Kernels for any CubeCL runtime: CUDA, HIP, Metal, Vulkan, WGSL and the CPU.
//!
//! They use no plane operation, no atomics and at most 9 buffers, and hold their sums in `f32` registers.
//! There are two ways through a problem ([`Way`]). By rows, a unit owns a row, or up to 32 vectors of one, and
//! uses no shared memory: what CPUs, small windows and short sequences want. By tiles, a cube owns a box of
//! rows and takes the columns that any of them sees through shared memory. [`plan()`] and
//! [`plan_backward()`] choose from the problem and the [`Limits`] of a device.
//!
//! A relative position bias is added by tiles and by rows. Its gradient goes by rows alone, a unit to an offset and a
//! part of the queries, and is summed as everything here is, in a fixed order.
//!
//! Both go through the sequences of a packed batch in one launch, if it has neither additional tokens nor a bias.
//!
//! What a query does not see cannot reach it, NaN or not: by rows it is never loaded, and rows that tiles
//! leave with a number that is not finite are computed again by rows.
//!
//! Buffers are contiguous, laid out as [`Problem`](crate::Problem) says, and of element type `dtype` (f16, bf16 or
//! f32) except for logsumexp and its gradient, which are `f32`. They are passed as handles;
//! their lengths follow from the problem and are checked.
//!
//! Launches are asynchronous, and CubeCL reports a failed compilation or launch where results are
//! read or the stream is synchronised. Only what is known beforehand is a [`KernelError`](crate::KernelError).

#[cfg(feature = "cube")]
mod backward;
#[cfg(feature = "cube")]
mod bias;
#[cfg(feature = "cube")]
pub mod blocks;
#[cfg_attr(not(feature = "cube"), allow(dead_code))]
mod blueprint;
#[cfg(feature = "cube")]
mod forward;
#[cfg(feature = "cube")]
mod geometry;
#[cfg(feature = "cube")]
mod launch;
#[cfg(feature = "cuda")]
pub mod offline;
#[cfg(feature = "cube")]
pub(crate) mod plan;
#[cfg(feature = "cube")]
mod reduce;
#[cfg(feature = "cube")]
mod rows;
mod selection;
#[cfg(feature = "cube")]
mod tiled;
#[cfg(feature = "cube")]
pub mod unfused;

pub use blueprint::Blueprint;
#[cfg(feature = "cube")]
pub use launch::{
    backward, backward_packed, backward_with, forward, forward_packed, forward_with,
    has_wide_indices,
};
#[cfg(feature = "cube")]
pub(crate) use reduce::reduce_tiles;
pub use selection::{BackwardPlan, Limits, Way, candidates, estimate, plan, plan_backward};
