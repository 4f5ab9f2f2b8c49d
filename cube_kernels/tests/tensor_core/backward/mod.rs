//! The backward pass.

mod edges;
mod isolation;
mod random;
mod run;
