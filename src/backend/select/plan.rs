use burn::tensor::{Device, IntDType};
use burn_natten_kernels::Problem;

use crate::options::{Mslk, NativeSparseAttentionOptions, Sizes};
use crate::{Context, MemoryPreference, Strategy};

/// What is to be selected.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SelectPlan {
    /// Sizes of query and compressed key, and the scale.
    pub(crate) problem: Problem,
    /// Tokens of a sequence, the last of which have queries.
    pub(crate) tokens: usize,
    pub(crate) sizes: Sizes,
    pub(crate) mslk: Option<Mslk>,
    pub(crate) strategy: Strategy,
    pub(crate) memory: MemoryPreference,
    /// The type of lists.
    pub(crate) ints: IntDType,
}

impl SelectPlan {
    pub(crate) fn new(
        problem: Problem,
        tokens: usize,
        device: &Device,
        options: &NativeSparseAttentionOptions,
    ) -> Self {
        let context = options.common.context.unwrap_or_else(Context::current);
        let (sizes, mslk, memory) = (options.sizes, options.mslk, context.memory());
        let ints = device.settings().int_dtype;
        let strategy = options.common.strategy;
        Self { problem, tokens, sizes, mslk, strategy, memory, ints }
    }

    /// Queries.
    pub(crate) fn rows(&self) -> usize {
        self.problem.queries()
    }

    /// Where the first query stands.
    pub(crate) fn offset(&self) -> usize {
        self.tokens - self.rows()
    }

    pub(crate) fn tiles(&self) -> usize {
        self.rows().div_ceil(self.sizes.query_tile)
    }

    /// Selection blocks that there are.
    pub(crate) fn blocks(&self) -> usize {
        self.tokens.div_ceil(self.sizes.slc_block)
    }

    /// Compressed blocks that there are.
    pub(crate) fn compressed(&self) -> usize {
        self.problem.keys()
    }

    /// Heads that have lists of their own.
    pub(crate) fn list_heads(&self) -> usize {
        match self.mslk {
            Some(_) => self.problem.heads,
            None => self.problem.heads_kv,
        }
    }

    /// Where the first query of a tile stands.
    pub(crate) fn first(&self, tile: usize) -> usize {
        self.offset() + tile * self.sizes.query_tile
    }

    /// The selection blocks of the first and of the last query of a tile.
    pub(crate) fn own(&self, tile: usize) -> (usize, usize) {
        self.sizes.own(self.first(tile))
    }

    /// Compressed blocks that the first query of a tile sees.
    pub(crate) fn seen(&self, tile: usize) -> usize {
        self.sizes.compressed(self.first(tile) + 1)
    }

    /// The super-blocks that fill while a tile lasts: the first one, and the end.
    pub(crate) fn filling(&self, tile: usize) -> (usize, usize) {
        self.sizes.filling(self.first(tile))
    }

    /// How many tiles are computed at a time, so that scores are not all in memory.
    pub(crate) fn tiles_at_a_time(&self) -> usize {
        let Sizes { num_selected, cmp_top, .. } = self.sizes;
        let entries = num_selected.max(cmp_top.unwrap_or(0));
        let scores = self.problem.heads * self.compressed();
        // Entries of a list are compared with each other.
        let order = self.list_heads() * entries * entries;
        let each = self.problem.batch * scores.max(order);
        let most = match self.memory {
            MemoryPreference::Strict => 1 << 18,
            MemoryPreference::Default => 1 << 22,
            MemoryPreference::Unrestricted => usize::MAX,
        };
        (most / each.max(1)).clamp(1, self.tiles().max(1))
    }
}
