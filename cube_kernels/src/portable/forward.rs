//! Forward: streaming softmax over the keys of a row.
//!
//! A unit owns one query row and one slice of its output; units next to each other own queries
//! next to each other, which share most of their keys (all of them in dense attention, where a
//! load is one broadcast). Units of other slices compute the same scores again: that costs
//! arithmetic but neither shared memory nor a barrier. Memory of a unit: the slice, as `f32`, plus
//! the scores of a block of keys.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;
use cubecl::server::Handle;

use super::bias::{RunBias, with_bias};
use super::geometry::{Geometry, Position, Run, geometry, of_token, owned};
use super::plan::{Launch, RowPlan, additional_or};
use super::rows::{
    Fixed, Rows, RowsLaunch, accumulate, dots, fixed, is_spoiled, rescale, store, zeros,
};
use crate::Operands;
use crate::cube::buffer;
use crate::cube::forward::{Outputs, OutputsLaunch};
use crate::slicing::FORWARD_LINES;

/// Index into the running statistics of a row: the largest score so far.
const MAXIMUM: usize = 0;
/// Index into the running statistics of a row: the sum of exponentials relative to the maximum.
const SUM: usize = 1;

/// What the kernel reads: queries, and keys with their values.
#[derive(CubeType, CubeLaunch)]
struct Inputs<'a, F: Float, N: Size> {
    query: &'a [Vector<F, N>],
    columns: Rows<'a, F, N>,
    additional: Rows<'a, F, N>,
    bias: ComptimeOption<&'a [F]>,
    sequences: ComptimeOption<&'a [u32]>,
}

/// What a unit keeps of its row.
#[derive(CubeType)]
struct State<N: Size> {
    sums: Array<Vector<f32, N>>,
    /// Index [`MAXIMUM`] and index [`SUM`].
    statistics: Array<f32>,
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn forward_kernel<F: Float, N: Size>(
    inputs: &Inputs<'_, F, N>,
    outputs: &mut Outputs<F, N>,
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
        if !is_spoiled::<F, N>(&outputs.out, own.row, own.slice, slicing, size) {
            terminate!();
        }
    }
    let geometry = of_token(geometry, inputs.sequences, own.token, plan);
    let head_kv = own.head / geometry.group_size();

    let row = fixed::<F, N>(inputs.query, inputs.query, &own, scale);
    let mut state =
        State::<N> { sums: zeros::<N>(comptime!(plan.value)), statistics: Array::new(2usize) };
    // The least finite number: below every finite score, and WGSL has no literal for infinity.
    state.statistics[MAXIMUM] = f32::min_value();
    state.statistics[SUM] = 0.0;
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
                let bias = inputs.bias.map(|values| {
                    let key = Position { z, y, x: along_x.first };
                    RunBias::of_keys(values, geometry.bias_place(own.head, position, key))
                });
                attend::<F, N>(&mut state, &row, &inputs.columns, run, bias, plan);
            }
        }
    }
    if comptime!(plan.has_additional) {
        let run = geometry.additional_run(own.batch, head_kv);
        seen += run.count;
        let none = ComptimeOption::new_None();
        attend::<F, N>(&mut state, &row, &inputs.additional, run, none, plan);
    }

    let mut inverse = 1.0 / state.statistics[SUM];
    if comptime!(plan.has_origin) {
        // A sum of 0 is not enough to tell that the row sees nothing: scores of -inf have it, too.
        inverse = select(seen == 0, 0.0f32, inverse);
    }
    let out = &mut outputs.out;
    store::<F, N>(&state.sums, inverse, out, own.row, own.slice, comptime!(plan.value));
    if own.slice == 0 {
        outputs.lse[own.row] = state.statistics[MAXIMUM] + state.statistics[SUM].ln();
    }
}

/// Takes the keys of `run` into the softmax of a row.
#[cube]
fn attend<F: Float, N: Size>(
    state: &mut State<N>,
    row: &Fixed<'_, F, N>,
    columns: &Rows<'_, F, N>,
    run: Run,
    bias: ComptimeOption<RunBias<'_, F>>,
    #[comptime] plan: RowPlan,
) {
    let block = comptime!(plan.block);
    let whole = run.count / block;
    for i in 0..whole {
        let first = i * block;
        let bias = bias.map(|bias| bias.from(first));
        attend_block::<F, N>(state, row, columns, run.from(first), bias, plan, block);
    }
    for i in whole * block..run.count {
        let bias = bias.map(|bias| bias.from(i));
        attend_block::<F, N>(state, row, columns, run.from(i), bias, plan, 1usize);
    }
}

#[cube]
fn attend_block<F: Float, N: Size>(
    state: &mut State<N>,
    row: &Fixed<'_, F, N>,
    columns: &Rows<'_, F, N>,
    at: Run,
    bias: ComptimeOption<RunBias<'_, F>>,
    #[comptime] plan: RowPlan,
    #[comptime] block: usize,
) {
    let lines = comptime!(plan.key.lines);
    let mut weights = dots::<F, N>(row.first, row.row, columns.first, at, lines, block);
    let before = state.statistics[MAXIMUM];
    let mut maximum = before;
    #[unroll]
    for b in 0..block {
        weights[b] *= row.scale;
        if comptime!(bias.is_some()) {
            weights[b] = with_bias(weights[b], bias, b);
        }
        maximum = max(maximum, weights[b]);
    }
    let decay = (before - maximum).exp();
    let mut sum = state.statistics[SUM] * decay;
    #[unroll]
    for b in 0..block {
        weights[b] = (weights[b] - maximum).exp();
        sum += weights[b];
    }
    state.statistics[MAXIMUM] = maximum;
    state.statistics[SUM] = sum;
    rescale::<N>(&mut state.sums, decay, comptime!(plan.value));
    let (values, slicing) = (columns.second, comptime!(plan.value));
    accumulate::<F, N>(&mut state.sums, &weights, values, at, row.slice, slicing, block);
}

/// Launches the forward pass, or with `repairs` for those slices of rows that are there but not finite.
pub(super) fn launch(
    launch: &Launch,
    inputs: &Operands<Handle>,
    outputs: &crate::Outputs<Handle>,
    repairs: bool,
) {
    let problem = launch.problem;
    let plan = launch.value_plan(FORWARD_LINES).repairing(repairs);
    let units = launch.query_rows() * plan.value.slices;
    let (cube_count, cube_dim) = launch.cubes(units);
    let [key, value] = launch.keys_or(&inputs.query, [&inputs.key, &inputs.value]);
    let [additional_key, additional_value] =
        additional_or(&inputs.query, inputs.additional.as_ref());
    let bias = inputs.bias.as_ref().filter(|_| plan.has_keys);
    // SAFETY: every index is below the sizes that the buffers were checked against.
    unsafe {
        forward_kernel::launch_unchecked(
            launch.client,
            cube_count,
            cube_dim,
            launch.address_type,
            launch.vector_size,
            InputsLaunch::new(
                buffer(&inputs.query),
                RowsLaunch::new(buffer(key), buffer(value)),
                RowsLaunch::new(buffer(additional_key), buffer(additional_value)),
                bias.map(buffer).into(),
                launch.sequences(&plan).as_ref().map(buffer).into(),
            ),
            OutputsLaunch::new(buffer(&outputs.out), buffer(&outputs.lse)),
            geometry(launch),
            problem.scale as f32,
            units,
            plan,
            launch.dtype,
        );
    }
}
