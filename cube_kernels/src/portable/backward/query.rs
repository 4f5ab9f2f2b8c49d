//! dq: the walk of the forward pass, once more.
//!
//! A unit owns one query row and one slice of its gradient. Both products, `q k` and `dout v`, run
//! over whole rows, so that units of other slices compute them again.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;
use cubecl::server::Handle;

use super::super::bias::{RunBias, with_bias};
use super::super::geometry::{Geometry, Position, Run, geometry, of_token, owned};
use super::super::plan::{Launch, RowPlan, additional_or};
use super::super::rows::{
    Fixed, Rows, RowsLaunch, accumulate, dots, fixed, is_spoiled, store, zeros,
};
use crate::Saved;
use crate::cube::buffer;
use crate::slicing::FORWARD_LINES;

/// What the kernel reads.
#[derive(CubeType, CubeLaunch)]
struct Inputs<'a, F: Float, N: Size> {
    /// Queries and the output's gradient.
    rows: Rows<'a, F, N>,
    columns: Rows<'a, F, N>,
    /// There only with additional tokens, or without sequences: buffers are few.
    additional: ComptimeOption<Rows<'a, F, N>>,
    statistics: &'a [f32],
    /// Where the bias begins in `statistics`, if there is one.
    bias_at: ComptimeOption<usize>,
    sequences: ComptimeOption<&'a [u32]>,
}

/// What a unit keeps of its row.
#[derive(CubeType)]
struct State<N: Size> {
    sums: Array<Vector<f32, N>>,
    lse: f32,
    delta: f32,
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn query_kernel<F: Float, N: Size>(
    inputs: &Inputs<'_, F, N>,
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
    let geometry = of_token(geometry, inputs.sequences, own.token, plan);
    let head_kv = own.head / geometry.group_size();
    let row = fixed::<F, N>(inputs.rows.first, inputs.rows.second, &own, scale);
    let mut state = State::<N> {
        sums: zeros::<N>(comptime!(plan.key)),
        lse: inputs.statistics[2 * own.row],
        delta: inputs.statistics[2 * own.row + 1],
    };
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
                let bias = inputs.bias_at.map(|first| {
                    let key = Position { z, y, x: along_x.first };
                    let place = first + geometry.bias_place(own.head, position, key);
                    RunBias::of_keys(inputs.statistics, place)
                });
                add_keys::<F, N>(&mut state, &row, &inputs.columns, run, bias, plan);
            }
        }
    }
    if comptime!(plan.has_additional) {
        let run = geometry.additional_run(own.batch, head_kv);
        let none = ComptimeOption::new_None();
        let columns = inputs.additional.as_ref().unwrap();
        add_keys::<F, N>(&mut state, &row, columns, run, none, plan);
    }
    store::<F, N>(&state.sums, scale, dq, own.row, own.slice, comptime!(plan.key));
}

/// Adds `ds k` to the sums for the keys of `run`.
#[cube]
fn add_keys<F: Float, N: Size>(
    state: &mut State<N>,
    row: &Fixed<'_, F, N>,
    columns: &Rows<'_, F, N>,
    run: Run,
    bias: ComptimeOption<RunBias<'_, f32>>,
    #[comptime] plan: RowPlan,
) {
    let block = comptime!(plan.block);
    let whole = run.count / block;
    for i in 0..whole {
        let first = i * block;
        let bias = bias.map(|bias| bias.from(first));
        add_block::<F, N>(state, row, columns, run.from(first), bias, plan, block);
    }
    for i in whole * block..run.count {
        let bias = bias.map(|bias| bias.from(i));
        add_block::<F, N>(state, row, columns, run.from(i), bias, plan, 1usize);
    }
}

#[cube]
fn add_block<F: Float, N: Size>(
    state: &mut State<N>,
    row: &Fixed<'_, F, N>,
    columns: &Rows<'_, F, N>,
    at: Run,
    bias: ComptimeOption<RunBias<'_, f32>>,
    #[comptime] plan: RowPlan,
    #[comptime] block: usize,
) {
    let (lines, lines_v) = comptime!((plan.key.lines, plan.value.lines));
    let scores = dots::<F, N>(row.first, row.row, columns.first, at, lines, block);
    let mut weights = dots::<F, N>(row.second, row.row, columns.second, at, lines_v, block);
    #[unroll]
    for b in 0..block {
        let score = with_bias(scores[b] * row.scale, bias, b);
        let weight = (score - state.lse).exp();
        weights[b] = weight * (weights[b] - state.delta);
    }
    let (keys, slicing) = (columns.first, comptime!(plan.key));
    accumulate::<F, N>(&mut state.sums, &weights, keys, at, row.slice, slicing, block);
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
    let additional = match plan.sequences {
        Some(_) => None,
        None => Some(RowsLaunch::new(buffer(additional_key), buffer(additional_value))),
    };
    // SAFETY: every index is below the sizes that the buffers were checked against.
    unsafe {
        query_kernel::launch_unchecked(
            launch.client,
            cube_count,
            cube_dim,
            launch.address_type,
            launch.vector_size,
            InputsLaunch::new(
                RowsLaunch::new(buffer(&inputs.operands.query), buffer(&inputs.gradients.out)),
                RowsLaunch::new(buffer(key), buffer(value)),
                additional.into(),
                buffer(statistics),
                launch.bias_at().into(),
                launch.sequences(&plan).as_ref().map(buffer).into(),
            ),
            buffer(dq),
            geometry(launch),
            problem.scale as f32,
            units,
            plan,
            launch.dtype,
        );
    }
}
