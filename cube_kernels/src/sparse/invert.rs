//! From lists of key blocks to lists of the query blocks that name them.
//!
//! Four kernels, none of them with atomics, so that the order is that of the lists. Units *count* what a chunk of consecutive
//! entries names, each into a row of its own of a table `[chunks, key_blocks]`. The table's columns are *summed* over chunks,
//! and their totals over blocks by a *scan*. Then units walk their chunks again and *scatter* them to where their row of the
//! table says.

// `#[cube]` and `CubeLaunch` add items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::client::Client;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::check_lists;
use crate::cube::{addresses, buffer, grid_of_cubes, grid_of_units};
use crate::{BlockSparse, KernelError};

/// Units that scan the blocks of a list head.
const SCAN_UNITS: u32 = 256;

/// Which query blocks name each key block, on a device: `u32` numbers, first `starts` and behind them `items`.
///
/// `starts` are `[batch, list_heads, key_blocks + 1]` and `items` `[batch, list_heads, query_blocks * entries]`. The query
/// blocks that name key block `j` of a sample and a head are its `items[starts[j]..starts[j + 1]]`, ascending; one that names
/// it twice is there twice. Items behind the last start are undefined.
#[derive(Clone, Debug)]
pub struct Inverse {
    /// The memory.
    pub handle: Handle,
    /// Number of starts, which is where items begin.
    pub starts: usize,
}

/// Sizes of lists, and chunks that they are cut into.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Table {
    list_heads: usize,
    query_blocks: usize,
    entries: usize,
    key_blocks: usize,
    /// Chunks of the lists of a sample and head.
    chunks: usize,
    /// Entries of a chunk.
    chunk: usize,
}

/// What a unit owns: a chunk of the lists of a sample and a head.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Chunk {
    /// Sample and head, as one number.
    pair: usize,
    first: usize,
    end: usize,
    /// Where its row of the table begins.
    row: usize,
}

#[cube]
impl Table {
    /// Entries of all lists of a sample and head.
    fn listed(&self) -> usize {
        self.query_blocks * self.entries
    }

    fn chunk(&self, unit: usize) -> Chunk {
        let first = unit % self.chunks * self.chunk;
        Chunk {
            pair: unit / self.chunks,
            first,
            end: min(first + self.chunk, self.listed()),
            row: unit * self.key_blocks,
        }
    }

    /// The key block that an entry names, or one behind the last one.
    fn block(&self, lists: &[i32], pair: usize, entry: usize) -> usize {
        let (batch, head) = (pair / self.list_heads, pair % self.list_heads);
        let query_block = batch * self.query_blocks + entry / self.entries;
        let list = (query_block * self.list_heads + head) * self.entries;
        // As `u32`, what is below zero is above every block.
        usize::cast_from(u32::reinterpret(lists[list + entry % self.entries]))
    }
}

/// A unit owns a chunk.
#[cube(launch_unchecked, address_type = "dynamic")]
fn count_kernel(lists: &[i32], counts: &mut [u32], table: Table, units: usize) {
    if ABSOLUTE_POS >= units {
        terminate!();
    }
    let own = table.chunk(ABSOLUTE_POS);
    for block in 0..table.key_blocks {
        counts[own.row + block] = 0u32;
    }
    for entry in own.first..own.end {
        let block = table.block(lists, own.pair, entry);
        if block < table.key_blocks {
            counts[own.row + block] += 1u32;
        }
    }
}

/// A unit owns a key block of a sample and head. Counts become those of the chunks before.
#[cube(launch_unchecked, address_type = "dynamic")]
fn sum_kernel(counts: &mut [u32], inverse: &mut [u32], table: Table, units: usize) {
    if ABSOLUTE_POS >= units {
        terminate!();
    }
    let (pair, block) = (ABSOLUTE_POS / table.key_blocks, ABSOLUTE_POS % table.key_blocks);
    let mut before = 0u32;
    for chunk in 0..table.chunks {
        let at = (pair * table.chunks + chunk) * table.key_blocks + block;
        let count = counts[at];
        counts[at] = before;
        before += count;
    }
    inverse[pair * (table.key_blocks + 1) + block + 1] = before;
}

/// A cube owns a sample and head. The totals behind each start become starts.
#[cube(launch_unchecked, address_type = "dynamic")]
fn scan_kernel(inverse: &mut [u32], table: Table, pairs: usize, #[comptime] units: usize) {
    let pair = CUBE_POS;
    if pair >= pairs {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let each = table.key_blocks.div_ceil(units);
    let start = pair * (table.key_blocks + 1);
    let first = min(unit * each, table.key_blocks);
    let end = min(first + each, table.key_blocks);
    let mut totals = Shared::<[u32]>::new_slice(units);
    let mut total = 0u32;
    for block in first..end {
        total += inverse[start + block + 1];
    }
    totals[unit] = total;
    sync_cube();
    let mut before = 0u32;
    for other in 0..unit {
        before += totals[other];
    }
    if unit == 0 {
        inverse[start] = 0u32;
    }
    for block in first..end {
        before += inverse[start + block + 1];
        inverse[start + block + 1] = before;
    }
}

/// A unit owns a chunk. Its counts become where its next item goes.
#[cube(launch_unchecked, address_type = "dynamic")]
fn scatter_kernel(
    lists: &[i32],
    counts: &mut [u32],
    inverse: &mut [u32],
    table: Table,
    starts: usize,
    units: usize,
) {
    if ABSOLUTE_POS >= units {
        terminate!();
    }
    let own = table.chunk(ABSOLUTE_POS);
    let items = starts + own.pair * table.listed();
    for entry in own.first..own.end {
        let block = table.block(lists, own.pair, entry);
        if block < table.key_blocks {
            let start = inverse[own.pair * (table.key_blocks + 1) + block];
            let before = counts[own.row + block];
            counts[own.row + block] = before + 1u32;
            inverse[items + usize::cast_from(start + before)] =
                u32::cast_from(entry / table.entries);
        }
    }
}

/// Entries of a chunk: so many that the table has at most twice as many elements as the lists, or one row, and that there are
/// about as many chunks as entries in one.
fn chunk_size(listed: usize, key_blocks: usize) -> usize {
    listed.isqrt().max(key_blocks.div_ceil(2)).max(1)
}

/// The inverse of lists `[batch, query_blocks, list_heads, entries]` of 32-bit integers. Entries that are no key block's are in
/// none of its lists.
///
/// Workspace, until the kernels ran: at most twice the lists, or a number for each sample, head and key block.
///
/// # Errors
///
/// If the lists are not those of a problem that kernels know, or too long for 32-bit numbers, or the device cannot address
/// them; then nothing was launched.
pub fn invert(
    client: &Client,
    sparse: &BlockSparse,
    lists: &Handle,
) -> Result<Inverse, KernelError> {
    check_lists(sparse, lists)?;
    let (query_blocks, key_blocks) = (sparse.query_blocks(), sparse.key_blocks());
    let pairs = sparse.problem.batch * sparse.list_heads;
    let listed = query_blocks * sparse.entries;
    if listed > i32::MAX as usize {
        let reason = format!("32-bit numbers cannot count the {listed} entries of a head's lists");
        return Err(KernelError::Problem(reason));
    }
    let chunk = chunk_size(listed, key_blocks);
    let chunks = listed.div_ceil(chunk);
    let starts = pairs * (key_blocks + 1);
    let (counts, elements) = (pairs * chunks * key_blocks, starts + pairs * listed);
    let largest = elements.max(counts);
    let address_type = addresses(client, largest)?;
    let workspace = |elements: usize| client.empty((elements * size_of::<u32>()).max(4));
    let (counts, handle) = (workspace(counts), workspace(elements));
    let inverse = Inverse { handle: handle.clone(), starts };
    if pairs * key_blocks == 0 {
        return Ok(inverse);
    }
    let table = || {
        let (list_heads, entries) = (sparse.list_heads, sparse.entries);
        TableLaunch::new(list_heads, query_blocks, entries, key_blocks, chunks, chunk)
    };
    let units = pairs * chunks;
    // SAFETY: every index is below the sizes that the workspaces were made for and the lists checked against.
    unsafe {
        if units > 0 {
            let (count, dim) = grid_of_units(client, units);
            let (lists, counts) = (buffer(lists), buffer(&counts));
            count_kernel::launch_unchecked(
                client,
                count,
                dim,
                address_type,
                lists,
                counts,
                table(),
                units,
            );
        }
        let (count, dim) = grid_of_units(client, pairs * key_blocks);
        sum_kernel::launch_unchecked(
            client,
            count,
            dim,
            address_type,
            buffer(&counts),
            buffer(&handle),
            table(),
            pairs * key_blocks,
        );
        let (count, dim) = grid_of_cubes(client, pairs, SCAN_UNITS);
        let scanning = dim.num_elems() as usize;
        scan_kernel::launch_unchecked(
            client,
            count,
            dim,
            address_type,
            buffer(&handle),
            table(),
            pairs,
            scanning,
        );
        if units > 0 {
            let (count, dim) = grid_of_units(client, units);
            scatter_kernel::launch_unchecked(
                client,
                count,
                dim,
                address_type,
                buffer(lists),
                buffer(&counts),
                buffer(&handle),
                table(),
                starts,
                units,
            );
        }
    }
    Ok(inverse)
}
