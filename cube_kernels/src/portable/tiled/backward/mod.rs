//! Backward over tiles: `p` and `ds` of a step in registers, and through shared memory to the sums.
//!
//! The pass of the queries sums `ds k` over keys, that of the keys `ds q` and `p dout` over queries. Both
//! need `q k` and `dout v`: seven products in all, no atomics, and nothing between the passes in memory.

mod keys;
mod queries;

pub(in super::super) use keys::launch as launch_keys;
pub(in super::super) use queries::launch as launch_queries;

#[cfg(feature = "cuda")]
use cubecl::prelude::*;

#[cfg(feature = "cuda")]
use super::super::blueprint::Blueprint;
#[cfg(feature = "cuda")]
use crate::tensor_core::Pass;
#[cfg(feature = "cuda")]
use cubecl::ir::ElemType;

/// The kernel of a blueprint, to be compiled without a device.
#[cfg(feature = "cuda")]
pub(super) fn definition(
    blueprint: &Blueprint,
    dtype: ElemType,
    settings: cubecl::ir::settings::KernelSettings,
    properties: std::sync::Arc<cubecl::ir::DeviceProperties>,
    target: std::sync::Arc<TargetProperties>,
) -> KernelDefinition {
    match blueprint.pass {
        Pass::Keys => keys::definition(blueprint, dtype, settings, properties, target),
        _ => queries::definition(blueprint, dtype, settings, properties, target),
    }
}
