//! Backward over tiles: `p` and `ds` of a step in registers, and through shared memory to the sums.
//!
//! The pass of the queries sums `ds k` over keys, that of the keys `ds q` and `p dout` over queries. Both
//! need `q k` and `dout v`: seven products in all, no atomics, and nothing between the passes in memory.

mod keys;
mod queries;

pub(in super::super) use keys::launch as launch_keys;
pub(in super::super) use queries::launch as launch_queries;

use cubecl::prelude::*;

#[cfg(feature = "cuda")]
use super::super::blueprint::Blueprint;
use super::strides;
use crate::Problem;
#[cfg(feature = "cuda")]
use crate::tensor_core::Pass;
use crate::tiles::Strides;
#[cfg(feature = "cuda")]
use cubecl::ir::ElemType;

/// Strides of tensors of queries, of keys and of additional keys, the first and the second of each.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct AllStrides {
    query: Strides,
    dout: Strides,
    key: Strides,
    value: Strides,
    additional_key: Strides,
    additional_value: Strides,
}

fn all_strides(problem: &Problem, vector: usize) -> AllStridesLaunch {
    let queries = problem.axes.map(|axis| axis.queries);
    let keys = problem.axes.map(|axis| axis.keys);
    let additional = [1, 1, problem.additional];
    let (heads, heads_kv) = (problem.heads, problem.heads_kv);
    let (dim, dim_v) = (problem.head_dim, problem.head_dim_v);
    AllStridesLaunch::new(
        strides(queries, heads, dim, vector),
        strides(queries, heads, dim_v, vector),
        strides(keys, heads_kv, dim, vector),
        strides(keys, heads_kv, dim_v, vector),
        strides(additional, heads_kv, dim, vector),
        strides(additional, heads_kv, dim_v, vector),
    )
}

/// What a kernel is compiled for in place of [`all_strides`].
#[cfg(feature = "cuda")]
fn strides_compilation() -> AllStridesCompilationArg {
    let strides = crate::tiles::strides_compilation;
    AllStridesCompilationArg {
        query: strides(),
        dout: strides(),
        key: strides(),
        value: strides(),
        additional_key: strides(),
        additional_value: strides(),
    }
}

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
