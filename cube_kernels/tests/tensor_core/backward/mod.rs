//! The backward pass.

mod edges;
mod isolation;
mod random;
pub mod run;
