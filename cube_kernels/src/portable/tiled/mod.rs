//! Tiles of keys in shared memory and tiles of scores in registers, for GPUs of any make.
//!
//! A cube owns a tile of rows of one head, an N-D box, and sweeps over the tiles of columns that any of its
//! rows sees, as [`tiling`](crate::tiling) cuts them. Rows are queries and columns keys; in the pass that gives
//! keys their gradients it is the other way round. The products of a step, rows with columns and weights
//! with columns, have their operands in shared memory and their results in registers (see [`products`]).
//!
//! Everything in shared memory is `f32`. There are no plane operations, and barriers are in control flow
//! that is the same for all units of a cube.
//!
//! A weight of zero does not keep out what is not finite. So rows whose results are not finite are
//! computed once more, by the kernels that take one row at a time and load nothing that it does not see.

mod backward;
mod bias;
mod forward;
mod mask;
mod products;
mod source;
mod staging;
mod tensor;

#[cfg(feature = "cuda")]
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::blueprint::Blueprint;
use super::plan::Launch;
use crate::cube::{self, Cubes, Cut, Extent};
use crate::tensor_core::Pass;
use crate::{KernelError, Problem};
pub(super) use backward::{launch_keys, launch_queries};
pub(super) use forward::launch as launch_forward;

impl Blueprint {
    /// How the kernel cuts a problem.
    pub(super) fn cut(&self) -> Cut {
        Cut {
            rank: self.rank,
            is_causal: self.is_causal,
            has_origin: self.has_origin,
            row_tile: self.row_tile(),
            column_tile: self.column_tile(),
            is_inverse: self.pass == Pass::Keys,
        }
    }
}

/// The cubes of a launch for a problem, or for all sequences, and their grid.
fn grid(
    launch: &Launch,
    problem: &Problem,
    blueprint: &Blueprint,
) -> Result<(Cubes, CubeCount, CubeDim), KernelError> {
    let extent = match launch.packed {
        Some((packed, _)) => Extent::Packed(packed),
        None => Extent::Problem(problem),
    };
    let cubes = Cubes::new(launch.client, extent, &blueprint.cut())?;
    let count = cube::grid(launch.client, cubes.count);
    Ok((cubes, count, CubeDim::new_1d(blueprint.units() as u32)))
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
        Pass::Forward => forward::definition(blueprint, dtype, settings, properties, target),
        _ => backward::definition(blueprint, dtype, settings, properties, target),
    }
}
