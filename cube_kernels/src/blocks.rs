//! Attention of blocks of queries to listed blocks of keys.

use std::ops::Range;

use crate::{MAX_RANK, Problem};

/// What block-sparse attention computes: sizes and parameters, no data.
///
/// Tokens are cut into boxes along their axes, those of the queries by one shape and those of the keys by another; the last
/// boxes along an axis may be short. They are numbered row-major. A list names the blocks of keys that the queries of a
/// block see. A number that is no block's, such as `-1`, names none; one that is listed twice counts twice.
///
/// Lists are `[batch, query_blocks, list_heads, entries]`. Everything else is that of the [`Problem`], whose axes are dense.
///
/// ```rust
/// use burn_natten_kernels::{Axis, BlockSparse, Problem};
///
/// let problem = Problem::new([Axis::dense(100, 100, true)], 4, 64).with_heads_kv(2);
/// let sparse = BlockSparse::new(problem, [16], [32]).with_lists(2, 3);
/// assert_eq!((sparse.query_blocks(), sparse.key_blocks()), (7, 4));
/// // Queries and keys of the last blocks.
/// assert_eq!(sparse.queries_of(6), [0..1, 0..1, 96..100]);
/// assert_eq!(sparse.keys_of(3), [0..1, 0..1, 96..100]);
/// // A query of a causal axis sees keys up to where it stands, if their block is listed.
/// assert_eq!((sparse.keys_before(2, 40), sparse.queries_before(2, 40)), (41, 40));
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct BlockSparse {
    /// Sizes and the scale. Axes are dense; there are no additional tokens and no bias.
    pub problem: Problem,
    /// Queries of a block along each axis, slowest first, padded at the front with 1.
    pub query_block: [usize; MAX_RANK],
    /// Keys of a block along each axis.
    pub key_block: [usize; MAX_RANK],
    /// Heads that have lists of their own: those of the queries, or those of the keys.
    pub list_heads: usize,
    /// Entries of a list.
    pub entries: usize,
    /// Along a causal axis, where the keys stand: key `j` at `j * step`. Keys that stand for several tokens, as those of
    /// compressed attention, have a step.
    pub steps: [usize; MAX_RANK],
}

impl BlockSparse {
    /// Blocks of these shapes, slowest axis first, and lists without entries for each head of the queries.
    ///
    /// # Panics
    ///
    /// Without axes, or with more than [`MAX_RANK`].
    pub fn new(
        problem: Problem,
        query_block: impl AsRef<[usize]>,
        key_block: impl AsRef<[usize]>,
    ) -> Self {
        Self {
            problem,
            query_block: padded(query_block.as_ref()),
            key_block: padded(key_block.as_ref()),
            list_heads: problem.heads,
            entries: 0,
            steps: [1; MAX_RANK],
        }
    }

    /// The same with lists of so many entries for so many heads, `heads` or `heads_kv`.
    pub const fn with_lists(self, list_heads: usize, entries: usize) -> Self {
        Self { list_heads, entries, ..self }
    }

    /// The same with so many queries from one key to the next along the fastest axis.
    pub const fn with_step(self, step: usize) -> Self {
        let [z, y, _] = self.steps;
        Self { steps: [z, y, step], ..self }
    }

    /// Blocks of queries along each axis.
    pub fn query_grid(&self) -> [usize; MAX_RANK] {
        [0, 1, 2].map(|axis| self.problem.axes[axis].queries.div_ceil(self.query_block[axis]))
    }

    /// Blocks of keys along each axis.
    pub fn key_grid(&self) -> [usize; MAX_RANK] {
        [0, 1, 2].map(|axis| self.problem.axes[axis].keys.div_ceil(self.key_block[axis]))
    }

    /// Blocks of queries.
    pub fn query_blocks(&self) -> usize {
        self.query_grid().iter().product()
    }

    /// Blocks of keys.
    pub fn key_blocks(&self) -> usize {
        self.key_grid().iter().product()
    }

    /// Heads of the queries that share a list.
    pub fn heads_of_list(&self) -> usize {
        self.problem.heads / self.list_heads
    }

    /// The key and value head that a list is about.
    pub fn kv_head_of_list(&self, list_head: usize) -> usize {
        list_head * self.problem.heads_kv / self.list_heads
    }

    /// The queries of a block along each axis.
    pub fn queries_of(&self, block: usize) -> [Range<usize>; MAX_RANK] {
        let lengths = self.problem.axes.map(|axis| axis.queries);
        ranges(block, self.query_grid(), self.query_block, lengths)
    }

    /// The keys of a block along each axis.
    pub fn keys_of(&self, block: usize) -> [Range<usize>; MAX_RANK] {
        let lengths = self.problem.axes.map(|axis| axis.keys);
        ranges(block, self.key_grid(), self.key_block, lengths)
    }

    /// How many of the first keys along an axis a query there may see, wherever they are listed: never fewer than one
    /// before it.
    pub fn keys_before(&self, axis: usize, query: usize) -> usize {
        let along = &self.problem.axes[axis];
        if !along.is_causal {
            return along.keys;
        }
        let at = query as isize + along.origin;
        let seen = at.div_euclid(self.steps[axis] as isize) + 1;
        usize::try_from(seen).map_or(0, |seen| seen.min(along.keys))
    }

    /// How many of the first queries along an axis do not see a key there: all behind them may.
    pub fn queries_before(&self, axis: usize, key: usize) -> usize {
        let along = &self.problem.axes[axis];
        if !along.is_causal {
            return 0;
        }
        let first = (key * self.steps[axis]) as isize - along.origin;
        usize::try_from(first).map_or(0, |first| first.min(along.queries))
    }

    /// Elements of all lists.
    pub fn list_elements(&self) -> usize {
        self.problem.batch * self.query_blocks() * self.list_heads * self.entries
    }

    /// Pairs of a query and a key of one sample and head, if lists were full of whole blocks and no axis were causal.
    pub fn most_pairs(&self) -> u64 {
        let keys: usize = self.key_block.iter().product();
        (self.problem.queries() * self.entries * keys) as u64
    }
}

fn padded(sizes: &[usize]) -> [usize; MAX_RANK] {
    assert!((1..=MAX_RANK).contains(&sizes.len()), "one to {MAX_RANK} axes");
    let mut padded = [1; MAX_RANK];
    padded[MAX_RANK - sizes.len()..].copy_from_slice(sizes);
    padded
}

fn ranges(
    block: usize,
    [_, y, x]: [usize; MAX_RANK],
    shape: [usize; MAX_RANK],
    lengths: [usize; MAX_RANK],
) -> [Range<usize>; MAX_RANK] {
    let place = [block / (y * x), block / x % y, block % x];
    [0, 1, 2].map(|axis| {
        let start = place[axis] * shape[axis];
        start..(start + shape[axis]).min(lengths[axis])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Axis;

    #[test]
    fn blocks_cover_every_token_once() {
        let axes = [Axis::dense(5, 3, false), Axis::dense(7, 4, false), Axis::dense(9, 8, false)];
        let sparse = BlockSparse::new(Problem::new(axes, 2, 8), [2, 3, 4], [1, 4, 3]);
        assert_eq!((sparse.query_blocks(), sparse.key_blocks()), (3 * 3 * 3, 3 * 3));
        let count = |ranges: [Range<usize>; 3]| ranges.iter().map(Range::len).product::<usize>();
        let queries: usize = (0..27).map(|block| count(sparse.queries_of(block))).sum();
        let keys: usize = (0..9).map(|block| count(sparse.keys_of(block))).sum();
        assert_eq!((queries, keys), (5 * 7 * 9, 3 * 4 * 8));
        assert_eq!(sparse.queries_of(26), [4..5, 6..7, 8..9]);
        assert_eq!(sparse.keys_of(5), [1..2, 0..4, 6..8]);
    }

    #[test]
    fn a_step_is_the_edge_of_compressed_attention() {
        // Blocks of 4 tokens, one every 2: block `i` is complete at token `2 i + 3`.
        for tokens in 0..20usize {
            let blocks = if tokens < 4 { 0 } else { (tokens - 4) / 2 + 1 };
            let axis = Axis::dense(tokens, blocks, true).with_origin(-3);
            let sparse = BlockSparse::new(Problem::new([axis], 1, 8), [1], [1]).with_step(2);
            for query in 0..tokens {
                let complete = (0..blocks).filter(|block| 2 * block + 3 <= query).count();
                assert_eq!(sparse.keys_before(2, query), complete, "{tokens} tokens, {query}");
            }
            for key in 0..blocks {
                assert_eq!(sparse.queries_before(2, key), 2 * key + 3);
            }
        }
    }

    #[test]
    fn edges_are_inverse() {
        for (queries, keys, origin, step) in
            [(5, 9, 4, 1), (9, 5, -4, 1), (7, 3, -2, 3), (4, 4, 9, 2), (4, 4, -9, 1)]
        {
            let axis = Axis::dense(queries, keys, true).with_origin(origin);
            let sparse = BlockSparse::new(Problem::new([axis], 1, 8), [2], [2]).with_step(step);
            for query in 0..queries {
                for key in 0..keys {
                    let seen = key < sparse.keys_before(2, query);
                    assert_eq!(seen, query >= sparse.queries_before(2, key), "{axis:?} {step}");
                }
            }
        }
    }
}
