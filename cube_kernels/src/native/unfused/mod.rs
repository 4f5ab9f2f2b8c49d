//! The products of the unfused operators on tensor cores, of any NVIDIA GPU from Ampere (sm_80) on, in f16 and bf16.
//!
//! What they are, and what they are handed, is said at [`portable::unfused`](crate::portable::unfused), whose kernels compute what these do
//! not: [`Schedule::plan`] decides it without a device. Instructions are what a product with a weight to each slot costs, not bytes and
//! not sums: here a warp multiplies 16 tokens by all of their counterparts at once, and works on a weight only to move it between its slot
//! and its place in a matrix. See `cuda/tile.cuh`.

#[cfg(feature = "cuda")]
mod launch;
mod plan;
mod source;

#[cfg(feature = "cuda")]
pub use super::ampere::is_available;
#[cfg(feature = "cuda")]
pub use launch::{dots, spread, sums};
pub use plan::{Product, Schedule};
