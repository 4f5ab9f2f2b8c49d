//! Kernels for one vendor's one architecture, hand-written and compiled at run time.
//!
//! CUDA C++ with inline PTX and no headers, one source per schedule, specialised by macros. NVRTC
//! compiles a specialisation at its first use (`compile`), and it is enqueued on
//! CubeCL's own stream, or beside it, with CubeCL's own memory (`launch`), under either of CubeCL's CUDA compilers.
//!
//! What a kernel would do is decided without a device, by [`sm90::plan()`] and
//! [`sm100::plan()`], and the text of every
//! specialisation that it can choose is generated without one, too.

#[cfg(feature = "cuda")]
mod ampere;
#[cfg(feature = "cuda")]
mod backward;
#[cfg(feature = "cuda")]
mod bias;
mod blocks;
#[cfg(feature = "cuda")]
pub mod compile;
#[cfg(any(feature = "cuda", test))]
pub mod cublas;
mod cut;
#[cfg_attr(not(feature = "cuda"), allow(dead_code))]
pub mod decode;
mod delta;
#[cfg(feature = "cuda")]
mod divisor;
mod element;
#[cfg(feature = "cuda")]
mod forward;
#[cfg(feature = "cuda")]
mod grid;
#[cfg(feature = "cuda")]
mod launch;
mod limits;
mod macros;
#[cfg(feature = "cuda")]
mod packed;
#[cfg(feature = "cuda")]
mod runs;
mod slopes;
pub mod sm100;
pub mod sm90;
#[cfg(feature = "cuda")]
mod splits;
#[cfg(feature = "cuda")]
#[doc(hidden)]
pub mod stand_in;
mod statistics;
#[cfg(feature = "cuda")]
mod table;
pub mod unfused;
#[cfg(test)]
mod window_tests;

#[cfg(feature = "cuda")]
pub use compile::programs_loaded;
pub use cut::Cut;
pub(crate) use cut::MAX_STEP;
pub use element::Element;
#[cfg(feature = "cuda")]
pub use launch::{DeviceInfo, device_info};
pub use statistics::backward_workspace;
pub(crate) use statistics::dense;
