//! dq: the walk of the forward pass, once more.
//!
//! A unit owns one query row and one slice of its gradient. Both products, `q k` and `dout v`, run
//! over whole rows, so that units of other slices compute them again.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs, clippy::too_many_arguments)]

use cubecl::prelude::*;
use cubecl::server::Handle;

use super::super::geometry::{Geometry, Run, geometry, owned};
use super::super::plan::{Launch, RowPlan, additional_or};
use super::super::rows::{accumulate, dots, is_spoiled, store, zeros};
use crate::Saved;
use crate::cube::buffer;
use crate::slicing::FORWARD_LINES;

#[cube(launch_unchecked, address_type = "dynamic")]
fn query_kernel<F: Float, N: Size>(
    query: &[Vector<F, N>],
    key: &[Vector<F, N>],
    value: &[Vector<F, N>],
    additional_key: &[Vector<F, N>],
    additional_value: &[Vector<F, N>],
    dout: &[Vector<F, N>],
    statistics: &[f32],
    dq: &mut [Vector<F, N>],
    geometry: Geometry,
    scale: f32,
    units: usize,
    #[comptime] plan: RowPlan,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= units {
        terminate!();
    }
    let slices = comptime!(plan.key.slices);
    let own = owned(ABSOLUTE_POS, geometry.queries(), geometry.heads, slices);
    if comptime!(plan.repairs) {
        let (slicing, size) = comptime!((plan.key, plan.vector));
        if !is_spoiled::<F, N>(&*dq, own.row, own.slice, slicing, size) {
            terminate!();
        }
    }
    let head_kv = own.head / geometry.group_size();
    let lse = statistics[2 * own.row];
    let delta = statistics[2 * own.row + 1];

    let mut sums = zeros::<N>(comptime!(plan.key));
    if comptime!(plan.has_keys) {
        let position = geometry.query_position(own.token);
        let along_z = geometry.z.window(position.z);
        let along_y = geometry.y.window(position.y);
        let along_x = geometry.x.window(position.x);
        for i in 0..along_z.count {
            let z = along_z.first + i * geometry.z.dilation;
            for j in 0..along_y.count {
                let y = along_y.first + j * geometry.y.dilation;
                let run = geometry.key_run(own.batch, head_kv, z, y, along_x);
                add_keys::<F, N>(
                    &mut sums, query, dout, own.row, key, value, run, lse, delta, own.slice, scale,
                    plan,
                );
            }
        }
    }
    if comptime!(plan.has_additional) {
        let run = geometry.additional_run(own.batch, head_kv);
        add_keys::<F, N>(
            &mut sums,
            query,
            dout,
            own.row,
            additional_key,
            additional_value,
            run,
            lse,
            delta,
            own.slice,
            scale,
            plan,
        );
    }
    store::<F, N>(&sums, scale, dq, own.row, own.slice, comptime!(plan.key));
}

/// Adds `ds k` to the sums for the keys of `run`.
#[cube]
fn add_keys<F: Float, N: Size>(
    sums: &mut Array<Vector<f32, N>>,
    query: &[Vector<F, N>],
    dout: &[Vector<F, N>],
    query_row: usize,
    key: &[Vector<F, N>],
    value: &[Vector<F, N>],
    run: Run,
    lse: f32,
    delta: f32,
    slice: usize,
    scale: f32,
    #[comptime] plan: RowPlan,
) {
    let block = comptime!(plan.block);
    let whole = run.count / block;
    for i in 0..whole {
        let row = run.row + i * block * run.step;
        add_block::<F, N>(
            sums, query, dout, query_row, key, value, row, run.step, lse, delta, slice, scale,
            plan, block,
        );
    }
    for i in whole * block..run.count {
        let row = run.row + i * run.step;
        add_block::<F, N>(
            sums, query, dout, query_row, key, value, row, run.step, lse, delta, slice, scale,
            plan, 1usize,
        );
    }
}

#[cube]
fn add_block<F: Float, N: Size>(
    sums: &mut Array<Vector<f32, N>>,
    query: &[Vector<F, N>],
    dout: &[Vector<F, N>],
    query_row: usize,
    key: &[Vector<F, N>],
    value: &[Vector<F, N>],
    row: usize,
    step: usize,
    lse: f32,
    delta: f32,
    slice: usize,
    scale: f32,
    #[comptime] plan: RowPlan,
    #[comptime] block: usize,
) {
    let (key_lines, value_lines) = comptime!((plan.key.lines, plan.value.lines));
    let scores = dots::<F, N>(query, query_row, key, row, step, key_lines, block);
    let mut weights = dots::<F, N>(dout, query_row, value, row, step, value_lines, block);
    #[unroll]
    for b in 0..block {
        weights[b] = (scores[b] * scale - lse).exp() * (weights[b] - delta);
    }
    accumulate::<F, N>(sums, &weights, key, row, step, slice, comptime!(plan.key), block);
}

/// Launches the pass, or with `repairs` for those slices of rows that are there but not finite.
pub(super) fn launch(
    launch: &Launch,
    inputs: &Saved<Handle>,
    statistics: &Handle,
    dq: &Handle,
    repairs: bool,
) {
    let problem = launch.problem;
    let plan = launch.key_plan(FORWARD_LINES).repairing(repairs);
    let units = launch.query_rows() * plan.key.slices;
    let (cube_count, cube_dim) = launch.cubes(units);
    let [key, value] =
        launch.keys_or(&inputs.operands.query, [&inputs.operands.key, &inputs.operands.value]);
    let [additional_key, additional_value] =
        additional_or(&inputs.operands.query, inputs.operands.additional.as_ref());
    // SAFETY: every index is below the sizes that the buffers were checked against.
    unsafe {
        query_kernel::launch_unchecked(
            launch.client,
            cube_count,
            cube_dim,
            launch.address_type,
            launch.vector_size,
            buffer(&inputs.operands.query),
            buffer(key),
            buffer(value),
            buffer(additional_key),
            buffer(additional_value),
            buffer(&inputs.gradients.out),
            buffer(statistics),
            buffer(dq),
            geometry(problem),
            problem.scale as f32,
            units,
            plan,
            launch.dtype,
        );
    }
}
