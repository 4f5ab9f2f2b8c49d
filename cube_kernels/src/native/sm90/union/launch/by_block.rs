//! What both passes share that go from block to block.

use std::ffi::CStr;
use std::sync::Arc;

use cubecl::client::Client;
use cubecl::server::Handle;

use super::Walk;
use super::parts::Parts;
use crate::KernelError;
use crate::native::compile::Cubin;
use crate::native::divisor::Divisor;
use crate::native::launch::{Argument, Buffer, Kernel, launch};
use crate::native::sm90::inverse::{Items, turn_lists};
use crate::sparse::Inverse;

/// Threads of the kernels that visit blocks, and of those that put results together, and warps of these.
pub(super) const VISITING: usize = 256;
pub(super) const JOINING: usize = 128;
pub(super) const JOINING_WARPS: usize = JOINING / 32;

/// The kernels' `Visits`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Visits {
    queries: i32,
    keys: i32,
    heads_kv: i32,
    entries: Divisor,
    blocks: i32,
    pub first_pair: i32,
    pub pairs: i32,
    origin: i32,
    step: i32,
    scale: f32,
    scale_log2: f32,
}

const _: () = assert!(size_of::<Visits>() == 4 * 14);

/// Lists that are turned around and cut into parts.
pub(super) struct ByBlock<'a> {
    pub walk: Walk<'a>,
    pub inverse: Inverse,
    pub parts: Parts,
    /// Pairs of a sample and a key head.
    pub pairs: usize,
}

impl<'a> ByBlock<'a> {
    /// Enqueues that, by these programs.
    ///
    /// # Errors
    ///
    /// [`KernelError`] if lists cannot be turned around. Nothing was launched then.
    pub fn new(
        client: &Client,
        [turn, cut]: [&Arc<Cubin>; 2],
        walk: Walk<'a>,
        lists: &Handle,
    ) -> Result<Self, KernelError> {
        let Walk { sparse, .. } = walk;
        let inverse = turn_lists(client, turn, sparse, lists, Items::Entries)?;
        let parts = Parts::find(client, cut, &walk, &inverse);
        let pairs = sparse.problem.batch * sparse.problem.heads_kv;
        Ok(Self { walk, inverse, parts, pairs })
    }

    /// The pairs of a launch, where one takes so many bytes of results: as few launches as need be, all about as long.
    pub fn at_once(&self, bytes: usize) -> usize {
        let at_once = (self.walk.of.results / bytes.max(1)).clamp(1, self.pairs);
        self.pairs.div_ceil(self.pairs.div_ceil(at_once))
    }

    /// What the kernels know of each launch.
    pub fn launches(&self, at_once: usize) -> impl Iterator<Item = Visits> {
        let Walk { sparse, .. } = self.walk;
        let problem = &sparse.problem;
        let [scale, scale_log2] = self.walk.scales();
        let all = Visits {
            queries: problem.queries() as i32,
            keys: problem.keys() as i32,
            heads_kv: problem.heads_kv as i32,
            entries: Divisor::new(sparse.entries),
            blocks: sparse.key_blocks() as i32,
            first_pair: 0,
            pairs: self.pairs as i32,
            origin: self.walk.origin(),
            step: self.walk.step() as i32,
            scale,
            scale_log2,
        };
        (0..all.pairs).step_by(at_once).map(move |first_pair| {
            let pairs = (all.pairs - first_pair).min(at_once as i32);
            Visits { first_pair, pairs, ..all }
        })
    }

    /// Bytes of the inverse lists ahead of their items.
    pub fn behind(&self) -> usize {
        size_of::<u32>() * self.inverse.starts
    }
}

/// Enqueues a kernel of so many CTAs, threads and bytes of shared memory.
pub(super) fn run(
    client: &Client,
    cubin: &Arc<Cubin>,
    entry: &'static CStr,
    [grid, block, shared_memory]: [usize; 3],
    buffers: Vec<Buffer>,
    params: Argument,
) {
    let kernel = Kernel {
        cubin: cubin.clone(),
        entry,
        grid: grid as u32,
        block: block as u32,
        shared_memory: shared_memory as u32,
    };
    launch(client, kernel, buffers, vec![params]);
}
