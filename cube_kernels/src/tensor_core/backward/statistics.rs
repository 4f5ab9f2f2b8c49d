//! What the gradients need of each query besides its vectors.
//!
//! A unit owns one row; neighboring units own rows that are neighbors in memory.

// `#[cube]` and `CubeLaunch` add items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use crate::cube::Input;

/// Numbers of a query.
pub(in super::super) const STATISTICS: usize = 2;

/// What the kernel reads.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Inputs<'a, F: Float, N: Size> {
    pub out: Input<'a, F, N>,
    pub dout: Input<'a, F, N>,
    pub lse: &'a [f32],
    pub dlse: &'a [f32],
}

/// Rows in the order in which they are numbered.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Shape {
    pub heads: usize,
    pub x: usize,
    pub y: usize,
    pub z: usize,
    /// Rows of all samples.
    pub rows: usize,
}

/// `statistics = [factor * lse, rowsum(dout * out) - dlse]`.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn statistics_kernel<F: Float, N: Size>(
    inputs: &Inputs<'_, F, N>,
    statistics: &mut [f32],
    shape: Shape,
    factor: f32,
    #[comptime] lines: usize,
    #[define(F)] _dtype: ElemType,
) {
    let row = ABSOLUTE_POS;
    if row >= shape.rows {
        terminate!();
    }
    let head = row % shape.heads;
    let token = row / shape.heads;
    let line = token / shape.x;
    let (x, plane, y) = (token % shape.x, line / shape.y, line % shape.y);
    let (batch, z) = (plane / shape.z, plane % shape.z);
    let from = inputs.out.strides.vector(batch, z, y, x, head);
    let from_d = inputs.dout.strides.vector(batch, z, y, x, head);
    let mut sum = Vector::<f32, N>::new(0.0f32);
    for line in 0..lines {
        let out = Vector::<f32, N>::cast_from(inputs.out.vectors[from + line]);
        sum += out * Vector::<f32, N>::cast_from(inputs.dout.vectors[from_d + line]);
    }
    statistics[STATISTICS * row] = inputs.lse[row] * factor;
    statistics[STATISTICS * row + 1] = sum.vector_sum() - inputs.dlse[row];
}
