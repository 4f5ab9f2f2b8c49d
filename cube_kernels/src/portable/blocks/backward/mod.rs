//! Backward, without atomics: every gradient row is summed by the units that own it, in a fixed order, as
//! [`backward`](super::super::backward) does.

mod delta;
mod key;
mod query;

use cubecl::server::Handle;

use super::launch::Launching;
use crate::sparse::invert;
use crate::{KernelError, KeyValue, Operands, Saved, Strided};

/// Launches the kernels of the backward pass that write something. Those of `keys` write both.
pub(super) fn launch(
    launching: &Launching<'_>,
    inputs: &Saved<Strided>,
    lists: &Handle,
    outputs: &Operands<Option<Handle>>,
    keys: Option<&KeyValue<Handle>>,
) -> Result<(), KernelError> {
    let launch = &launching.launch;
    let keys = keys.filter(|_| launch.key_rows() > 0);
    let dq = outputs.query.as_ref().filter(|_| launch.query_rows() > 0);
    let inverse = match keys {
        Some(_) => Some(invert(launch.client, launching.sparse, lists)?),
        None => None,
    };
    if keys.is_none() && dq.is_none() {
        return Ok(());
    }
    let words = 2 * launch.query_rows();
    let statistics = launch.client.empty((words * size_of::<f32>()).max(4));
    if launch.query_rows() > 0 {
        delta::launch(launching, inputs, &statistics);
    }
    if let Some(dq) = dq {
        query::launch(launching, inputs, lists, &statistics, dq);
    }
    if let (Some(outputs), Some(inverse)) = (keys, &inverse) {
        key::launch(launching, inputs, inverse, &statistics, outputs);
    }
    Ok(())
}
