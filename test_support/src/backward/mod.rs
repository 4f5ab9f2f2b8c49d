//! Tests of the backward pass that several tiers share.

pub mod edges;
pub mod isolation;
