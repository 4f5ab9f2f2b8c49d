//! Steps of optimizers, one kernel for each parameter.

mod adamw;

pub use adamw::{AdamW, Tensors, adamw};
