//! Lists of blocks turned around on the device, see `cuda/inverse.cu`: what [`invert`] makes, in a tenth of its time.

use std::sync::Arc;

use cubecl::client::Client;

use super::forward::hopper;
use super::program::Program;
use super::schedule::SHARED_MEMORY;
use crate::native::compile::Cubin;
use crate::native::grid::parameters;
use crate::native::launch::{Buffer, Kernel, launch};
use crate::sparse::{Inverse, check_lists, invert};
use crate::{BlockSparse, KernelError};
use cubecl::server::Handle;

/// Entries of a chunk at least, and chunks of a sample and head at most, for which `attention_before` has registers.
const LEAST_CHUNK: usize = 1024;
const MOST_CHUNKS: usize = 512;
/// Threads of the kernels that add up, and blocks of a CTA of the first of them.
const THREADS: usize = 1024;
const TOGETHER: usize = 32;

/// What inverse lists hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Items {
    /// The numbers of lists.
    Lists,
    /// Those of entries, of all lists of a sample and head.
    Entries,
}

/// The kernels' `Params`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    pointers: [u64; 4],
    queries: i32,
    heads: i32,
    entries: i32,
    blocks: i32,
    chunks: i32,
    chunk: i32,
    divisor: i32,
    padding: i32,
}

const _: () = assert!(size_of::<Params>() == 8 * 4 + 4 * 8);

/// Blocks that a warp can count.
const MOST_BLOCKS: usize = SHARED_MEMORY / size_of::<u32>();

/// The inverse of lists, as [`invert`] has it, or with the numbers of their entries. Of these there have to be some, of at most 58,112
/// blocks of keys.
///
/// # Errors
///
/// If the lists are not those of the problem, or the device has not compute capability 9.0; then nothing was launched.
pub fn invert_lists(
    client: &Client,
    sparse: &BlockSparse,
    lists: &Handle,
    items: Items,
) -> Result<Inverse, KernelError> {
    let cubin = Program::Inverse.load(&hopper(client)?)?;
    turn_lists(client, &cubin, sparse, lists, items)
}

/// [`invert_lists`] by the program that is given.
pub(super) fn turn_lists(
    client: &Client,
    cubin: &Arc<Cubin>,
    sparse: &BlockSparse,
    lists: &Handle,
    items: Items,
) -> Result<Inverse, KernelError> {
    let (queries, blocks, entries) = (sparse.query_blocks(), sparse.key_blocks(), sparse.entries);
    let pairs = sparse.problem.batch * sparse.list_heads;
    let listed = queries * entries;
    if blocks > MOST_BLOCKS || pairs * listed * blocks == 0 {
        return match items {
            Items::Lists => invert(client, sparse, lists),
            Items::Entries => Err(KernelError::Problem(format!(
                "there are {listed} entries of {blocks} blocks, must be some of 1 to {MOST_BLOCKS}"
            ))),
        };
    }
    check_lists(sparse, lists)?;
    let chunk = listed.div_ceil(MOST_CHUNKS).next_multiple_of(32).max(LEAST_CHUNK);
    let chunks = listed.div_ceil(chunk);
    let starts = pairs * (blocks + 1);
    let words = |count: usize| client.empty(count * size_of::<u32>());
    let (handle, counts) = (words(starts + pairs * listed), words(pairs * chunks * blocks));
    let params = Params {
        pointers: [0; 4],
        queries: queries as i32,
        heads: sparse.list_heads as i32,
        entries: entries as i32,
        blocks: blocks as i32,
        chunks: chunks as i32,
        chunk: chunk as i32,
        divisor: if items == Items::Entries { 1 } else { entries as i32 },
        padding: 0,
    };
    // SAFETY: the assertion above counts every byte.
    let params = unsafe { parameters(params, &[0, 0, 1, 2]) }.behind(1, starts * size_of::<u32>());
    let walks = (pairs * chunks, 32, blocks * size_of::<u32>());
    let parts = pairs * blocks.div_ceil(TOGETHER);
    for (entry, (grid, block, shared)) in [
        (c"attention_count", walks),
        (c"attention_before", (parts, THREADS, THREADS * size_of::<u32>())),
        (c"attention_starts", (pairs, THREADS, THREADS / 32 * size_of::<u32>())),
        (c"attention_scatter", walks),
    ] {
        let kernel = Kernel {
            cubin: cubin.clone(),
            entry,
            grid: grid as u32,
            block: block as u32,
            shared_memory: shared as u32,
        };
        let buffers = vec![Buffer::written(&handle), Buffer::written(&counts), Buffer::read(lists)];
        launch(client, kernel, buffers, vec![params.clone()]);
    }
    Ok(Inverse { handle, starts })
}
