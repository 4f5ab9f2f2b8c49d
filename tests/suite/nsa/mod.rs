//! Native sparse attention.

mod agreement;
mod cases;
mod causality;
mod decode;
mod edges;
mod errors;
mod golden;
mod gradients;
mod half;
mod layer;
mod oracle;
mod random;
