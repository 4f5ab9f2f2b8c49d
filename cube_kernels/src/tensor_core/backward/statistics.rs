//! What the gradients need of each query besides its vectors.
//!
//! A unit owns one row; neighboring units own rows that are neighbors in memory.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs, clippy::too_many_arguments)]

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use crate::cube::Input;

/// Numbers of a query.
pub(in super::super) const STATISTICS: usize = 2;

/// `statistics = [factor * lse, rowsum(dout * out) - dlse]`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn statistics_kernel<F: Float, N: Size>(
    out: &Input<'_, F, N>,
    dout: &Input<'_, F, N>,
    lse: &[f32],
    dlse: &[f32],
    statistics: &mut [f32],
    heads: usize,
    x: usize,
    y: usize,
    z: usize,
    rows: usize,
    factor: f32,
    #[comptime] lines: usize,
    #[define(F)] _dtype: ElemType,
) {
    let row = ABSOLUTE_POS;
    if row >= rows {
        terminate!();
    }
    let head = row % heads;
    let token = row / heads;
    let line = token / x;
    let plane = line / y;
    let from = out.strides.vector(plane / z, plane % z, line % y, token % x, head);
    let from_d = dout.strides.vector(plane / z, plane % z, line % y, token % x, head);
    let mut sum = Vector::<f32, N>::new(0.0f32);
    for line in 0..lines {
        let factor = Vector::<f32, N>::cast_from(out.vectors[from + line]);
        sum += factor * Vector::<f32, N>::cast_from(dout.vectors[from_d + line]);
    }
    statistics[STATISTICS * row] = lse[row] * factor;
    statistics[STATISTICS * row + 1] = sum.vector_sum() - dlse[row];
}
