//! Forward: streaming softmax over the keys of a row's list.
//!
//! A unit owns one query row and one slice of its output. Neighboring units own rows of one list: the heads that share it, then
//! tokens. They read the same keys at the same time, wherever lists differ from block to block.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;
use cubecl::server::Handle;

use super::super::rows::{rescale, store, zeros};
use super::launch::{BlockPlan, Launching};
use super::space::{BlockSpace, Place, space};
use super::vectors::{Line, accumulate, dots};
use crate::cube::forward::{Outputs, OutputsLaunch};
use crate::cube::{Input, InputPair, buffer};
use crate::slicing::FORWARD_LINES;
use crate::{Operands, Strided};

/// Index into the running statistics of a row: the largest score so far.
const MAXIMUM: usize = 0;
/// Index into the running statistics of a row: the sum of exponentials relative to the maximum.
const SUM: usize = 1;

/// What the kernel reads.
#[derive(CubeType, CubeLaunch)]
struct Inputs<'a, F: Float, N: Size> {
    query: Input<'a, F, N>,
    /// Keys and values.
    columns: InputPair<'a, F, N>,
    lists: &'a [i32],
}

/// The row of a unit, and the slice of it that it sums.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct OwnQuery {
    pub at: Place,
    pub batch: usize,
    pub head: usize,
    pub slice: usize,
    /// Its number, as it lies in a contiguous tensor.
    pub row: usize,
    /// Where its list begins.
    pub list: usize,
}

/// The work of unit `unit`.
#[cube]
pub(super) fn own_query(unit: usize, space: &BlockSpace, #[comptime] slices: usize) -> OwnQuery {
    let (sharing, queries) = (space.heads_of_list(), space.queries());
    let shared = unit / sharing;
    let query = shared % queries;
    let rest = shared / queries;
    let slice = rest % slices;
    let list_head = rest / slices % space.list_heads;
    let batch = rest / slices / space.list_heads;
    let head = list_head * sharing + unit % sharing;
    let at = space.query_place(query);
    let block = batch * space.query_blocks() + space.block_of_query(at);
    OwnQuery {
        at,
        batch,
        head,
        slice,
        row: (batch * queries + query) * space.heads + head,
        list: (block * space.list_heads + list_head) * space.entries,
    }
}

/// What a unit keeps of its row.
#[derive(CubeType)]
struct State<N: Size> {
    sums: Array<Vector<f32, N>>,
    /// Index [`MAXIMUM`] and index [`SUM`].
    statistics: Array<f32>,
    /// Where the query begins.
    query: usize,
    slice: usize,
    scale: f32,
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn blocks_forward_kernel<F: Float, N: Size>(
    inputs: &Inputs<'_, F, N>,
    outputs: &mut Outputs<F, N>,
    space: BlockSpace,
    scale: f32,
    units: usize,
    #[comptime] plan: BlockPlan,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= units {
        terminate!();
    }
    let own = own_query(ABSOLUTE_POS, &space, comptime!(plan.value.slices));
    let head_kv = own.head / space.group_size();
    let (key, value) = (&inputs.columns.first.strides, &inputs.columns.second.strides);
    let mut state = State::<N> {
        sums: zeros::<N>(comptime!(plan.value)),
        statistics: Array::new(2usize),
        query: inputs.query.strides.vector(own.batch, own.at.z, own.at.y, own.at.x, own.head),
        slice: own.slice,
        scale,
    };
    // The least finite number: below every finite score, and WGSL has no literal for infinity.
    state.statistics[MAXIMUM] = f32::min_value();
    state.statistics[SUM] = 0.0;
    let mut seen = 0usize;
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
            seen += along_z.count * along_y.count * along_x.count;
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
                    attend::<F, N>(&mut state, inputs, keys, values, along_x.count, plan);
                }
            }
        }
    }

    // A sum of 0 is not enough to tell that the row sees nothing: scores of -inf have it, too.
    let inverse = select(seen == 0, 0.0f32, 1.0 / state.statistics[SUM]);
    let out = &mut outputs.out;
    store::<F, N>(&state.sums, inverse, out, own.row, own.slice, comptime!(plan.value));
    if own.slice == 0 {
        outputs.lse[own.row] = state.statistics[MAXIMUM] + state.statistics[SUM].ln();
    }
}

/// Takes `count` keys into the softmax of a row.
#[cube]
fn attend<F: Float, N: Size>(
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
        attend_block::<F, N>(state, inputs, keys, values, plan, block);
    }
    if comptime!(block > 1) {
        for i in whole * block..count {
            attend_block::<F, N>(state, inputs, keys.from(i), values.from(i), plan, 1usize);
        }
    }
}

#[cube]
fn attend_block<F: Float, N: Size>(
    state: &mut State<N>,
    inputs: &Inputs<'_, F, N>,
    keys: Line,
    values: Line,
    #[comptime] plan: BlockPlan,
    #[comptime] block: usize,
) {
    let (query, columns) = (inputs.query.vectors, &inputs.columns);
    let lines = comptime!(plan.key.lines);
    let mut weights = dots::<F, N>(query, state.query, columns.first.vectors, keys, lines, block);
    let before = state.statistics[MAXIMUM];
    let mut maximum = before;
    #[unroll]
    for b in 0..block {
        weights[b] *= state.scale;
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
    let (slice, slicing) = (state.slice, comptime!(plan.value));
    accumulate::<F, N>(
        &mut state.sums,
        &weights,
        columns.second.vectors,
        values,
        slice,
        slicing,
        block,
    );
}

/// Launches the forward pass of a problem that has queries.
pub(super) fn launch(
    launching: &Launching<'_>,
    inputs: &Operands<Strided>,
    lists: &Handle,
    outputs: &crate::Outputs<Handle>,
) {
    let plan = launching.value_plan(FORWARD_LINES);
    let units = launching.launch.query_rows() * plan.value.slices;
    let (cube_count, cube_dim) = launching.launch.cubes(units);
    let vector = launching.launch.vector_size;
    let [query, key, value] = launching.inputs(inputs);
    // SAFETY: every index is below the sizes that the buffers were checked against.
    unsafe {
        blocks_forward_kernel::launch_unchecked(
            launching.launch.client,
            cube_count,
            cube_dim,
            launching.launch.address_type,
            vector,
            InputsLaunch::new(
                Input::argument(query, vector),
                InputPair::argument([key, value], vector),
                buffer(launching.lists_or(lists, &inputs.query.handle)),
            ),
            OutputsLaunch::new(buffer(&outputs.out), buffer(&outputs.lse)),
            space(launching.sparse),
            launching.launch.problem.scale as f32,
            units,
            plan,
            launching.launch.dtype,
        );
    }
}
