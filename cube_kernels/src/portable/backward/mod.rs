//! Backward, without atomics: every gradient row is summed by the units that own it, in a fixed
//! order, so that results repeat bit by bit.
//!
//! With `delta = rowsum(dout * out) - dlse`, `p = exp(scale * q k - lse)` and
//! `ds = p * (dout v - delta)`:
//!
//! ```text
//! dq = scale * sum over keys of ds k        one unit per query row and slice
//! dk = scale * sum over queries of ds q     one unit per key row and slice,
//! dv =         sum over queries of p dout     over the queries and heads that see the key
//! ```
//!
//! `lse` and `delta` go into one workspace `[batch, queries, heads, 2]` of `f32`, because WGSL
//! allows a kernel 8 buffers. Additional keys are seen by every query: [`additional`] splits their
//! sums over chunks of queries.

mod additional;
mod delta;
mod gather;
mod key;
mod query;

use super::plan::Launch;
use super::{BackwardInputs, BackwardOutputs};

/// Launches every kernel of the backward pass.
pub(super) fn launch(launch: &Launch, inputs: &BackwardInputs, outputs: &BackwardOutputs) {
    let statistics = launch.client.empty((launch.query_rows() * 2 * size_of::<f32>()).max(1));
    if launch.query_rows() > 0 {
        delta::launch(launch, inputs, &statistics);
        query::launch(launch, inputs, &statistics, &outputs.dq);
    }
    if launch.key_rows() > 0 {
        key::launch(launch, inputs, &statistics, outputs);
    }
    if let (Some(tokens), Some(gradients)) = (&inputs.additional, &outputs.additional) {
        additional::launch(launch, inputs, tokens, &statistics, gradients);
    }
}
