//! The geometry of neighborhood attention and the CubeCL kernels that compute it.
//!
//! This crate knows nothing of Burn: it is handed buffers, shapes and a [`Problem`] that has
//! already been validated. [`window`] is the one place where the semantics of a window live; every
//! kernel and every CPU path calls it. [`tiling`] cuts a problem into tiles and counts them, and
//! [`cost`] says what that costs.
#![warn(missing_docs)]

mod blocks;
pub mod catalogue;
mod choices;
pub mod cost;
#[cfg(feature = "cube")]
mod cube;
#[cfg(feature = "cube")]
mod error;
pub mod native;
mod operands;
#[cfg(feature = "cube")]
pub mod optim;
mod packed;
mod pass;
pub mod portable;
mod problem;
pub mod slicing;
pub mod slots;
pub mod sparse;
pub mod tensor_core;
pub mod tiling;
pub mod tokens;
#[cfg(feature = "cube")]
mod view;
pub mod window;

pub use blocks::BlockSparse;
#[cfg(feature = "cube")]
pub use error::KernelError;
pub use operands::{KeyValue, Operand, Operands, Outputs, Saved, Shape};
pub use packed::{Packed, Sequence};
pub use pass::Pass;
pub use problem::{Axis, MAX_RANK, Problem};
#[cfg(feature = "cube")]
pub use view::Strided;

/// The README's code runs as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
