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
//! dbias =      sum over queries of ds       one unit per head, offset and chunk of queries
//! ```
//!
//! A bias is added to `scale * q k`, and `dbias` sums over all samples. `lse` and `delta` go into one workspace
//! `[batch, queries, heads, 2]` of `f32`, with the bias behind them, because WGSL allows a kernel 8 buffers. Additional
//! keys are seen by every query: [`additional`] splits their sums over chunks of queries.

mod additional;
mod bias;
mod delta;
mod gather;
mod key;
mod query;

use cubecl::server::Handle;

use super::plan::Launch;
use super::{BackwardPlan, Way, tiled};
use crate::{KernelError, KeyValue, Operand, Operands, Saved};

/// Launches the kernels of the backward pass that write something. Those of `keys` write both.
pub(super) fn launch(
    launch: &Launch,
    plan: &BackwardPlan,
    inputs: &Saved<Handle>,
    outputs: &Operands<Option<Handle>>,
    keys: Option<&KeyValue<Handle>>,
) -> Result<(), KernelError> {
    let is_isolated = !launch.is_full();
    let biases =
        inputs.operands.bias.as_ref().map_or(0, |_| Operand::Bias.shape(launch.problem).elements());
    let words = 2 * launch.query_rows() + biases;
    let statistics = launch.client.empty((words * size_of::<f32>()).max(1));
    if let Some(bias) = &inputs.operands.bias {
        bias::widen(launch, bias, &statistics);
    }
    if launch.query_rows() > 0 {
        delta::launch(launch, inputs, &statistics);
    }
    if launch.query_rows() > 0
        && let Some(dq) = &outputs.query
    {
        if let Way::Tiles(blueprint) = &plan.queries {
            tiled::launch_queries(launch, blueprint, inputs, &statistics, dq)?;
        }
        if plan.queries == Way::Rows || is_isolated {
            query::launch(launch, inputs, &statistics, dq, plan.queries != Way::Rows);
        }
    }
    if launch.key_rows() > 0
        && let Some(outputs) = keys
    {
        if let Way::Tiles(blueprint) = &plan.keys {
            tiled::launch_keys(launch, blueprint, inputs, &statistics, outputs)?;
        }
        if plan.keys == Way::Rows || is_isolated {
            key::launch(launch, inputs, &statistics, outputs, plan.keys != Way::Rows);
        }
    }
    if let (Some(tokens), Some(gradients)) = (&inputs.operands.additional, &outputs.additional) {
        additional::launch(launch, inputs, tokens, &statistics, gradients);
    }
    if let Some(Some(dbias)) = &outputs.bias {
        bias::launch(launch, inputs, &statistics, dbias);
    }
    Ok(())
}
