//! Packed batches: sequences of different shapes in one call are as if each were alone.

mod alone;
mod batch;
mod errors;
mod random;
mod views;
