//! Blocks and their tokens inside a kernel: [`BlockSparse`] once more.

// `#[cube]` and `CubeLaunch` add items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use crate::BlockSparse;

/// One axis. A causal one ends what a query sees.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct BlockAxis {
    pub queries: usize,
    pub keys: usize,
    query_block: usize,
    key_block: usize,
    /// Blocks of queries along the axis, and of keys.
    query_blocks: usize,
    key_blocks: usize,
    /// By how much queries stand ahead of where the axis begins, and behind it; one of both is 0.
    ahead: usize,
    behind: usize,
    /// From where a key stands to where the next one does.
    step: usize,
    #[cube(comptime)]
    is_causal: bool,
}

/// Sizes of a problem, slowest axis first.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct BlockSpace {
    pub z: BlockAxis,
    pub y: BlockAxis,
    pub x: BlockAxis,
    pub heads: usize,
    pub heads_kv: usize,
    pub list_heads: usize,
    pub entries: usize,
}

/// Tokens along one axis: `count` of them from `first` on.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Span {
    pub first: usize,
    pub count: usize,
}

/// A token, or a block, by its number along each axis.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Place {
    pub z: usize,
    pub y: usize,
    pub x: usize,
}

#[cube]
impl BlockAxis {
    /// How many of the first keys a query may see.
    fn keys_before(&self, query: usize) -> usize {
        let mut seen = self.keys;
        if comptime!(self.is_causal) {
            let at = query + self.ahead;
            seen = 0;
            if at >= self.behind {
                seen = min((at - self.behind) / self.step + 1, self.keys);
            }
        }
        seen
    }

    /// How many of the first queries do not see a key.
    fn queries_before(&self, key: usize) -> usize {
        let mut blind = 0usize;
        if comptime!(self.is_causal) {
            let at = key * self.step + self.behind;
            if at > self.ahead {
                blind = min(at - self.ahead, self.queries);
            }
        }
        blind
    }

    /// The keys of a block that a query may see.
    pub fn keys_of(&self, block: usize, query: usize) -> Span {
        let first = block * self.key_block;
        let end = min(first + self.key_block, self.keys_before(query));
        let mut count = 0usize;
        if end > first {
            count = end - first;
        }
        Span { first, count }
    }

    /// The queries of a block that may see a key.
    pub fn queries_of(&self, block: usize, key: usize) -> Span {
        let start = block * self.query_block;
        let first = max(start, self.queries_before(key));
        let end = min(start + self.query_block, self.queries);
        let mut count = 0usize;
        if end > first {
            count = end - first;
        }
        Span { first, count }
    }
}

#[cube]
impl BlockSpace {
    pub fn queries(&self) -> usize {
        self.z.queries * self.y.queries * self.x.queries
    }

    pub fn keys(&self) -> usize {
        self.z.keys * self.y.keys * self.x.keys
    }

    pub fn query_blocks(&self) -> usize {
        self.z.query_blocks * self.y.query_blocks * self.x.query_blocks
    }

    pub fn key_blocks(&self) -> usize {
        self.z.key_blocks * self.y.key_blocks * self.x.key_blocks
    }

    pub fn query_place(&self, query: usize) -> Place {
        place(query, self.y.queries, self.x.queries)
    }

    pub fn key_place(&self, key: usize) -> Place {
        place(key, self.y.keys, self.x.keys)
    }

    /// Where a block of queries lies among the others.
    pub fn query_block_place(&self, block: usize) -> Place {
        place(block, self.y.query_blocks, self.x.query_blocks)
    }

    /// Where a block of keys lies among the others.
    pub fn key_block_place(&self, block: usize) -> Place {
        place(block, self.y.key_blocks, self.x.key_blocks)
    }

    /// The block that a query belongs to.
    pub fn block_of_query(&self, at: Place) -> usize {
        let line = at.z / self.z.query_block * self.y.query_blocks + at.y / self.y.query_block;
        line * self.x.query_blocks + at.x / self.x.query_block
    }

    /// The block that a key belongs to.
    pub fn block_of_key(&self, at: Place) -> usize {
        let line = at.z / self.z.key_block * self.y.key_blocks + at.y / self.y.key_block;
        line * self.x.key_blocks + at.x / self.x.key_block
    }

    /// Heads of the queries that share a list.
    pub fn heads_of_list(&self) -> usize {
        self.heads / self.list_heads
    }

    /// Heads of the queries that share one of keys.
    pub fn group_size(&self) -> usize {
        self.heads / self.heads_kv
    }
}

#[cube]
fn place(number: usize, y: usize, x: usize) -> Place {
    let line = number / x;
    Place { z: line / y, y: line % y, x: number % x }
}

/// Launch argument for a problem that was checked.
pub(super) fn space(sparse: &BlockSparse) -> BlockSpaceLaunch {
    let problem = &sparse.problem;
    let (query_grid, key_grid) = (sparse.query_grid(), sparse.key_grid());
    let [z, y, x] = [0, 1, 2].map(|index| {
        let axis = &problem.axes[index];
        let step = sparse.steps[index];
        let (ahead, behind) = (axis.origin.max(0) as usize, axis.origin.min(0).unsigned_abs());
        BlockAxisLaunch::new(
            axis.queries,
            axis.keys,
            // No number is larger than it has to be: those of a kernel may have 32 bits.
            sparse.query_block[index].min(axis.queries.max(1)),
            sparse.key_block[index].min(axis.keys.max(1)),
            query_grid[index],
            key_grid[index],
            ahead.min(axis.keys * step),
            behind.min(axis.queries),
            step,
            axis.is_causal,
        )
    });
    BlockSpaceLaunch::new(
        z,
        y,
        x,
        problem.heads,
        problem.heads_kv,
        sparse.list_heads,
        sparse.entries,
    )
}
