//! dq: the walk of the forward pass, once more.
//!
//! A unit owns one query row and one slice of its gradient. Both products, `q k` and `dout v`, run over whole rows, so that
//! units of other slices compute them again.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;
use cubecl::server::Handle;

use super::super::super::rows::{store, zeros};
use super::super::forward::own_query;
use super::super::launch::{BlockPlan, Launching};
use super::super::space::{BlockSpace, space};
use super::super::vectors::{Line, accumulate, dots};
use crate::cube::{InputPair, buffer};
use crate::slicing::FORWARD_LINES;
use crate::{Saved, Strided};

/// What the kernel reads.
#[derive(CubeType, CubeLaunch)]
struct Inputs<'a, F: Float, N: Size> {
    /// Queries and the output's gradient.
    rows: InputPair<'a, F, N>,
    /// Keys and values.
    columns: InputPair<'a, F, N>,
    lists: &'a [i32],
    statistics: &'a [f32],
}

/// What a unit keeps of its row.
#[derive(CubeType)]
struct State<N: Size> {
    sums: Array<Vector<f32, N>>,
    lse: f32,
    delta: f32,
    /// Where the query begins, and the output's gradient.
    query: usize,
    dout: usize,
    slice: usize,
    scale: f32,
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn blocks_query_kernel<F: Float, N: Size>(
    inputs: &Inputs<'_, F, N>,
    dq: &mut [Vector<F, N>],
    space: BlockSpace,
    scale: f32,
    units: usize,
    #[comptime] plan: BlockPlan,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= units {
        terminate!();
    }
    let own = own_query(ABSOLUTE_POS, &space, comptime!(plan.key.slices));
    let head_kv = own.head / space.group_size();
    let (query, dout) = (&inputs.rows.first.strides, &inputs.rows.second.strides);
    let (key, value) = (&inputs.columns.first.strides, &inputs.columns.second.strides);
    let mut state = State::<N> {
        sums: zeros::<N>(comptime!(plan.key)),
        lse: inputs.statistics[2 * own.row],
        delta: inputs.statistics[2 * own.row + 1],
        query: query.vector(own.batch, own.at.z, own.at.y, own.at.x, own.head),
        dout: dout.vector(own.batch, own.at.z, own.at.y, own.at.x, own.head),
        slice: own.slice,
        scale,
    };
    let key_blocks = space.key_blocks();
    for entry in 0..space.entries {
        let listed = inputs.lists[own.list + entry];
        // As `u32`, what is below zero is above every block.
        let block = usize::cast_from(u32::reinterpret(listed));
        if block < key_blocks {
            let block = space.key_block_place(block);
            let along_z = space.z.keys_of(block.z, own.at.z);
            let along_y = space.y.keys_of(block.y, own.at.y);
            let along_x = space.x.keys_of(block.x, own.at.x);
            for i in 0..along_z.count {
                let z = along_z.first + i;
                for j in 0..along_y.count {
                    let y = along_y.first + j;
                    let keys = Line {
                        at: key.vector(own.batch, z, y, along_x.first, head_kv),
                        step: key.x,
                    };
                    let values = Line {
                        at: value.vector(own.batch, z, y, along_x.first, head_kv),
                        step: value.x,
                    };
                    add_keys::<F, N>(&mut state, inputs, keys, values, along_x.count, plan);
                }
            }
        }
    }
    store::<F, N>(&state.sums, scale, dq, own.row, own.slice, comptime!(plan.key));
}

/// Adds `ds k` to the sums for `count` keys.
#[cube]
fn add_keys<F: Float, N: Size>(
    state: &mut State<N>,
    inputs: &Inputs<'_, F, N>,
    keys: Line,
    values: Line,
    count: usize,
    #[comptime] plan: BlockPlan,
) {
    let block = comptime!(plan.block);
    let whole = count / block;
    for i in 0..whole {
        let (keys, values) = (keys.from(i * block), values.from(i * block));
        add_block::<F, N>(state, inputs, keys, values, plan, block);
    }
    if comptime!(block > 1) {
        for i in whole * block..count {
            add_block::<F, N>(state, inputs, keys.from(i), values.from(i), plan, 1usize);
        }
    }
}

#[cube]
fn add_block<F: Float, N: Size>(
    state: &mut State<N>,
    inputs: &Inputs<'_, F, N>,
    keys: Line,
    values: Line,
    #[comptime] plan: BlockPlan,
    #[comptime] block: usize,
) {
    let (lines, lines_v) = comptime!((plan.key.lines, plan.value.lines));
    let (query, dout) = (inputs.rows.first.vectors, inputs.rows.second.vectors);
    let (key, value) = (inputs.columns.first.vectors, inputs.columns.second.vectors);
    let scores = dots::<F, N>(query, state.query, key, keys, lines, block);
    let mut weights = dots::<F, N>(dout, state.dout, value, values, lines_v, block);
    #[unroll]
    for b in 0..block {
        let weight = (scores[b] * state.scale - state.lse).exp();
        weights[b] = weight * (weights[b] - state.delta);
    }
    let slice = state.slice;
    accumulate::<F, N>(&mut state.sums, &weights, key, keys, slice, comptime!(plan.key), block);
}

/// Launches the pass.
pub(super) fn launch(
    launching: &Launching<'_>,
    inputs: &Saved<Strided>,
    lists: &Handle,
    statistics: &Handle,
    dq: &Handle,
) {
    let launch = &launching.launch;
    let plan = launching.key_plan(FORWARD_LINES);
    let units = launch.query_rows() * plan.key.slices;
    let (cube_count, cube_dim) = launch.cubes(units);
    let vector = launch.vector_size;
    let [query, key, value] = launching.inputs(&inputs.operands);
    let dout = (&inputs.gradients.out.handle, inputs.gradients.out.strides);
    // SAFETY: every index is below the sizes that the buffers were checked against.
    unsafe {
        blocks_query_kernel::launch_unchecked(
            launch.client,
            cube_count,
            cube_dim,
            launch.address_type,
            vector,
            InputsLaunch::new(
                InputPair::argument([query, dout], vector),
                InputPair::argument([key, value], vector),
                buffer(launching.lists_or(lists, statistics)),
                buffer(statistics),
            ),
            buffer(dq),
            space(launching.sparse),
            launch.problem.scale as f32,
            units,
            plan,
            launch.dtype,
        );
    }
}
