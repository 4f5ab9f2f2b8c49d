//! dk and dv, over the blocks of queries that list the key's.
//!
//! A unit owns one key row and one slice of both gradients, and sums over the query heads of its kv head's group. Neighboring
//! units own neighboring keys, most of which have the same visitors.
//!
//! Lists are as long as they happen to be: every query of native sparse attention lists the first block. So the planes of a cube
//! share the runs of visitors of its keys, and what they have is added up in order: 8 KB of shared memory. On a CPU there is
//! one part.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;
use cubecl::server::Handle;

use super::super::super::rows::{store, zeros};
use super::super::launch::{BlockPlan, Launching};
use super::super::space::{BlockSpace, Place, space};
use super::super::vectors::{Line, accumulate, dots};
use crate::cube::{InputPair, buffer, grid};
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
    /// Runs of visitors before its next one.
    next: usize,
}

/// Compile-time parameters of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct KeyPlan {
    rows: BlockPlan,
    /// Units that share a row.
    parts: usize,
    /// Rows of a cube, where units share them.
    lanes: usize,
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
    #[comptime] plan: KeyPlan,
    #[define(F)] _dtype: ElemType,
) {
    let (rows, slices) = comptime!((plan.rows, plan.rows.key.slices));
    let mut index = ABSOLUTE_POS;
    let mut part = 0usize;
    if comptime!(plan.parts > 1) {
        index = CUBE_POS * comptime!(plan.lanes) + UNIT_POS as usize % comptime!(plan.lanes);
        part = UNIT_POS as usize / comptime!(plan.lanes);
    } else if index >= units {
        terminate!();
    }
    // Units behind the last row meet the others at barriers.
    let is_there = index < units;
    index = min(index, units - 1);
    let (keys, rest) = (space.keys(), index / space.keys());
    let token = index % keys;
    let own = OwnKey {
        at: space.key_place(token),
        batch: rest / slices / space.heads_kv,
        head: rest / slices % space.heads_kv,
        slice: rest % slices,
    };
    let (key, value) = (&inputs.rows.first.strides, &inputs.rows.second.strides);
    let mut state = State::<N> {
        dk: zeros::<N>(comptime!(rows.key)),
        dv: zeros::<N>(comptime!(rows.value)),
        key: key.vector(own.batch, own.at.z, own.at.y, own.at.x, own.head),
        value: value.vector(own.batch, own.at.z, own.at.y, own.at.x, own.head),
        slice: own.slice,
        scale,
        // A number of its own, as it counts down.
        next: part % comptime!(plan.parts),
    };

    let (key_blocks, own_block) = (space.key_blocks(), space.block_of_key(own.at));
    let lists = space.list_heads / space.heads_kv;
    for list_head in own.head * lists..(own.head + 1) * lists {
        let pair = own.batch * space.list_heads + list_head;
        let start = pair * (key_blocks + 1) + own_block;
        let items = inputs.items + pair * space.query_blocks() * space.entries;
        let first = usize::cast_from(inputs.inverse[start]);
        let end = select(is_there, usize::cast_from(inputs.inverse[start + 1]), first);
        for item in items + first..items + end {
            let block = usize::cast_from(inputs.inverse[item]);
            visit::<F, N>(&mut state, inputs, &space, &own, list_head, block, plan);
        }
    }
    if comptime!(plan.parts > 1) {
        add_up::<N>(&mut state, part, plan);
    }
    if is_there && part == 0 {
        let row = (own.batch * keys + token) * space.heads_kv + own.head;
        let (dk, dv) = (&mut outputs.dk, &mut outputs.dv);
        store::<F, N>(&state.dk, scale, dk, row, own.slice, comptime!(rows.key));
        store::<F, N>(&state.dv, 1.0, dv, row, own.slice, comptime!(rows.value));
    }
}

/// Adds what the units of other parts have to what that of the first has, in order.
#[cube]
fn add_up<N: Size>(state: &mut State<N>, part: usize, #[comptime] plan: KeyPlan) {
    let lanes = comptime!(plan.lanes);
    let lane = UNIT_POS as usize % lanes;
    let (key, value) = comptime!((plan.rows.key.slice, plan.rows.value.slice));
    let mut shared =
        Shared::<[Vector<f32, N>]>::new_aligned_slice(comptime!(lanes * key.max(value)), 16usize);
    for other in 1..comptime!(plan.parts) {
        if part == other {
            #[unroll]
            for i in 0..key {
                shared[i * lanes + lane] = state.dk[i];
            }
        }
        sync_cube();
        if part == 0 {
            #[unroll]
            for i in 0..key {
                state.dk[i] += shared[i * lanes + lane];
            }
        }
        sync_cube();
        if part == other {
            #[unroll]
            for i in 0..value {
                shared[i * lanes + lane] = state.dv[i];
            }
        }
        sync_cube();
        if part == 0 {
            #[unroll]
            for i in 0..value {
                state.dv[i] += shared[i * lanes + lane];
            }
        }
        sync_cube();
    }
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
    #[comptime] plan: KeyPlan,
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
    if comptime!(plan.rows.by_heads) {
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
                if comptime!(plan.rows.by_heads) {
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
                if state.next == 0 {
                    state.next = comptime!(plan.parts);
                    gather::<F, N>(state, inputs, visitors, count, comptime!(plan.rows));
                }
                state.next -= 1;
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
    let (rows, parts) = (launching.gather_plan(GATHER_LINES), launching.parts);
    let units = launch.key_rows() * rows.key.slices;
    let lanes = launching.lanes();
    let plan = KeyPlan { rows, parts, lanes };
    let (cube_count, cube_dim) = match parts {
        1 => launch.cubes(units),
        _ => (grid(launch.client, units.div_ceil(lanes)), CubeDim::new_1d((lanes * parts) as u32)),
    };
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
