//! Which partners a block of tokens meets.
//!
//! A block is up to [`BLOCK`] neighbors of one line and dilation group. What they meet, keys for
//! queries or visitors for keys, are the same lines for all of them, and in each line an interval
//! per token. Scores are computed for the union of the intervals; what lies outside a token's own
//! interval is never used, so it may hold anything.

use std::ops::Range;

use burn_natten_kernels::{Axis, MAX_RANK};

use super::operand::Grid;
use super::simd::BLOCK;

/// Intervals of positions, one for each token of a block.
#[derive(Clone, Debug)]
pub(super) struct Columns {
    /// First position of the union.
    pub start: usize,
    /// Length of the union.
    pub len: usize,
    /// The tokens' intervals, relative to `start`.
    pub own: [Range<usize>; BLOCK],
    /// What all intervals have in common, relative to `start`.
    pub shared: Range<usize>,
}

impl Columns {
    pub fn new(intervals: [Range<usize>; BLOCK]) -> Self {
        let occupied = || intervals.iter().filter(|interval| !interval.is_empty());
        let start = occupied().map(|interval| interval.start).min().unwrap_or(0);
        let end = occupied().map(|interval| interval.end).max().unwrap_or(start);
        let own = intervals.map(|interval| {
            if interval.is_empty() { 0..0 } else { interval.start - start..interval.end - start }
        });
        Self::relative(start, end - start, own)
    }

    fn relative(start: usize, len: usize, own: [Range<usize>; BLOCK]) -> Self {
        let first = own.iter().map(|own| own.start).max().unwrap_or(0);
        let last = own.iter().map(|own| own.end).min().unwrap_or(0);
        Self { start, len, own, shared: first..last.max(first) }
    }

    /// The part of these columns in `range`, which is relative to `start`.
    pub fn part(&self, range: Range<usize>) -> Self {
        let own = self.own.clone().map(|own| {
            let start = own.start.clamp(range.start, range.end);
            let end = own.end.clamp(start, range.end);
            start - range.start..end - range.start
        });
        Self::relative(self.start + range.start, range.len(), own)
    }
}

impl Columns {
    /// The tokens' own columns before and after the shared ones; with nothing in common, all of
    /// them are before.
    pub fn around_shared(&self) -> ([Range<usize>; BLOCK], [Range<usize>; BLOCK]) {
        let Range { start, end } = self.shared;
        let is_empty = self.shared.is_empty();
        let before = self.own.clone().map(|own| if is_empty { own } else { own.start..start });
        let after =
            self.own.clone().map(|own| if is_empty { own.end..own.end } else { end..own.end });
        (before, after)
    }
}

/// The partners of a block in the space.
pub(super) struct Meeting {
    /// Lines: index along each of the two slower axes, as first, count and step.
    outer: [(usize, usize, usize); 2],
    pub group: usize,
    pub columns: Columns,
}

impl Meeting {
    /// The keys of the queries at `positions` of a dilation group in the line `outer`.
    pub fn keys(
        axes: &[Axis; MAX_RANK],
        outer: [usize; 2],
        group: usize,
        positions: [usize; BLOCK],
    ) -> Self {
        let step = |axis: usize| {
            let (first, count) = axes[axis].window(outer[axis]);
            (first, count, axes[axis].dilation)
        };
        let x = &axes[2];
        let columns = positions.map(|position| x.keys_seen(group, position));
        Self { outer: [step(0), step(1)], group, columns: Columns::new(columns) }
    }

    /// The queries that see the keys at `positions` of a dilation group in the line `outer`.
    pub fn visitors(
        axes: &[Axis; MAX_RANK],
        outer: [usize; 2],
        group: usize,
        positions: [usize; BLOCK],
    ) -> Self {
        let step = |axis: usize| {
            let (first, count) = axes[axis].visitors(outer[axis]);
            (first, count, axes[axis].dilation)
        };
        let x = &axes[2];
        let columns = positions.map(|position| x.seen_by(group, position));
        Self { outer: [step(0), step(1)], group, columns: Columns::new(columns) }
    }

    /// A line and group of tokens that every token of the block meets.
    pub fn whole(grid: &Grid, group: usize) -> Self {
        let length = grid.group_length(group);
        let columns = Columns::new(std::array::from_fn(|_| 0..length));
        let outer = [(0, grid.outer[0], 1), (0, grid.outer[1], 1)];
        Self { outer, group, columns }
    }

    /// Whether token `i` of the block has no partner.
    pub fn is_blind(&self, i: usize) -> bool {
        let [z, y] = self.outer;
        z.1 == 0 || y.1 == 0 || self.columns.own[i].is_empty()
    }

    /// The lines of a grid that hold partners.
    pub fn rows(&self, grid: &Grid) -> impl Iterator<Item = usize> + use<> {
        let (inner, [z, y]) = (grid.outer[1], self.outer);
        (0..z.1).flat_map(move |i| (0..y.1).map(move |j| (z.0 + i * z.2) * inner + y.0 + j * y.2))
    }
}

/// Up to [`BLOCK`] neighbors of a line and dilation group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub group: usize,
    pub first: usize,
    /// Tokens that exist; the others repeat the last one and are not written.
    pub live: usize,
}

impl Block {
    pub fn positions(&self) -> [usize; BLOCK] {
        std::array::from_fn(|i| self.first + i.min(self.live - 1))
    }
}

/// All blocks of a line of a grid.
pub(super) fn blocks(grid: &Grid) -> Vec<Block> {
    blocks_in(grid, 0..grid.length)
}

/// The blocks of a line of a grid at these positions of every dilation group.
pub(super) fn blocks_in(grid: &Grid, positions: Range<usize>) -> Vec<Block> {
    (0..grid.dilation)
        .flat_map(|group| {
            let end = grid.group_length(group).min(positions.end);
            (positions.start..end).step_by(BLOCK).map(move |first| Block {
                group,
                first,
                live: BLOCK.min(end - first),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_cut_every_interval() {
        let columns = Columns::new([3..9, 4..10, 5..11, 5..11]);
        assert_eq!((columns.start, columns.len), (3, 8));
        assert_eq!(columns.shared, 2..6);
        let part = columns.part(1..4);
        assert_eq!((part.start, part.len), (4, 3));
        assert_eq!(part.own, [0..3, 0..3, 1..3, 1..3]);
        assert_eq!(part.shared, 1..3);
        let tail = columns.part(6..8);
        assert!(tail.own[0].is_empty() && tail.shared.is_empty());
        assert_eq!(tail.own[3], 0..2);
    }

    #[test]
    fn empty_intervals_do_not_widen_the_union() {
        let columns = Columns::new([0..0, 7..9, 8..8, 8..12]);
        assert_eq!((columns.start, columns.len), (7, 5));
        assert!(columns.own[0].is_empty() && columns.own[2].is_empty());
        assert!(columns.shared.is_empty());
    }
}
