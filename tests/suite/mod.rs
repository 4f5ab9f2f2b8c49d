//! The tests, one module for each promise.

mod edges;
mod errors;
mod golden;
mod gradients;
mod isolation;
mod properties;
mod relations;
mod windows;
