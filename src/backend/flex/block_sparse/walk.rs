//! The walk of a few rows over the tiles of their list.

use burn_natten_kernels::MAX_RANK;
use macerator::Simd;

use super::rows::{Quad, Row};
use super::space::{Panels, Space, Vectors};
use crate::backend::flex::simd::{self, BLOCK, MARGIN, Real};
use crate::backend::flex::sweep::{CHUNK, Piece, piece_scores};

/// The first columns of a tile.
pub(super) struct Segment {
    /// The tile's number.
    tile: usize,
    len: usize,
    /// Where the scores of the columns begin.
    offset: usize,
    /// Whether there is a column that some row does not see.
    is_cut: bool,
}

/// The walk over the blocks of a list that some row sees, at most [`CHUNK`] columns at a time.
///
/// An iterator in all but name, as [`Sweep`](crate::backend::flex::sweep::Sweep) is, and for its reason.
pub(super) struct Walk<'w, I> {
    space: &'w Space<'w>,
    blocks: I,
    /// The number of the first tile of the head's first block.
    first_tile: usize,
    /// The fewest and the most keys along each axis that a row sees.
    fewest: [usize; MAX_RANK],
    most: [usize; MAX_RANK],
    /// What is left of a block.
    rest: Option<Rest>,
}

struct Rest {
    /// The next tile's number.
    tile: usize,
    /// Columns of the tile and those behind it.
    columns: usize,
    is_cut: bool,
}

impl<'w, I: Iterator<Item = usize>> Walk<'w, I> {
    /// Of rows of a sample and head of the keys.
    pub fn new(space: &'w Space<'w>, blocks: I, [sample, head]: [usize; 2], quad: &Quad) -> Self {
        let along = |axis: usize| quad.rows.each_ref().map(|row| row.seen[axis]);
        let fold = |start: usize, fold: fn(usize, usize) -> usize| {
            [0, 1, 2].map(|axis| along(axis).into_iter().fold(start, fold))
        };
        Self {
            space,
            blocks,
            first_tile: space.first_tile(sample, head, 0),
            fewest: fold(usize::MAX, usize::min),
            most: fold(0, usize::max),
            rest: None,
        }
    }

    /// The next block that some row sees something of.
    fn next_block(&mut self) -> Option<Rest> {
        for block in self.blocks.by_ref() {
            let keys = self.space.sparse.keys_of(block);
            let seen = |axis: usize, seen: [usize; MAX_RANK]| {
                seen[axis].saturating_sub(keys[axis].start).min(keys[axis].len())
            };
            let [z, y, x] = [0, 1, 2].map(|axis| seen(axis, self.most));
            if z * y * x == 0 {
                continue;
            }
            // Up to the last column that any row sees.
            let columns = ((z - 1) * keys[1].len() + y - 1) * keys[2].len() + x;
            return Some(Rest {
                tile: self.first_tile + block * self.space.tiles,
                columns,
                is_cut: (0..MAX_RANK).any(|axis| seen(axis, self.fewest) < keys[axis].len()),
            });
        }
        None
    }

    /// Fills `segments` with the next chunk and returns its number of columns, at least one.
    pub fn next_chunk(&mut self, segments: &mut Vec<Segment>) -> Option<usize> {
        segments.clear();
        let mut used = 0;
        loop {
            if self.rest.is_none() {
                self.rest = self.next_block();
            }
            let Some(rest) = &mut self.rest else { break };
            let len = rest.columns.min(self.space.width);
            // A tile that would be cut for want of room waits.
            if used + len > CHUNK {
                break;
            }
            segments.push(Segment { tile: rest.tile, len, offset: used, is_cut: rest.is_cut });
            used += len;
            rest.tile += 1;
            rest.columns -= len;
            if rest.columns == 0 {
                self.rest = None;
            }
        }
        (used > 0).then_some(used)
    }
}

/// Working memory of a thread.
pub(super) struct Scratch<A> {
    pub segments: Vec<Segment>,
    /// Two arrays of scores for each row.
    pub scores: [[Vec<A>; BLOCK]; 2],
    /// What is summed up, a vector for each row.
    pub sums: Vec<A>,
}

impl<A: Real> Scratch<A> {
    pub fn new(dim: usize) -> Self {
        let line = || vec![A::zero(); CHUNK + MARGIN];
        Self {
            segments: Vec::new(),
            scores: std::array::from_fn(|_| std::array::from_fn(|_| line())),
            sums: vec![A::zero(); BLOCK * dim],
        }
    }
}

/// Scores of rows with the columns of all segments. Columns that a row does not see hold anything, until
/// [`hide`].
///
/// # Safety
///
/// `rows` hold `panels.dim` elements.
#[inline(always)]
pub(super) unsafe fn chunk_scores<S: Simd, A: Real>(
    rows: [*const A; BLOCK],
    panels: &Panels<A>,
    segments: &[Segment],
    scores: &mut [Vec<A>; BLOCK],
) {
    let pieces = segments.iter().map(|segment| Piece {
        panel: panels.tile(segment.tile),
        len: segment.len,
        offset: segment.offset,
    });
    let scores = scores.each_mut().map(|scores| &mut scores[..]);
    // SAFETY: the caller's; panels and scores end with a margin.
    unsafe { piece_scores::<S, A>(rows, [panels.dim, panels.width], pieces, scores) };
}

/// Puts `value` into the columns that a row does not see.
#[inline(always)]
pub(super) fn hide<A: Real>(
    scores: &mut [Vec<A>; BLOCK],
    space: &Space<'_>,
    rows: &[Row; BLOCK],
    segments: &[Segment],
    value: A,
) {
    for segment in segments.iter().filter(|segment| segment.is_cut) {
        let mut tile = space.tile(segment.tile);
        tile.columns.end = tile.columns.start + segment.len;
        for (scores, row) in scores.iter_mut().zip(rows) {
            tile.hide(row.seen, &mut scores[segment.offset..][..segment.len], value);
        }
    }
}

/// Adds the vectors of all segments to the sums of the rows, weighted. Weights are zero in the columns that
/// a row does not see, whose vectors are left out unless all of the tile are finite.
///
/// # Safety
///
/// `sums` hold `vectors.dim` elements.
#[inline(always)]
pub(super) unsafe fn chunk_accumulate<S: Simd, A: Real>(
    weights: &[Vec<A>; BLOCK],
    vectors: &Vectors<A>,
    (space, rows): (&Space<'_>, &[Row; BLOCK]),
    segments: &[Segment],
    sums: [*mut A; BLOCK],
) {
    let dim = vectors.dim;
    for segment in segments {
        let tile = vectors.tile(segment.tile);
        let weights = weights.each_ref().map(|weights| &weights[segment.offset..][..segment.len]);
        if !segment.is_cut || vectors.is_finite(segment.tile) {
            let all = weights.map(<[A]>::as_ptr);
            // SAFETY: a tile has room for all columns of a segment.
            unsafe {
                simd::accumulate::<S, A, BLOCK>(
                    (all, 1),
                    segment.len,
                    tile.as_ptr(),
                    dim,
                    dim,
                    sums,
                );
            }
            continue;
        }
        let mut lines = space.tile(segment.tile);
        lines.columns.end = lines.columns.start + segment.len;
        for ((row, weights), sums) in rows.iter().zip(weights).zip(sums) {
            for run in lines.runs(row.seen) {
                let start = run.columns.start;
                let weights = [weights[start..].as_ptr()];
                let first = tile[start * dim..].as_ptr();
                // SAFETY: as above.
                unsafe {
                    simd::accumulate::<S, A, 1>((weights, 1), run.seen, first, dim, dim, [sums]);
                }
            }
        }
    }
}
