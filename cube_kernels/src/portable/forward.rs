//! Forward: streaming softmax over the keys of a row.
//!
//! A unit owns one query row and one slice of its output; units next to each other own queries
//! next to each other, which share most of their keys (all of them in dense attention, where a
//! load is one broadcast). Units of other slices compute the same scores again: that costs
//! arithmetic but neither shared memory nor a barrier. Memory of a unit: the slice, as `f32`, plus
//! the scores of a block of keys.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs, clippy::too_many_arguments)]

use cubecl::prelude::*;
use cubecl::server::Handle;

use super::geometry::{Geometry, Run, geometry, owned};
use super::plan::{Launch, RowPlan, additional_or};
use super::rows::{accumulate, dots, is_spoiled, rescale, store, zeros};
use crate::cube::buffer;
use crate::slicing::FORWARD_LINES;
use crate::{Operands, Outputs};

/// Index into the running statistics of a row: the largest score so far.
const MAXIMUM: usize = 0;
/// Index into the running statistics of a row: the sum of exponentials relative to the maximum.
const SUM: usize = 1;

#[cube(launch_unchecked, address_type = "dynamic")]
fn forward_kernel<F: Float, N: Size>(
    query: &[Vector<F, N>],
    key: &[Vector<F, N>],
    value: &[Vector<F, N>],
    additional_key: &[Vector<F, N>],
    additional_value: &[Vector<F, N>],
    out: &mut [Vector<F, N>],
    lse: &mut [f32],
    geometry: Geometry,
    scale: f32,
    units: usize,
    #[comptime] plan: RowPlan,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= units {
        terminate!();
    }
    let slices = comptime!(plan.value.slices);
    let own = owned(ABSOLUTE_POS, geometry.queries(), geometry.heads, slices);
    if comptime!(plan.repairs) {
        let (slicing, size) = comptime!((plan.value, plan.vector));
        if !is_spoiled::<F, N>(&*out, own.row, own.slice, slicing, size) {
            terminate!();
        }
    }
    let head_kv = own.head / geometry.group_size();

    let mut sums = zeros::<N>(comptime!(plan.value));
    let mut statistics = Array::<f32>::new(2usize);
    // The least finite number: below every finite score, and WGSL has no literal for infinity.
    statistics[MAXIMUM] = f32::min_value();
    statistics[SUM] = 0.0;
    let mut seen = 0usize;

    if comptime!(plan.has_keys) {
        let position = geometry.query_position(own.token);
        let along_z = geometry.z.window(position.z);
        let along_y = geometry.y.window(position.y);
        let along_x = geometry.x.window(position.x);
        seen = along_z.count * along_y.count * along_x.count;
        for i in 0..along_z.count {
            let z = along_z.first + i * geometry.z.dilation;
            for j in 0..along_y.count {
                let y = along_y.first + j * geometry.y.dilation;
                let run = geometry.key_run(own.batch, head_kv, z, y, along_x);
                attend::<F, N>(
                    &mut sums,
                    &mut statistics,
                    query,
                    own.row,
                    key,
                    value,
                    run,
                    own.slice,
                    scale,
                    plan,
                );
            }
        }
    }
    if comptime!(plan.has_additional) {
        let run = geometry.additional_run(own.batch, head_kv);
        seen += run.count;
        attend::<F, N>(
            &mut sums,
            &mut statistics,
            query,
            own.row,
            additional_key,
            additional_value,
            run,
            own.slice,
            scale,
            plan,
        );
    }

    // A sum of 0 is not enough to tell that the row sees nothing: scores of -inf have it, too.
    let inverse = select(seen == 0, 0.0f32, 1.0 / statistics[SUM]);
    store::<F, N>(&sums, inverse, out, own.row, own.slice, comptime!(plan.value));
    if own.slice == 0 {
        lse[own.row] = statistics[MAXIMUM] + statistics[SUM].ln();
    }
}

/// Takes the keys of `run` into the softmax of a row.
#[cube]
fn attend<F: Float, N: Size>(
    sums: &mut Array<Vector<f32, N>>,
    statistics: &mut Array<f32>,
    query: &[Vector<F, N>],
    query_row: usize,
    key: &[Vector<F, N>],
    value: &[Vector<F, N>],
    run: Run,
    slice: usize,
    scale: f32,
    #[comptime] plan: RowPlan,
) {
    let block = comptime!(plan.block);
    let whole = run.count / block;
    for i in 0..whole {
        let row = run.row + i * block * run.step;
        attend_block::<F, N>(
            sums, statistics, query, query_row, key, value, row, run.step, slice, scale, plan,
            block,
        );
    }
    for i in whole * block..run.count {
        let row = run.row + i * run.step;
        attend_block::<F, N>(
            sums, statistics, query, query_row, key, value, row, run.step, slice, scale, plan,
            1usize,
        );
    }
}

#[cube]
fn attend_block<F: Float, N: Size>(
    sums: &mut Array<Vector<f32, N>>,
    statistics: &mut Array<f32>,
    query: &[Vector<F, N>],
    query_row: usize,
    key: &[Vector<F, N>],
    value: &[Vector<F, N>],
    row: usize,
    step: usize,
    slice: usize,
    scale: f32,
    #[comptime] plan: RowPlan,
    #[comptime] block: usize,
) {
    let lines = comptime!(plan.key.lines);
    let mut weights = dots::<F, N>(query, query_row, key, row, step, lines, block);
    let before = statistics[MAXIMUM];
    let mut maximum = before;
    #[unroll]
    for b in 0..block {
        weights[b] *= scale;
        maximum = max(maximum, weights[b]);
    }
    let decay = (before - maximum).exp();
    let mut sum = statistics[SUM] * decay;
    #[unroll]
    for b in 0..block {
        weights[b] = (weights[b] - maximum).exp();
        sum += weights[b];
    }
    statistics[MAXIMUM] = maximum;
    statistics[SUM] = sum;
    rescale::<N>(sums, decay, comptime!(plan.value));
    accumulate::<F, N>(sums, &weights, value, row, step, slice, comptime!(plan.value), block);
}

/// Launches the forward pass, or with `repairs` for those slices of rows that are there but not finite.
pub(super) fn launch(
    launch: &Launch,
    inputs: &Operands<Handle>,
    outputs: &Outputs<Handle>,
    repairs: bool,
) {
    let problem = launch.problem;
    let plan = launch.value_plan(FORWARD_LINES).repairing(repairs);
    let units = launch.query_rows() * plan.value.slices;
    let (cube_count, cube_dim) = launch.cubes(units);
    let [key, value] = launch.keys_or(&inputs.query, [&inputs.key, &inputs.value]);
    let [additional_key, additional_value] =
        additional_or(&inputs.query, inputs.additional.as_ref());
    // SAFETY: every index is below the sizes that the buffers were checked against.
    unsafe {
        forward_kernel::launch_unchecked(
            launch.client,
            cube_count,
            cube_dim,
            launch.address_type,
            launch.vector_size,
            buffer(&inputs.query),
            buffer(key),
            buffer(value),
            buffer(additional_key),
            buffer(additional_value),
            buffer(&outputs.out),
            buffer(&outputs.lse),
            geometry(problem),
            problem.scale as f32,
            units,
            plan,
            launch.dtype,
        );
    }
}
