//! The unfused operators: their halves, gradients and slots on every device.

mod bias;
mod errors;
mod golden;
mod isolation;
mod oracle;
mod random;
mod relations;
pub(super) mod run;
mod views;
