//! Backward, without atomics: every gradient row is summed by one cube, in a fixed order, so that results
//! repeat bit by bit.
//!
//! With `delta = rowsum(dout * out) - dlse`, `p = exp(scale * q k - lse)` and
//! `ds = p * (dout v - delta)`:
//!
//! ```text
//! dq = scale * sum over keys of ds k        a cube per tile of queries
//! dk = scale * sum over queries of ds q     a cube per tile of keys,
//! dv =         sum over queries of p dout     over the queries and heads that see them
//! dbias =      sum over queries of ds       by the cubes of dq, see `slopes.rs`
//! ```
//!
//! Both are one kernel that keeps rows, queries or keys, and sweeps over columns, the others: seven
//! products of tiles, where a kernel that adds up dq in memory has five. Tiles of columns pass through two
//! buffers in shared memory, so that the next is on its way while one is worked on. `lse` and `delta` go
//! into a workspace `[batch, queries, heads, 2]` of `f32`.

#![allow(clippy::too_many_arguments)]

mod arguments;
mod cooperative;
mod kernel;
mod pair;
mod part;
mod repair;
mod slopes;
mod statistics;
mod step;
mod store;
mod sweep;

#[cfg(feature = "cuda")]
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::blueprint::{Blueprint, Exponential, Instruction};
#[cfg(feature = "cuda")]
use super::geometry::Space;
use super::geometry::{InputPair, Launching, tensor};
use crate::Strided;
use crate::cube::{Cubes, Input, buffer, grid};
#[cfg(feature = "cuda")]
use arguments::{Inputs, Outputs};
use arguments::{InputsLaunch, OutputsLaunch};
use cooperative::cooperative_kernel;
use kernel::backward_kernel;
pub(super) use statistics::STATISTICS;
use statistics::statistics_kernel;

/// Units of a cube of the statistics' kernel.
const UNITS: u32 = 128;

/// Launches the kernel that makes the statistics of the queries.
pub(super) fn launch_statistics(
    on: &Launching<'_>,
    exponential: Exponential,
    vector: usize,
    [out, dout]: [&Strided; 2],
    [lse, dlse, results]: [&Handle; 3],
) {
    let problem = on.problem;
    let rows = problem.batch * problem.queries() * problem.heads;
    let [z, y, x] = problem.axes.map(|axis| axis.queries);
    // SAFETY: every index is below the sizes that the buffers were checked against.
    unsafe {
        statistics_kernel::launch_unchecked(
            on.client,
            grid(on.client, rows.div_ceil(UNITS as usize)),
            CubeDim::new_1d(UNITS),
            on.address_type,
            vector,
            statistics::InputsLaunch::new(
                Input::argument(tensor(out), vector),
                Input::argument(tensor(dout), vector),
                buffer(lse),
                buffer(dlse),
            ),
            buffer(results),
            statistics::ShapeLaunch::new(problem.heads, x, y, z, rows),
            exponential.factor(1.0),
            problem.head_dim_v / vector,
            on.dtype,
        );
    }
}

/// What a launch reads and writes. First vectors are queries and keys, second ones the output's gradient
/// and values.
pub(super) struct Tensors<'a> {
    pub rows: [&'a Strided; 2],
    pub columns: [&'a Strided; 2],
    pub additional: Option<[&'a Strided; 2]>,
    pub statistics: &'a Handle,
    pub bias: Option<&'a Strided>,
    pub gradients: [&'a Handle; 2],
    pub sums: Option<&'a Handle>,
}

/// Launches the kernel of a blueprint.
pub(super) fn launch(
    on: &Launching<'_>,
    blueprint: &Blueprint,
    cubes: Cubes,
    tensors: &Tensors<'_>,
) {
    // Empty buffers cannot be bound.
    let columns = if blueprint.has_keys { tensors.columns } else { tensors.rows };
    let more = tensors.additional.unwrap_or(tensors.rows);
    let (scale, vector) = (on.problem.scale, blueprint.vector);
    let bias = tensors.bias.filter(|_| blueprint.has_bias);
    let [first, second] = tensors.gradients;
    macro_rules! launch {
        ($kernel:path) => {
            $kernel(
                on.client,
                grid(on.client, cubes.count),
                CubeDim::new_1d(blueprint.units() as u32),
                on.address_type,
                vector,
                blueprint.vector_out(),
                cubes.space,
                InputsLaunch::new(
                    InputPair::argument(tensors.rows.map(tensor), vector),
                    InputPair::argument(columns.map(tensor), vector),
                    InputPair::argument(more.map(tensor), vector),
                    buffer(tensors.statistics),
                    bias.map(|bias| buffer(&bias.handle)).into(),
                    cubes.sequences.as_ref().map(buffer).into(),
                ),
                OutputsLaunch::new(buffer(first), buffer(second), tensors.sums.map(buffer).into()),
                blueprint.exponential.factor(scale),
                scale as f32,
                *blueprint,
                on.dtype,
            )
        };
    }
    // SAFETY: every index is below the sizes that the buffers were checked against.
    unsafe {
        match blueprint.instruction {
            Instruction::Mma | Instruction::Tf32 => launch!(backward_kernel::launch_unchecked),
            Instruction::Cmma(_) => launch!(cooperative_kernel::launch_unchecked),
        }
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
    macro_rules! define {
        ($kernel:path) => {{
            let kernel = $kernel(
                settings,
                properties,
                target,
                Space::compilation(&blueprint.cut()),
                Inputs::compilation(blueprint.has_bias, blueprint.is_packed),
                Outputs::compilation(blueprint.bias_sums > 0),
                (),
                (),
                blueprint.vector,
                blueprint.vector_out(),
                *blueprint,
                dtype,
            );
            kernel.define()
        }};
    }
    match blueprint.instruction {
        Instruction::Mma | Instruction::Tf32 => define!(backward_kernel::BackwardKernel::new),
        Instruction::Cmma(_) => define!(cooperative_kernel::CooperativeKernel::new),
    }
}
