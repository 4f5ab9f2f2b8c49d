//! Native sparse attention of one more token for each sequence of a batch, in three launches: on compute capability 8.0 and newer, in f16 and
//! bf16.
//!
//! ```text
//! decode_compressed   the new token's keys and values behind those that are there; scores of compressed blocks, and their sums, split over the chip
//! decode_select       the compressed branch, and the lists
//! decode_tokens       sums over the tokens of the lists and of the windows, split over the chip, and all outputs
//! ```
//!
//! Which CTA adds up what others have summed is a matter of time, in which order is not: results are the same at each run.

#[cfg(feature = "cuda")]
mod append;
#[cfg(feature = "cuda")]
mod launch;
mod plan;
mod source;

#[cfg(feature = "cuda")]
pub use super::ampere::is_available;
#[cfg(feature = "cuda")]
pub use append::{NewToken, Rest};
#[cfg(feature = "cuda")]
pub use launch::{Branches, Inputs, Outputs, decode, prepare};
pub use plan::{Decoding, Schedule};
