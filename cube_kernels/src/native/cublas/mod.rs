//! Linear layers by cuBLASLt, NVIDIA's library of matrix products, where it is installed.
//!
//! Its kernels are compiled and tuned beforehand: no product is measured or compiled at its first use, and each is near the
//! rate of the tensor cores. A call takes its place on CubeCL's own stream, with CubeCL's own memory. Results repeat bit by bit: what is
//! summed in several parts is summed in order, in f32.

#[cfg(feature = "cuda")]
mod call;
mod product;

#[cfg(feature = "cuda")]
pub use call::{Linear, is_available};
#[cfg(feature = "cuda")]
use product::Product;
