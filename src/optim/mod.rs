//! Optimizers whose step is one kernel for each parameter, and that train in half types.

mod adamw;

pub use adamw::{AdamW, AdamWConfig, AdamWState};
