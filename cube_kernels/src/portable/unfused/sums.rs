//! A row for each query: the tokens in its slots, by their weights.
//!
//! A unit owns one vector of a row. Neighbors own neighboring vectors, read one weight and a token without gaps.

// `#[cube]` and `CubeLaunch` add items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;
use cubecl::server::Handle;

use super::super::geometry::{Geometry, geometry_as_is};
use super::super::plan::Launch;
use super::Tokens;
use super::launch::tokens_argument;
use crate::Strided;
use crate::cube::{Input, buffer, narrow_all};

#[derive(CubeType, CubeLaunch)]
struct Inputs<'a, F: Float, N: Size> {
    weights: &'a [F],
    space: Input<'a, F, N>,
    additional: Input<'a, F, N>,
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn sums_kernel<F: Float, N: Size>(
    inputs: &Inputs<'_, F, N>,
    rows: &mut [Vector<F, N>],
    geometry: Geometry,
    scale: f32,
    units: usize,
    #[comptime] lines: usize,
    #[comptime] has_additional: bool,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= units {
        terminate!();
    }
    let (row, line) = (ABSOLUTE_POS / lines, ABSOLUTE_POS % lines);
    let (head, token) = (row % geometry.heads, row / geometry.heads);
    let (batch, query) = (token / geometry.queries(), token % geometry.queries());
    let head_kv = head / geometry.group_size();
    let windows = geometry.windows(&geometry.query_position(query));
    let first_slot = row * geometry.slots();
    let strides = &inputs.space.strides;

    let mut sum = Vector::<f32, N>::new(0.0f32);
    for i in 0..windows.z.count {
        let z = windows.z.first + i * geometry.z.dilation;
        for j in 0..windows.y.count {
            let y = windows.y.first + j * geometry.y.dilation;
            let slot = (i * geometry.y.kernel_size + j) * geometry.x.kernel_size;
            let weight = first_slot + slot;
            let place = strides.vector(batch, z, y, windows.x.first, head_kv) + line;
            for k in 0..windows.x.count {
                let factor = Vector::new(f32::cast_from(inputs.weights[weight + k]));
                let vector = inputs.space.vectors[place + k * geometry.x.dilation * strides.x];
                sum += factor * Vector::<f32, N>::cast_from(vector);
            }
        }
    }
    if comptime!(has_additional) {
        let strides = &inputs.additional.strides;
        let weight = first_slot + geometry.window_slots();
        let zero = 0usize;
        let place = strides.vector(batch, zero, zero, zero, head_kv) + line;
        for k in 0..geometry.additional {
            let factor = Vector::new(f32::cast_from(inputs.weights[weight + k]));
            let vector = inputs.additional.vectors[place + k * strides.x];
            sum += factor * Vector::<f32, N>::cast_from(vector);
        }
    }
    rows[ABSOLUTE_POS] = narrow_all(sum * Vector::new(scale));
}

pub(super) fn launch(
    launch: &Launch<'_>,
    weights: &Handle,
    tokens: &Tokens<&Strided>,
    rows: &Handle,
) {
    let (problem, vector) = (launch.problem, launch.vector_size);
    let lines = problem.head_dim / vector;
    let units = launch.query_rows() * lines;
    let (cube_count, cube_dim) = launch.cubes(units);
    let [space, additional] = tokens_argument(tokens, weights);
    // SAFETY: every index is below the sizes that the buffers were checked against.
    unsafe {
        sums_kernel::launch_unchecked(
            launch.client,
            cube_count,
            cube_dim,
            launch.address_type,
            vector,
            InputsLaunch::new(
                buffer(weights),
                Input::argument(space, vector),
                Input::argument(additional, vector),
            ),
            buffer(rows),
            geometry_as_is(problem),
            problem.scale as f32,
            units,
            lines,
            problem.additional > 0,
            launch.dtype,
        );
    }
}
