//! Scores of blocks, and the best of them, without ever writing a score.
//!
//! A cube owns a list. It takes two passes over the compressed keys that the tile's first query sees: one for the logsumexp
//! of each head, one for the probabilities. These lie in shared memory, a chunk at a time; their units sum them to the scores
//! of blocks, and one unit inserts these into the best so far. All sums have a fixed order, and rows before a token do not
//! depend on it.
//!
//! Super-blocks are blocks that do not overlap, so that the same kernel selects them.

// `#[cube]` and `CubeLaunch` add items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::client::Client;
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::{Selected, Selection, check_selection};
use crate::cube::{Input, addresses, buffer, grid, grid_of_cubes};
use crate::portable::blocks::vectors::{Line, dots};
use crate::portable::plan::{Launch, block_size};
use crate::{KernelError, Strided};

/// Units of a cube.
const UNITS: u32 = 128;
/// Probabilities that are in shared memory at once, where blocks are not longer: with the rest 13 KB, and WebGPU has 16.
const CHUNK: usize = 512;

/// Compile-time parameters of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct SelectPlan {
    /// Heads of the queries that share one of keys.
    group: usize,
    /// Heads taken at once.
    block: usize,
    /// Vectors of a query.
    lines: usize,
    /// Units of a cube.
    units: usize,
    /// Probabilities in shared memory.
    chunk: usize,
    /// Entries of a list.
    entries: usize,
    /// Whether blocks are super-blocks.
    is_super: bool,
}

/// Sizes of a problem.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Sizes {
    heads_kv: usize,
    tiles: usize,
    /// Number of lists.
    lists: usize,
    /// Where the first query stands.
    offset: usize,
    query_tile: usize,
    cmp_block: usize,
    cmp_stride: usize,
    /// Tokens of a block, or compressed blocks of a super-block.
    size: usize,
    /// Compressed blocks from one block to the next, and how many of them overlap a point.
    ratio: usize,
    reach: usize,
    num_init: usize,
    num_local: usize,
    /// Blocks that there are.
    blocks: usize,
    /// Blocks of a step.
    step: usize,
}

/// A list: `front` forced blocks, some of those before `middle`, and the forced ones from there to `end`.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct OwnList {
    batch: usize,
    head: usize,
    /// The query, among those that there are.
    row: usize,
    /// Compressed blocks that it sees.
    seen: usize,
    front: usize,
    middle: usize,
    end: usize,
    /// Entries that are not forced.
    free: usize,
}

#[cube]
impl Sizes {
    /// Compressed blocks that are complete behind the first `tokens`.
    fn complete(&self, tokens: usize) -> usize {
        let mut complete = 0usize;
        if tokens >= self.cmp_block {
            complete = (tokens - self.cmp_block) / self.cmp_stride + 1;
        }
        complete
    }

    fn list(&self, index: usize, #[comptime] plan: SelectPlan) -> OwnList {
        let tile = index / self.heads_kv % self.tiles;
        let row = tile * self.query_tile;
        let at = self.offset + row;
        let seen = self.complete(at + 1);
        // Super-blocks: forced are those that fill while the tile lasts.
        let mut front = 0usize;
        let mut middle = seen / self.size;
        let mut end = self.complete(at + self.query_tile).div_ceil(self.size);
        if comptime!(!plan.is_super) {
            end = (at + self.query_tile - 1) / self.size + 1;
            middle = max(at / self.size + 1, self.num_local) - self.num_local;
            front = min(self.num_init, middle);
        }
        let forced = min(front + (end - middle), comptime!(plan.entries));
        OwnList {
            batch: index / self.heads_kv / self.tiles,
            head: index % self.heads_kv,
            row,
            seen,
            front,
            middle,
            end,
            free: comptime!(plan.entries) - forced,
        }
    }
}

/// What the kernel reads.
#[derive(CubeType, CubeLaunch)]
struct Inputs<'a, F: Float, N: Size> {
    query: Input<'a, F, N>,
    /// Compressed keys.
    key: Input<'a, F, N>,
}

/// What a cube shares.
#[derive(CubeType)]
struct Memory {
    /// Largest scores of each unit, by head, and sums of exponentials relative to them.
    maxima: Shared<[f32]>,
    sums: Shared<[f32]>,
    /// Of each head of the group.
    lse: Shared<[f32]>,
    /// Of the compressed blocks of a step, summed over heads.
    probabilities: Shared<[f32]>,
    /// Of the blocks of a step.
    scores: Shared<[f32]>,
    /// The best so far, best first.
    best: Shared<[f32]>,
    numbers: Shared<[u32]>,
}

#[cube]
fn memory(#[comptime] plan: SelectPlan) -> Memory {
    let partial = comptime!(plan.units * plan.block);
    Memory {
        maxima: Shared::new_slice(partial),
        sums: Shared::new_slice(partial),
        lse: Shared::new_slice(comptime!(plan.group)),
        probabilities: Shared::new_slice(comptime!(plan.chunk)),
        scores: Shared::new_slice(comptime!(plan.chunk)),
        best: Shared::new_slice(comptime!(plan.entries)),
        numbers: Shared::new_slice(comptime!(plan.entries)),
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn select_kernel<F: Float, N: Size>(
    inputs: &Inputs<'_, F, N>,
    lists: &mut [i32],
    sizes: Sizes,
    scale: f32,
    #[comptime] plan: SelectPlan,
    #[define(F)] _dtype: ElemType,
) {
    if CUBE_POS >= sizes.lists {
        terminate!();
    }
    let own = sizes.list(CUBE_POS, plan);
    let unit = UNIT_POS as usize;
    let place = CUBE_POS * comptime!(plan.entries);
    let candidates = own.middle - own.front;
    let mut memory = memory(plan);
    // Where there is room for all of them, nobody asks for scores.
    let is_scored = candidates > own.free;
    let mut taken = candidates;
    if is_scored {
        taken = own.free;
        normalize::<F, N>(inputs, &mut memory, &own, scale, plan);
        let mut filled = 0usize;
        for number in 0..candidates.div_ceil(sizes.step) {
            let first = own.front + number * sizes.step;
            let end = min(first + sizes.step, own.middle);
            score::<F, N>(inputs, &mut memory, &own, &sizes, Step { first, end, scale }, plan);
            if unit == 0 {
                for block in first..end {
                    let score = memory.scores[block - first];
                    filled = insert(&mut memory, score, block, filled, own.free);
                }
            }
        }
        sync_cube();
        for turn in 0..taken.div_ceil(comptime!(plan.units)) {
            let index = turn * comptime!(plan.units) + unit;
            if index < taken {
                let number = memory.numbers[index];
                let mut rank = own.front;
                for other in 0..taken {
                    if memory.numbers[other] < number {
                        rank += 1;
                    }
                }
                lists[place + rank] = i32::cast_from(number);
            }
        }
    }
    for turn in 0..comptime!(plan.entries.div_ceil(plan.units)) {
        let entry = turn * comptime!(plan.units) + unit;
        if entry < comptime!(plan.entries) {
            let behind = own.front + taken;
            if entry < own.front || (entry < behind && !is_scored) {
                lists[place + entry] = i32::cast_from(entry);
            }
            if entry >= behind {
                let block = own.middle + (entry - behind);
                let is_there = block < own.end && block < sizes.blocks;
                lists[place + entry] = select(is_there, i32::cast_from(block), -1i32);
            }
        }
    }
}

/// Blocks that are scored at once.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Step {
    first: usize,
    end: usize,
    scale: f32,
}

/// Heads of the group that are taken at once, from one on.
#[cube]
fn heads<F: Float, N: Size>(inputs: &Inputs<'_, F, N>, own: &OwnList, first: usize) -> Line {
    let strides = &inputs.query.strides;
    Line { at: strides.vector(own.batch, 0, 0, own.row, first), step: strides.head }
}

/// The logsumexp of all heads of the group, over the compressed keys that the query sees.
#[cube]
fn normalize<F: Float, N: Size>(
    inputs: &Inputs<'_, F, N>,
    memory: &mut Memory,
    own: &OwnList,
    scale: f32,
    #[comptime] plan: SelectPlan,
) {
    let (group, block) = comptime!((plan.group, plan.block));
    for i in 0..comptime!(group / block) {
        normalize_heads::<F, N>(inputs, memory, own, scale, i * block, plan, block);
    }
    if comptime!(!group.is_multiple_of(block)) {
        for head in comptime!(group / block * block)..group {
            normalize_heads::<F, N>(inputs, memory, own, scale, head, plan, 1usize);
        }
    }
}

#[cube]
fn normalize_heads<F: Float, N: Size>(
    inputs: &Inputs<'_, F, N>,
    memory: &mut Memory,
    own: &OwnList,
    scale: f32,
    first: usize,
    #[comptime] plan: SelectPlan,
    #[comptime] block: usize,
) {
    let (units, lines) = comptime!((plan.units, plan.lines));
    let unit = UNIT_POS as usize;
    let queries = heads::<F, N>(inputs, own, own.head * comptime!(plan.group) + first);
    let (query, key) = (inputs.query.vectors, inputs.key.vectors);
    let mut maxima = Array::<f32>::new(block);
    let mut sums = Array::<f32>::new(block);
    #[unroll]
    for b in 0..block {
        // The least finite number, as WGSL has no literal for infinity.
        maxima[b] = f32::min_value();
        sums[b] = 0.0;
    }
    for turn in 0..own.seen.div_ceil(units) {
        let x = turn * units + unit;
        if x < own.seen {
            let at = inputs.key.strides.vector(own.batch, 0, 0, x, own.head);
            let scores = dots::<F, N>(key, at, query, queries, lines, block);
            #[unroll]
            for b in 0..block {
                let score = scores[b] * scale;
                let maximum = max(maxima[b], score);
                sums[b] = sums[b] * (maxima[b] - maximum).exp() + (score - maximum).exp();
                maxima[b] = maximum;
            }
        }
    }
    #[unroll]
    for b in 0..block {
        memory.maxima[unit * block + b] = maxima[b];
        memory.sums[unit * block + b] = sums[b];
    }
    sync_cube();
    for turn in 0..comptime!(block.div_ceil(units)) {
        let b = turn * units + unit;
        if b < block {
            let mut maximum = f32::min_value();
            for other in 0..units {
                maximum = max(maximum, memory.maxima[other * block + b]);
            }
            let mut sum = 0.0f32;
            for other in 0..units {
                let decay = (memory.maxima[other * block + b] - maximum).exp();
                sum += memory.sums[other * block + b] * decay;
            }
            memory.lse[first + b] = maximum + sum.ln();
        }
    }
    sync_cube();
}

/// The scores of the blocks of a step.
#[cube]
fn score<F: Float, N: Size>(
    inputs: &Inputs<'_, F, N>,
    memory: &mut Memory,
    own: &OwnList,
    sizes: &Sizes,
    step: Step,
    #[comptime] plan: SelectPlan,
) {
    let units = comptime!(plan.units);
    let unit = UNIT_POS as usize;
    let begin = sizes.overlapping(step.first);
    let end = min(step.end * sizes.ratio, own.seen);
    let mut count = 0usize;
    if end > begin {
        count = end - begin;
    }
    for turn in 0..count.div_ceil(units) {
        let index = turn * units + unit;
        if index < count {
            memory.probabilities[index] =
                probability::<F, N>(inputs, &memory.lse, own, begin + index, step.scale, plan);
        }
    }
    sync_cube();
    for turn in 0..(step.end - step.first).div_ceil(units) {
        let block = step.first + turn * units + unit;
        if block < step.end {
            let (from, to) = (block * sizes.ratio, (block + 1) * sizes.ratio);
            let mut score = 0.0f32;
            for x in sizes.overlapping(block)..min(to, own.seen) {
                let shared = min(x + sizes.reach, to) - max(x, from);
                score += f32::cast_from(shared) * memory.probabilities[x - begin];
            }
            memory.scores[block - step.first] = score;
        }
    }
    sync_cube();
}

#[cube]
impl Sizes {
    /// The first compressed block that overlaps a block.
    fn overlapping(&self, block: usize) -> usize {
        let (from, before) = (block * self.ratio, self.reach - 1);
        let mut first = 0usize;
        if from > before {
            first = from - before;
        }
        first
    }
}

/// The probabilities of a compressed key, summed over the heads of the group.
#[cube]
fn probability<F: Float, N: Size>(
    inputs: &Inputs<'_, F, N>,
    lse: &[f32],
    own: &OwnList,
    x: usize,
    scale: f32,
    #[comptime] plan: SelectPlan,
) -> f32 {
    let (group, block, lines) = comptime!((plan.group, plan.block, plan.lines));
    let (query, key) = (inputs.query.vectors, inputs.key.vectors);
    let at = inputs.key.strides.vector(own.batch, 0, 0, x, own.head);
    let queries = heads::<F, N>(inputs, own, own.head * group);
    let mut sum = 0.0f32;
    for i in 0..comptime!(group / block) {
        let scores = dots::<F, N>(key, at, query, queries.from(i * block), lines, block);
        #[unroll]
        for b in 0..block {
            sum += (scores[b] * scale - lse[i * block + b]).exp();
        }
    }
    if comptime!(!group.is_multiple_of(block)) {
        for rest in 0..comptime!(group % block) {
            let head = comptime!(group - group % block) + rest;
            let scores = dots::<F, N>(key, at, query, queries.from(head), lines, 1usize);
            sum += (scores[0] * scale - lse[head]).exp();
        }
    }
    sum
}

/// Takes a block into the `most` best, of which there are `filled`; gives how many there are then. Blocks come in ascending
/// order, so that among equals the lower number stays in front.
#[cube]
fn insert(memory: &mut Memory, score: f32, block: usize, filled: usize, most: usize) -> usize {
    let mut at = filled;
    let mut is_in = filled < most;
    if !is_in && most > 0 {
        at = most - 1;
        is_in = score > memory.best[at];
    }
    let mut count = filled;
    if is_in {
        count = min(filled + 1, most);
        let mut moves = at > 0;
        while moves {
            let before = memory.best[at - 1];
            moves = score > before;
            if moves {
                memory.best[at] = before;
                memory.numbers[at] = memory.numbers[at - 1];
                at -= 1;
                moves = at > 0;
            }
        }
        memory.best[at] = score;
        memory.numbers[at] = u32::cast_from(block);
    }
    count
}

/// The lists of blocks that queries select, by compressed keys: ascending, padded with -1.
///
/// Query `[batch, rows, heads, head_dim]` and compressed keys `[batch, compressed, heads_kv, head_dim]` may be views. Lists
/// are contiguous 32-bit integers, of the shapes of [`Selected`].
///
/// # Errors
///
/// If [`Selection::check`] fails, the device cannot run it or a buffer is too small; then nothing was launched.
pub fn select_blocks(
    client: &Client,
    selection: &Selection,
    dtype: ElemType,
    query: &Strided,
    key: &Strided,
    lists: &Selected<Handle>,
) -> Result<(), KernelError> {
    let (_, dim) = grid_of_cubes(client, 1, UNITS);
    select_blocks_with(client, dim.num_elems(), selection, dtype, query, key, lists)
}

/// [`select_blocks()`] with so many units that work on a list.
///
/// # Errors
///
/// As [`select_blocks()`], or if the device has not as many.
pub fn select_blocks_with(
    client: &Client,
    units: u32,
    selection: &Selection,
    dtype: ElemType,
    query: &Strided,
    key: &Strided,
    lists: &Selected<Handle>,
) -> Result<(), KernelError> {
    let most = client.properties().hardware.max_units_per_cube;
    if units == 0 || units > most {
        let reason = format!("{most} units at most can share a list on this device; got {units}");
        return Err(KernelError::Blueprint(reason));
    }
    check_selection(selection, dtype.size(), [query, key], lists)?;
    let problem = selection.problem();
    let launch = Launch::new(client, &problem, dtype)?;
    let shapes = selection.shapes();
    let (mut vector_size, mut largest) = (launch.vector_size, problem.largest_tensor());
    for (tensor, shape) in [query, key].into_iter().zip(shapes) {
        vector_size = vector_size.min(tensor.widest(shape, dtype.size()));
        largest = largest.max(shape.extent(tensor.strides));
    }
    let count = selection.lists();
    largest = largest.max(count * selection.cmp_top.unwrap_or_default());
    largest = largest.max(count * selection.num_selected);
    let address_type = addresses(client, largest)?;
    let launch = Launch { vector_size, address_type, ..launch };
    let plans = [Some(false), selection.cmp_top.map(|_| true)].into_iter().flatten();
    let plans = plans.map(|is_super| plan(&launch, selection, units, is_super));
    let plans: Vec<SelectPlan> = plans.collect::<Result<_, _>>()?;
    if count == 0 {
        return Ok(());
    }
    // An empty buffer cannot be bound.
    let key = if selection.compressed() > 0 { key } else { query };
    let both = [Some(&lists.blocks), lists.compressed.as_ref()];
    for (plan, lists) in plans.into_iter().zip(both.into_iter().flatten()) {
        launch_kernel(&launch, selection, plan, [query, key], lists);
    }
    Ok(())
}

/// Fails if a block has more compressed ones than a device has room for.
fn plan(
    launch: &Launch<'_>,
    selection: &Selection,
    units: u32,
    is_super: bool,
) -> Result<SelectPlan, KernelError> {
    let (ratio, reach) = selection.overlap(is_super);
    let group = selection.heads / selection.heads_kv;
    let entries = match is_super {
        true => selection.cmp_top.unwrap_or_default(),
        false => selection.num_selected,
    };
    let plan = SelectPlan {
        group,
        block: block_size(group),
        lines: selection.head_dim / launch.vector_size,
        units: units as usize,
        chunk: CHUNK.max((ratio + reach - 1).next_multiple_of(CHUNK)),
        entries,
        is_super,
    };
    let words = 2 * (plan.units * plan.block + plan.chunk + plan.entries) + group;
    let (bytes, most) = (4 * words, launch.client.properties().hardware.max_shared_memory_size);
    if bytes > most {
        let got = format!("{ratio} compressed ones each and lists of {entries}");
        let reason =
            format!("the device has {most} bytes of shared memory; blocks of {got} take {bytes}");
        return Err(KernelError::Problem(reason));
    }
    Ok(plan)
}

fn launch_kernel(
    launch: &Launch<'_>,
    selection: &Selection,
    plan: SelectPlan,
    [query, key]: [&Strided; 2],
    lists: &Handle,
) {
    let (ratio, reach) = selection.overlap(plan.is_super);
    let (size, blocks) = match plan.is_super {
        true => (selection.cmp_group, selection.super_blocks()),
        false => (selection.slc_block, selection.blocks()),
    };
    let count = selection.lists();
    let cube_count = grid(launch.client, count);
    let cube_dim = CubeDim::new_1d(plan.units as u32);
    let vector = launch.vector_size;
    let input = |tensor: &Strided| Input::argument((&tensor.handle, tensor.strides), vector);
    // SAFETY: every index is below the sizes that the buffers were checked against.
    unsafe {
        select_kernel::launch_unchecked(
            launch.client,
            cube_count,
            cube_dim,
            launch.address_type,
            vector,
            InputsLaunch::new(input(query), input(key)),
            buffer(lists),
            SizesLaunch::new(
                selection.heads_kv,
                selection.tiles(),
                count,
                selection.tokens - selection.rows,
                selection.query_tile,
                selection.cmp_block,
                selection.cmp_stride,
                size,
                ratio,
                reach,
                selection.num_init,
                selection.num_local,
                blocks,
                (plan.chunk - (reach - 1)) / ratio,
            ),
            selection.scale as f32,
            plan,
            launch.dtype,
        );
    }
}
