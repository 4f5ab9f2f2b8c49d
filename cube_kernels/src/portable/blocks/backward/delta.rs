//! The statistics of query rows that both other kernels of the backward pass read.
//!
//! A unit owns one row; neighboring units own rows that are neighbors in memory.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;
use cubecl::server::Handle;

use super::super::launch::Launching;
use super::super::space::{BlockSpace, space};
use crate::cube::{InputPair, buffer};
use crate::{Saved, Strided};

/// `statistics = [lse, rowsum(dout * out) - dlse]`, of the output and its gradient.
#[cube(launch_unchecked, address_type = "dynamic")]
fn blocks_delta_kernel<F: Float, N: Size>(
    outputs: &InputPair<'_, F, N>,
    lse: &[f32],
    dlse: &[f32],
    statistics: &mut [f32],
    space: BlockSpace,
    rows: usize,
    #[comptime] lines: usize,
    #[define(F)] _dtype: ElemType,
) {
    let row = ABSOLUTE_POS;
    if row >= rows {
        terminate!();
    }
    let (token, head) = (row / space.heads, row % space.heads);
    let (batch, at) = (token / space.queries(), space.query_place(token % space.queries()));
    let out = outputs.first.strides.vector(batch, at.z, at.y, at.x, head);
    let dout = outputs.second.strides.vector(batch, at.z, at.y, at.x, head);
    let mut sum = Vector::<f32, N>::new(0.0f32);
    for line in 0..lines {
        sum += Vector::<f32, N>::cast_from(outputs.first.vectors[out + line])
            * Vector::<f32, N>::cast_from(outputs.second.vectors[dout + line]);
    }
    statistics[2 * row] = lse[row];
    statistics[2 * row + 1] = sum.vector_sum() - dlse[row];
}

pub(super) fn launch(launching: &Launching<'_>, inputs: &Saved<Strided>, statistics: &Handle) {
    let launch = &launching.launch;
    let rows = launch.query_rows();
    let (cube_count, cube_dim) = launch.cubes(rows);
    let pair = [&inputs.outputs.out, &inputs.gradients.out];
    let pair = pair.map(|tensor| (&tensor.handle, tensor.strides));
    // SAFETY: every index is below the sizes that the buffers were checked against.
    unsafe {
        blocks_delta_kernel::launch_unchecked(
            launch.client,
            cube_count,
            cube_dim,
            launch.address_type,
            launch.vector_size,
            InputPair::argument(pair, launch.vector_size),
            buffer(&inputs.outputs.lse.handle),
            buffer(&inputs.gradients.lse.handle),
            buffer(statistics),
            space(launching.sparse),
            rows,
            launch.problem.head_dim_v / launch.vector_size,
            launch.dtype,
        );
    }
}
