//! The backward pass.

mod random;
mod run;
mod sample;
