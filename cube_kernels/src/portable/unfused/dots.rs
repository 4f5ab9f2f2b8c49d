//! A weight for each slot: the dot product of a row and the token in the slot, and a bias.
//!
//! A unit owns the slots of a row along the fastest axis, which are neighbors in memory: where its window and its tokens are is worked out
//! once for all of them. Neighbors own the next slots of the row, and units nearby read the same tokens from the nearest cache. The
//! additional tokens of a row are one more such line.

// `#[cube]` and `CubeLaunch` add items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;
use cubecl::server::Handle;

use super::super::geometry::{Geometry, geometry_as_is};
use super::super::plan::{Launch, block_size};
use super::launch::{DotsInputs, tensor, tokens_argument};
use crate::cube::{Input, buffer, narrow};

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
    /// Tokens that are taken at once.
    block: usize,
    has_additional: bool,
    has_bias: bool,
}

/// Neighboring slots, their tokens, and the bias of the first.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Run {
    weight: usize,
    token: usize,
    /// Vectors from one token to the next.
    step: usize,
    count: usize,
    bias: usize,
    scale: f32,
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
    let lines = geometry.z.kernel_size * geometry.y.kernel_size;
    let mut per_row = lines;
    if comptime!(flags.has_additional) {
        per_row += 1;
    }
    let (row, line) = (ABSOLUTE_POS / per_row, ABSOLUTE_POS % per_row);
    let (head, token) = (row % geometry.heads, row / geometry.heads);
    let (batch, query) = (token / geometry.queries(), token % geometry.queries());
    let at = geometry.query_position(query);
    let head_kv = head / geometry.group_size();
    let weight = row * geometry.slots() + line * geometry.x.kernel_size;
    let fixed = inputs.rows.strides.vector(batch, at.z, at.y, at.x, head);

    let mut is_additional = false;
    if comptime!(flags.has_additional) {
        is_additional = line == lines;
    }
    if is_additional {
        if comptime!(flags.has_additional) {
            let strides = &inputs.additional.strides;
            let zero = 0usize;
            let token = strides.vector(batch, zero, zero, zero, head_kv);
            let count = geometry.additional;
            let run = Run { weight, token, step: strides.x, count, bias: zero, scale };
            let flags = comptime!(Flags { has_bias: false, ..flags });
            fill::<F, N>(inputs, inputs.additional.vectors, weights, fixed, run, flags);
        }
    } else {
        let windows = geometry.windows(&at);
        let (slot_z, slot_y) = (line / geometry.y.kernel_size, line % geometry.y.kernel_size);
        let mut count = 0usize;
        if slot_z < windows.z.count && slot_y < windows.y.count {
            count = windows.x.count;
            let z = windows.z.first + slot_z * geometry.z.dilation;
            let y = windows.y.first + slot_y * geometry.y.dilation;
            let strides = &inputs.space.strides;
            let token = strides.vector(batch, z, y, windows.x.first, head_kv);
            let step = geometry.x.dilation * strides.x;
            let mut bias = 0usize;
            if comptime!(flags.has_bias) {
                let along_z = geometry.z.offset(at.z, z);
                let along_y = geometry.y.offset(at.y, y);
                let line = (head * geometry.z.offsets() + along_z) * geometry.y.offsets() + along_y;
                bias = line * geometry.x.offsets() + geometry.x.offset(at.x, windows.x.first);
            }
            let run = Run { weight, token, step, count, bias, scale };
            fill::<F, N>(inputs, inputs.space.vectors, weights, fixed, run, flags);
        }
        for slot in count..geometry.x.kernel_size {
            weights[weight + slot] = F::cast_from(hidden);
        }
    }
}

/// Fills the slots of a run.
#[cube]
fn fill<F: Float, N: Size>(
    inputs: &Inputs<'_, F, N>,
    tokens: &[Vector<F, N>],
    weights: &mut [F],
    fixed: usize,
    run: Run,
    #[comptime] flags: Flags,
) {
    let block = comptime!(flags.block);
    let whole = run.count / block * block;
    for i in 0..run.count / block {
        fill_block::<F, N>(inputs, tokens, weights, fixed, run, i * block, block, flags);
    }
    for slot in whole..run.count {
        fill_block::<F, N>(inputs, tokens, weights, fixed, run, slot, 1usize, flags);
    }
}

#[cube]
fn fill_block<F: Float, N: Size>(
    inputs: &Inputs<'_, F, N>,
    tokens: &[Vector<F, N>],
    weights: &mut [F],
    fixed: usize,
    run: Run,
    slot: usize,
    #[comptime] block: usize,
    #[comptime] flags: Flags,
) {
    let mut sums = Array::<Vector<f32, N>>::new(block);
    #[unroll]
    for b in 0..block {
        sums[b] = Vector::new(0.0f32);
    }
    let first = run.token + slot * run.step;
    for line in 0..comptime!(flags.lines) {
        let factor = Vector::<f32, N>::cast_from(inputs.rows.vectors[fixed + line]);
        #[unroll]
        for b in 0..block {
            let token = tokens[first + b * run.step + line];
            sums[b] += factor * Vector::<f32, N>::cast_from(token);
        }
    }
    #[unroll]
    for b in 0..block {
        let mut weight = sums[b].vector_sum() * run.scale;
        if comptime!(flags.has_bias) {
            weight += f32::cast_from(inputs.bias[run.bias + slot + b]);
        }
        weights[run.weight + slot + b] = narrow::<F>(weight);
    }
}

pub(super) fn launch(launch: &Launch<'_>, inputs: &DotsInputs<'_>, hidden: f32, weights: &Handle) {
    let (problem, vector) = (launch.problem, launch.vector_size);
    let [z, y, x] = problem.slot_axes();
    let has_additional = problem.additional > 0;
    let units = launch.query_rows() * (z * y + usize::from(has_additional));
    let (cube_count, cube_dim) = launch.cubes(units);
    let [space, additional] = tokens_argument(&inputs.tokens, &inputs.rows.handle);
    let flags = Flags {
        lines: problem.head_dim / vector,
        block: block_size(x),
        has_additional,
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
