//! Native sparse attention.

mod agreement;
mod cases;
mod causality;
mod compress;
mod decode;
#[cfg(all(feature = "cpu", feature = "cuda"))]
mod decode_launches;
mod edges;
mod errors;
mod golden;
mod gradients;
mod half;
mod layer;
mod oracle;
mod random;
