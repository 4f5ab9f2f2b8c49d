//! The statistics of query rows that every other kernel of the backward pass reads.
//!
//! A unit owns one row; neighboring units own rows that are neighbors in memory.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;
use cubecl::server::Handle;

use super::super::plan::Launch;
use super::super::rows::{Rows, RowsLaunch};
use crate::Saved;
use crate::cube::buffer;

/// `statistics = [lse, rowsum(dout * out) - dlse]`, of the output and its gradient.
#[cube(launch_unchecked, address_type = "dynamic")]
fn delta_kernel<F: Float, N: Size>(
    outputs: &Rows<'_, F, N>,
    lse: &[f32],
    dlse: &[f32],
    statistics: &mut [f32],
    rows: usize,
    #[comptime] lines: usize,
    #[define(F)] _dtype: ElemType,
) {
    let row = ABSOLUTE_POS;
    if row >= rows {
        terminate!();
    }
    let mut sum = Vector::<f32, N>::new(0.0f32);
    for line in 0..lines {
        let at = row * lines + line;
        sum += Vector::<f32, N>::cast_from(outputs.first[at])
            * Vector::<f32, N>::cast_from(outputs.second[at]);
    }
    statistics[2 * row] = lse[row];
    statistics[2 * row + 1] = sum.vector_sum() - dlse[row];
}

pub(super) fn launch(launch: &Launch, inputs: &Saved<Handle>, statistics: &Handle) {
    let rows = launch.query_rows();
    let (cube_count, cube_dim) = launch.cubes(rows);
    // SAFETY: every index is below the sizes that the buffers were checked against.
    unsafe {
        delta_kernel::launch_unchecked(
            launch.client,
            cube_count,
            cube_dim,
            launch.address_type,
            launch.vector_size,
            RowsLaunch::new(buffer(&inputs.outputs.out), buffer(&inputs.gradients.out)),
            buffer(&inputs.outputs.lse),
            buffer(&inputs.gradients.lse),
            buffer(statistics),
            rows,
            launch.problem.head_dim_v / launch.vector_size,
            launch.dtype,
        );
    }
}
