//! The gradient of a relative position bias: for each head and offset, the sum of the weights in slots with this offset.
//!
//! A unit owns one entry and a chunk of the lines of queries along the fastest axis, of all samples; neighbors own neighboring offsets, and
//! read neighboring slots. The chunks are added up in order.

// `#[cube]` and `CubeLaunch` add items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;
use cubecl::server::Handle;

use super::super::geometry::{Geometry, geometry_as_is};
use super::super::plan::Launch;
use super::launch::is_strided;
use crate::cube::buffer;
use crate::portable::reduce::{self, Chunks};

/// Sums over chunks of lines, `[chunks, heads, *offsets]`.
#[cube(launch_unchecked, address_type = "dynamic")]
fn offsets_kernel<F: Float>(
    weights: &[F],
    partial: &mut [f32],
    geometry: Geometry,
    lines: usize,
    chunks: Chunks,
    #[comptime] is_strided: bool,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= chunks.units {
        terminate!();
    }
    let (place, first) =
        (ABSOLUTE_POS % chunks.results, ABSOLUTE_POS / chunks.results * chunks.chunk);
    let (head, offset) = (place / geometry.offsets(), place % geometry.offsets());
    let line = offset / geometry.x.offsets();
    let (along_z, along_y) = (line / geometry.y.offsets(), line % geometry.y.offsets());
    let along_x = offset % geometry.x.offsets();
    let end = min(first + chunks.chunk, lines);
    let slots = geometry.slots();

    let mut sum = 0.0f32;
    for line in first..end {
        let y = line % geometry.y.queries;
        let z = line / geometry.y.queries % geometry.z.queries;
        let slot_z = geometry.z.slot_of_offset(z, along_z, is_strided);
        let slot_y = geometry.y.slot_of_offset(y, along_y, is_strided);
        if slot_z < geometry.z.kernel_size && slot_y < geometry.y.kernel_size {
            let slot = (slot_z * geometry.y.kernel_size + slot_y) * geometry.x.kernel_size;
            for member in 0..geometry.x.dilation {
                let group = geometry.x.group(member, is_strided);
                for position in 0..group.length {
                    let slot_x = group.slot_of_offset(position, along_x);
                    if slot_x < geometry.x.kernel_size {
                        let x = position * geometry.x.dilation + member;
                        let row = (line * geometry.x.queries + x) * geometry.heads + head;
                        sum += f32::cast_from(weights[row * slots + slot + slot_x]);
                    }
                }
            }
        }
    }
    partial[ABSOLUTE_POS] = sum;
}

pub(super) fn launch(launch: &Launch<'_>, weights: &Handle, bias: &Handle) {
    let problem = launch.problem;
    let results = problem.heads * problem.bias_entries();
    let lines = problem.batch * problem.axes[0].queries * problem.axes[1].queries;
    let (argument, chunks) = reduce::chunks(results, lines);
    let partial = reduce::workspace(launch, results * chunks);
    let (cube_count, cube_dim) = launch.cubes(results * chunks);
    // SAFETY: every index is below the sizes that the buffers were checked against, or that the workspace was made with.
    unsafe {
        offsets_kernel::launch_unchecked(
            launch.client,
            cube_count,
            cube_dim,
            launch.address_type,
            buffer(weights),
            buffer(&partial),
            geometry_as_is(problem),
            lines,
            argument,
            is_strided(problem),
            launch.dtype,
        );
    }
    reduce::launch(launch, &partial, bias, [results, chunks], 1);
}
