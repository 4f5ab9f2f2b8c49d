//! When kernels go from block to block: each block is brought once for all rows that list it, and results of all entries go through memory.

use super::{Union, UnionKernel};
use crate::BlockSparse;
use crate::native::sm90::schedule::SHARED_MEMORY;

/// Heads of a group for which results of all entries in memory are cheaper than blocks for each query: forward, where for 16 they cost the
/// same, and backward, where blocks would come twice, and two products of seven be computed again.
pub(super) const MOST_GROUP: usize = 8;
pub(super) const MOST_GROUP_BACKWARD: usize = 16;
/// Bytes of the results of a sample and key head. As many samples and heads at once as have results of [`RESULTS`].
const MOST_RESULTS: usize = 5 << 30;
pub(super) const RESULTS: usize = 9 << 27;

/// Entries that name a block, on average, from which on they are.
const LEAST_VISITORS: usize = 64;
/// Entries that a CTA takes then: 128 tiles in groups of 4 heads, and 512 in groups of 16.
const VISITORS_OF_PART: usize = 2048;

impl Union {
    /// The same for a forward pass that goes from block to block, where that takes less time.
    pub fn visits(&self, sparse: &BlockSparse) -> Option<Self> {
        self.by_block(sparse, UnionKernel::Visits, Self::bytes_of_visits)
    }

    /// The same for a backward pass, of queries and of keys or values.
    pub fn visits_backward(&self, sparse: &BlockSparse) -> Option<Self> {
        self.by_block(sparse, UnionKernel::VisitGradients, Self::bytes_of_gradients)
    }

    /// Where results of so many entries take so many bytes.
    fn by_block(
        &self,
        sparse: &BlockSparse,
        kernel: UnionKernel,
        of_results: impl Fn(&Self, usize) -> usize,
    ) -> Option<Self> {
        let [_, _, queries] = sparse.query_block;
        let (problem, blocks) = (&sparse.problem, sparse.key_blocks());
        let listed = sparse.query_blocks().saturating_mul(sparse.entries);
        // Blocks that few list are better brought by those.
        let is_shared = listed >= LEAST_VISITORS * blocks;
        let entries = problem.queries().saturating_mul(sparse.entries);
        let fits =
            of_results(self, entries) <= MOST_RESULTS && size_of::<u32>() * blocks <= SHARED_MEMORY;
        let is_one = self.has(kernel) && queries.min(problem.queries()) == 1;
        let part = self.part.min(VISITORS_OF_PART);
        (is_one && is_shared && fits).then_some(Self { part, ..*self })
    }

    /// Bytes of the results of so many entries.
    pub(super) const fn bytes_of_visits(&self, entries: usize) -> usize {
        entries.saturating_mul(self.group * (2 * self.head_dim_v + size_of::<f32>()))
    }

    /// Bytes of their rows of gradients, and of the scale of each.
    pub(super) const fn bytes_of_gradients(&self, entries: usize) -> usize {
        entries.saturating_mul(self.group * (2 * self.head_dim + size_of::<f32>()))
    }
}
