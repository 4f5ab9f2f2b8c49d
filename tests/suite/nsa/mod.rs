//! Native sparse attention.

mod cases;
mod causality;
mod decode;
mod edges;
mod errors;
mod golden;
mod gradients;
mod half;
mod layer;
mod random;
