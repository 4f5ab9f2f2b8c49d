//! Kernels on the matrix units that CubeCL gives access to.
//!
//! They multiply f16 or bf16, or f32 that is rounded to tf32 where [`Capability::with_tf32`] is asked for, and sum
//! in f32. A problem is cut into tiles of queries and of keys (see
//! [`tiling`](crate::tiling)), and a cube takes a tile of queries through the tiles of keys that any of its
//! queries sees. [`candidates`] has the tiles and shapes of cubes that fit a device, [`plan()`] the one that
//! runs; neither needs a device, only its [`Capability`].
//!
//! On NVIDIA GPUs of compute capability 8.0 and later fragments are held in registers, since it is known how
//! they are laid out there, tiles are copied asynchronously, and exponentials are one instruction. CubeCL's two
//! compilers for CUDA are told so in ways of their own, inline assembly and intrinsics; which of them it is
//! stands in the capability.
//!
//! Elsewhere (AMD, Vulkan, Apple) fragments are the runtime's. The kernels for those take scores and weights through shared
//! memory, and the forward one goes through the keys twice.
//!
//! The sequences of a packed batch are computed by one launch of each kernel: a cube finds in a table what it is of.
//!
//! Keys that a query does not see cannot reach it, whatever they hold: a row that does not come out finite
//! is computed again from its own window alone.

#[cfg(feature = "cube")]
mod backward;
#[cfg(feature = "cube")]
mod bias;
#[cfg_attr(not(feature = "cube"), allow(dead_code))]
mod blueprint;
mod capability;
#[cfg(feature = "cube")]
mod cooperative;
#[cfg(feature = "cube")]
mod forward;
#[cfg(feature = "cube")]
mod fragments;
#[cfg(feature = "cube")]
mod geometry;
#[cfg(feature = "cube")]
mod gradients;
#[cfg(feature = "cube")]
#[cfg_attr(not(feature = "cuda"), path = "plain.rs")]
mod intrinsics;
#[cfg(feature = "cube")]
mod launch;
#[cfg(feature = "cube")]
mod mask;
#[cfg(feature = "cube")]
mod meeting;
#[cfg_attr(not(feature = "cube"), allow(dead_code))]
mod near;
#[cfg(feature = "cuda")]
pub mod offline;
#[cfg(feature = "cube")]
mod packed;
mod plan;
#[cfg(feature = "cube")]
mod power;
#[cfg(feature = "cube")]
mod products;
#[cfg(feature = "cube")]
mod results;
#[cfg(feature = "cube")]
mod staging;
#[cfg(feature = "cube")]
mod tf32;
#[cfg(feature = "cube")]
mod tune;
#[cfg(feature = "cube")]
mod work;

pub use blueprint::{Blueprint, Compiler, Exponential, Instruction, Pass, Staging};
pub use capability::{Capability, Evidence};
#[cfg(feature = "cube")]
pub use gradients::{backward, backward_packed, backward_vector, backward_with};
#[cfg(feature = "cube")]
pub use launch::{forward, forward_packed, forward_with, vector};
#[cfg(feature = "cube")]
pub(crate) use packed::All;
#[cfg(feature = "cube")]
pub use packed::{plan_backward_packed, plan_packed};
pub use plan::{
    BackwardPlan, Choice, backward_candidates, candidates, estimate, plan, plan_backward,
    plan_tiled, unsupported, widest_vector,
};
