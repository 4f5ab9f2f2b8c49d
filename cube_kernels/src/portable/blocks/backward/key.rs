//! dk and dv, over the blocks of queries that list the key's.
//!
//! A unit owns one key row and one slice of both gradients, and sums over the query heads of its kv head's group. Neighboring
//! units own neighboring keys, most of which have the same visitors.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;
use cubecl::server::Handle;

use super::super::super::rows::{store, zeros};
use super::super::launch::{BlockPlan, Launching};
use super::super::space::{BlockSpace, Place, space};
use super::super::vectors::{Line, accumulate, dots};
use crate::cube::{InputPair, buffer};
use crate::slicing::GATHER_LINES;
use crate::sparse::Inverse;
use crate::{KeyValue, Saved, Strided};

/// What the kernel reads.
#[derive(CubeType, CubeLaunch)]
struct Inputs<'a, F: Float, N: Size> {
    /// Keys and values.
    rows: InputPair<'a, F, N>,
    /// Queries and the output's gradient.
    columns: InputPair<'a, F, N>,
    /// Starts, and behind them items.
    inverse: &'a [u32],
    /// Where items begin.
    items: usize,
    statistics: &'a [f32],
}

/// What it writes.
#[derive(CubeType, CubeLaunch)]
struct Outputs<F: Float, N: Size> {
    dk: Box<[Vector<F, N>]>,
    dv: Box<[Vector<F, N>]>,
}

/// What a unit keeps of its row.
#[derive(CubeType)]
struct State<N: Size> {
    dk: Array<Vector<f32, N>>,
    dv: Array<Vector<f32, N>>,
    /// Where the key begins, and the value.
    key: usize,
    value: usize,
    slice: usize,
    scale: f32,
}

/// Rows of queries: vectors of both kinds, and statistics.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Visitors {
    queries: Line,
    douts: Line,
    statistics: Line,
}

#[cube]
impl Visitors {
    /// The same from row number `index` on.
    fn from(&self, index: usize) -> Visitors {
        Visitors {
            queries: self.queries.from(index),
            douts: self.douts.from(index),
            statistics: self.statistics.from(index),
        }
    }
}

/// The row of a unit, and the slice of it that it sums.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct OwnKey {
    at: Place,
    batch: usize,
    head: usize,
    slice: usize,
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn blocks_key_kernel<F: Float, N: Size>(
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
    let slices = comptime!(plan.key.slices);
    let (keys, rest) = (space.keys(), ABSOLUTE_POS / space.keys());
    let token = ABSOLUTE_POS % keys;
    let own = OwnKey {
        at: space.key_place(token),
        batch: rest / slices / space.heads_kv,
        head: rest / slices % space.heads_kv,
        slice: rest % slices,
    };
    let (key, value) = (&inputs.rows.first.strides, &inputs.rows.second.strides);
    let mut state = State::<N> {
        dk: zeros::<N>(comptime!(plan.key)),
        dv: zeros::<N>(comptime!(plan.value)),
        key: key.vector(own.batch, own.at.z, own.at.y, own.at.x, own.head),
        value: value.vector(own.batch, own.at.z, own.at.y, own.at.x, own.head),
        slice: own.slice,
        scale,
    };

    let (key_blocks, own_block) = (space.key_blocks(), space.block_of_key(own.at));
    let lists = space.list_heads / space.heads_kv;
    for list_head in own.head * lists..(own.head + 1) * lists {
        let pair = own.batch * space.list_heads + list_head;
        let start = pair * (key_blocks + 1) + own_block;
        let items = inputs.items + pair * space.query_blocks() * space.entries;
        let first = usize::cast_from(inputs.inverse[start]);
        let end = usize::cast_from(inputs.inverse[start + 1]);
        for item in items + first..items + end {
            let block = usize::cast_from(inputs.inverse[item]);
            visit::<F, N>(&mut state, inputs, &space, &own, list_head, block, plan);
        }
    }
    let row = (own.batch * keys + token) * space.heads_kv + own.head;
    let (dk, dv) = (&mut outputs.dk, &mut outputs.dv);
    store::<F, N>(&state.dk, scale, dk, row, own.slice, comptime!(plan.key));
    store::<F, N>(&state.dv, 1.0, dv, row, own.slice, comptime!(plan.value));
}

/// Adds what a block of queries has of the key, of all heads that share a list.
#[cube]
fn visit<F: Float, N: Size>(
    state: &mut State<N>,
    inputs: &Inputs<'_, F, N>,
    space: &BlockSpace,
    own: &OwnKey,
    list_head: usize,
    block: usize,
    #[comptime] plan: BlockPlan,
) {
    let block = space.query_block_place(block);
    let along_z = space.z.queries_of(block.z, own.at.z);
    let along_y = space.y.queries_of(block.y, own.at.y);
    let along_x = space.x.queries_of(block.x, own.at.x);
    let sharing = space.heads_of_list();
    let first_head = list_head * sharing;
    let (query, dout) = (&inputs.columns.first.strides, &inputs.columns.second.strides);
    // Heads and tokens: one of both is taken in runs.
    let (mut turns, mut count) = (sharing, along_x.count);
    let (mut query_step, mut dout_step, mut step) = (query.x, dout.x, space.heads);
    if comptime!(plan.by_heads) {
        turns = along_x.count;
        count = sharing;
        query_step = query.head;
        dout_step = dout.head;
        step = 1usize;
    }
    for i in 0..along_z.count {
        let z = along_z.first + i;
        for j in 0..along_y.count {
            let y = along_y.first + j;
            for turn in 0..turns {
                let mut x = along_x.first;
                let mut head = first_head;
                if comptime!(plan.by_heads) {
                    x += turn;
                } else {
                    head += turn;
                }
                let line = (own.batch * space.z.queries + z) * space.y.queries + y;
                let row = (line * space.x.queries + x) * space.heads + head;
                let visitors = Visitors {
                    queries: Line { at: query.vector(own.batch, z, y, x, head), step: query_step },
                    douts: Line { at: dout.vector(own.batch, z, y, x, head), step: dout_step },
                    statistics: Line { at: 2 * row, step: 2 * step },
                };
                gather::<F, N>(state, inputs, visitors, count, plan);
            }
        }
    }
}

/// Adds `ds q` and `p dout` for `count` queries.
#[cube]
fn gather<F: Float, N: Size>(
    state: &mut State<N>,
    inputs: &Inputs<'_, F, N>,
    visitors: Visitors,
    count: usize,
    #[comptime] plan: BlockPlan,
) {
    let block = comptime!(plan.block);
    let whole = count / block;
    for i in 0..whole {
        gather_block::<F, N>(state, inputs, visitors.from(i * block), plan, block);
    }
    if comptime!(block > 1) {
        for i in whole * block..count {
            gather_block::<F, N>(state, inputs, visitors.from(i), plan, 1usize);
        }
    }
}

#[cube]
fn gather_block<F: Float, N: Size>(
    state: &mut State<N>,
    inputs: &Inputs<'_, F, N>,
    visitors: Visitors,
    #[comptime] plan: BlockPlan,
    #[comptime] block: usize,
) {
    let (lines, lines_v) = comptime!((plan.key.lines, plan.value.lines));
    let (key, value) = (inputs.rows.first.vectors, inputs.rows.second.vectors);
    let (query, dout) = (inputs.columns.first.vectors, inputs.columns.second.vectors);
    let (queries, douts) = (visitors.queries, visitors.douts);
    let mut p = dots::<F, N>(key, state.key, query, queries, lines, block);
    let mut ds = dots::<F, N>(value, state.value, dout, douts, lines_v, block);
    #[unroll]
    for b in 0..block {
        let place = visitors.statistics.at + b * visitors.statistics.step;
        p[b] = (p[b] * state.scale - inputs.statistics[place]).exp();
        ds[b] = p[b] * (ds[b] - inputs.statistics[place + 1]);
    }
    let slice = state.slice;
    accumulate::<F, N>(&mut state.dk, &ds, query, queries, slice, comptime!(plan.key), block);
    accumulate::<F, N>(&mut state.dv, &p, dout, douts, slice, comptime!(plan.value), block);
}

/// Launches the pass.
pub(super) fn launch(
    launching: &Launching<'_>,
    inputs: &Saved<Strided>,
    inverse: &Inverse,
    statistics: &Handle,
    outputs: &KeyValue<Handle>,
) {
    let launch = &launching.launch;
    let plan = launching.gather_plan(GATHER_LINES);
    let units = launch.key_rows() * plan.key.slices;
    let (cube_count, cube_dim) = launch.cubes(units);
    let vector = launch.vector_size;
    let [query, key, value] = launching.inputs(&inputs.operands);
    let dout = match launch.query_rows() {
        0 => query,
        _ => (&inputs.gradients.out.handle, inputs.gradients.out.strides),
    };
    // SAFETY: every index is below the sizes that the buffers were checked against.
    unsafe {
        blocks_key_kernel::launch_unchecked(
            launch.client,
            cube_count,
            cube_dim,
            launch.address_type,
            vector,
            InputsLaunch::new(
                InputPair::argument([key, value], vector),
                InputPair::argument([query, dout], vector),
                buffer(&inverse.handle),
                inverse.starts,
                buffer(statistics),
            ),
            OutputsLaunch::new(buffer(&outputs.key), buffer(&outputs.value)),
            space(launching.sparse),
            launch.problem.scale as f32,
            units,
            plan,
            launch.dtype,
        );
    }
}
