//! A weight for each slot: the dot product of a row and the token in the slot, and a bias.
//!
//! A unit owns one weight. Neighbors own neighboring slots of one row, so that what they write is contiguous, the row is one broadcast, and
//! the tokens of windows that overlap come from the nearest cache.

// `#[cube]` and `CubeLaunch` add items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;
use cubecl::server::Handle;

use super::super::geometry::{Geometry, geometry_as_is};
use super::super::plan::Launch;
use super::launch::{DotsInputs, tensor, tokens_argument};
use crate::cube::{Input, buffer};

#[derive(CubeType, CubeLaunch)]
struct Inputs<'a, F: Float, N: Size> {
    rows: Input<'a, F, N>,
    space: Input<'a, F, N>,
    additional: Input<'a, F, N>,
    bias: &'a [F],
}

/// Compile-time parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Flags {
    /// Vectors of a row.
    lines: usize,
    has_additional: bool,
    has_bias: bool,
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn dots_kernel<F: Float, N: Size>(
    inputs: &Inputs<'_, F, N>,
    weights: &mut [F],
    geometry: Geometry,
    scale: f32,
    hidden: f32,
    units: usize,
    #[comptime] flags: Flags,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= units {
        terminate!();
    }
    let slots = geometry.slots();
    let (row, slot) = (ABSOLUTE_POS / slots, ABSOLUTE_POS % slots);
    let (head, token) = (row % geometry.heads, row / geometry.heads);
    let (batch, query) = (token / geometry.queries(), token % geometry.queries());
    let at = geometry.query_position(query);
    let head_kv = head / geometry.group_size();
    let strides = &inputs.rows.strides;
    let row = strides.vector(batch, at.z, at.y, at.x, head);

    let window_slots = geometry.window_slots();
    let mut is_additional = false;
    if comptime!(flags.has_additional) {
        is_additional = slot >= window_slots;
    }
    let mut weight = hidden;
    if is_additional {
        if comptime!(flags.has_additional) {
            let strides = &inputs.additional.strides;
            let zero = 0usize;
            let place = strides.vector(batch, zero, zero, slot - window_slots, head_kv);
            let tokens = inputs.additional.vectors;
            weight = dot::<F, N>(inputs.rows.vectors, row, tokens, place, flags) * scale;
        }
    } else {
        let windows = geometry.windows(&at);
        let line = slot / geometry.x.kernel_size;
        let (slot_z, slot_y) = (line / geometry.y.kernel_size, line % geometry.y.kernel_size);
        let slot_x = slot % geometry.x.kernel_size;
        if slot_z < windows.z.count && slot_y < windows.y.count && slot_x < windows.x.count {
            let z = windows.z.first + slot_z * geometry.z.dilation;
            let y = windows.y.first + slot_y * geometry.y.dilation;
            let x = windows.x.first + slot_x * geometry.x.dilation;
            let place = inputs.space.strides.vector(batch, z, y, x, head_kv);
            let tokens = inputs.space.vectors;
            weight = dot::<F, N>(inputs.rows.vectors, row, tokens, place, flags) * scale;
            if comptime!(flags.has_bias) {
                let along_z = geometry.z.offset(at.z, z);
                let along_y = geometry.y.offset(at.y, y);
                let along_x = geometry.x.offset(at.x, x);
                let line = (head * geometry.z.offsets() + along_z) * geometry.y.offsets() + along_y;
                weight += f32::cast_from(inputs.bias[line * geometry.x.offsets() + along_x]);
            }
        }
    }
    weights[ABSOLUTE_POS] = F::cast_from(weight);
}

#[cube]
fn dot<F: Float, N: Size>(
    rows: &[Vector<F, N>],
    row: usize,
    tokens: &[Vector<F, N>],
    token: usize,
    #[comptime] flags: Flags,
) -> f32 {
    let mut sum = Vector::<f32, N>::new(0.0f32);
    for line in 0..comptime!(flags.lines) {
        let factor = Vector::<f32, N>::cast_from(rows[row + line]);
        sum += factor * Vector::<f32, N>::cast_from(tokens[token + line]);
    }
    sum.vector_sum()
}

pub(super) fn launch(launch: &Launch<'_>, inputs: &DotsInputs<'_>, hidden: f32, weights: &Handle) {
    let (problem, vector) = (launch.problem, launch.vector_size);
    let units = launch.query_rows() * (problem.slots() + problem.additional);
    let (cube_count, cube_dim) = launch.cubes(units);
    let [space, additional] = tokens_argument(&inputs.tokens, &inputs.rows.handle);
    let flags = Flags {
        lines: problem.head_dim / vector,
        has_additional: problem.additional > 0,
        has_bias: inputs.bias.is_some(),
    };
    // SAFETY: every index is below the sizes that the buffers were checked against.
    unsafe {
        dots_kernel::launch_unchecked(
            launch.client,
            cube_count,
            cube_dim,
            launch.address_type,
            vector,
            InputsLaunch::new(
                Input::argument(tensor(inputs.rows), vector),
                Input::argument(space, vector),
                Input::argument(additional, vector),
                buffer(inputs.bias.unwrap_or(&inputs.rows.handle)),
            ),
            buffer(weights),
            geometry_as_is(problem),
            problem.scale as f32,
            hidden,
            units,
            flags,
            launch.dtype,
        );
    }
}
