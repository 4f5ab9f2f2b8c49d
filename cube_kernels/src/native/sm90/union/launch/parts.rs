//! How key blocks are shared among CTAs, see `cuda/union_parts.cuh`.

use std::sync::Arc;

use cubecl::client::Client;
use cubecl::server::Handle;

use super::Walk;
use super::by_block::run;
use crate::native::compile::Cubin;
use crate::native::grid::parameters;
use crate::native::launch::Buffer;
use crate::sparse::Inverse;

/// Bytes of a part in the table.
const PART: usize = 16;
/// Threads of the kernel that finds them.
const THREADS: usize = 256;

/// The kernel's `Params`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    pointers: [u64; 4],
    inverse: [i32; 4],
}

const _: () = assert!(size_of::<Params>() == 8 * 4 + 4 * 4);

/// The parts of key blocks.
pub(super) struct Parts {
    /// Of each sample and key head, so many as it has at most.
    pub table: Handle,
    /// Where the sums of each block's parts are.
    pub slots: Handle,
    /// Of a sample and key head: parts and slots at most, entries of all lists, and blocks.
    pub most: usize,
    pub most_slots: usize,
    pub listed: usize,
    blocks: usize,
}

impl Parts {
    /// Enqueues what finds those of inverse lists.
    pub fn find(client: &Client, cubin: &Arc<Cubin>, walk: &Walk<'_>, inverse: &Inverse) -> Self {
        let Walk { of, sparse } = walk;
        let problem = &sparse.problem;
        let (pairs, blocks) = (problem.batch * problem.heads_kv, sparse.key_blocks());
        let listed = sparse.query_blocks() * sparse.entries;
        let [most, most_slots] = of.most_parts(blocks, listed);
        let table = client.empty(PART * pairs * most);
        let slots = client.empty(size_of::<i32>() * pairs * (blocks + 1));
        let parts = Self { table, slots, most, most_slots, listed, blocks };
        let params = Params { pointers: [0; 4], inverse: parts.numbers() };
        // SAFETY: the assertion at `Params` counts every byte.
        let params = unsafe { parameters(params, &[0, 1, 2, 2]) };
        let params = params.behind(3, size_of::<u32>() * inverse.starts);
        let mut buffers = [&parts.table, &parts.slots].map(Buffer::written).to_vec();
        buffers.push(Buffer::read(&inverse.handle));
        let shared = 2 * THREADS * size_of::<i32>();
        run(client, cubin, c"attention_parts", [pairs, THREADS, shared], buffers, params);
        parts
    }

    /// The kernels' `Inverse` behind its addresses.
    pub fn numbers(&self) -> [i32; 4] {
        [self.listed, self.blocks, self.most, self.most_slots].map(|number| number as i32)
    }
}
