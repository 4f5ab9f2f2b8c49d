//! The backward pass.

// The same for both tiers, each by its own `run`.
#[path = "../../native/backward/edges.rs"]
mod edges;
#[path = "../../native/backward/isolation.rs"]
mod isolation;
mod random;
pub mod run;
