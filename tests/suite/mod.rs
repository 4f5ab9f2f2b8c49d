//! The tests, one module for each promise.

mod bias;
mod block_sparse;
mod context;
mod edges;
mod errors;
mod golden;
mod gradients;
mod graphs;
mod half;
mod half_training;
mod isolation;
mod layers;
mod layouts;
mod measuring;
#[cfg(feature = "models")]
mod models;
mod natten_shapes;
mod nsa;
#[cfg(feature = "optim")]
mod optim;
mod packed;
mod parallel;
mod plan;
mod properties;
mod relations;
mod tokens;
mod unfused;
mod views;
mod windows;
