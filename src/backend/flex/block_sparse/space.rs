//! Keys and values, packed by their blocks.
//!
//! A block is cut into tiles of at most [`TILE`] keys, in the row-major order of its box. Tiles are as wide in memory where
//! a box is short: any of them is found by its number.

use std::ops::Range;

use burn_natten_kernels::{BlockSparse, MAX_RANK};
use rayon::prelude::*;

use crate::backend::flex::memory::zeros;
use crate::backend::flex::simd::{MARGIN, Real};

/// Most keys of a tile. Panels of so many keys and values stay in the first-level cache while rows pass by, and lines of a
/// panel do not fall on one another there, however large a block is.
pub(super) const TILE: usize = 64;

/// Where the keys of the blocks lie.
pub(super) struct Space<'s> {
    pub sparse: &'s BlockSparse,
    /// Keys that a tile has room for.
    pub width: usize,
    /// Tiles of a block.
    pub tiles: usize,
}

/// The keys of a tile.
pub(super) struct Tile {
    /// The tokens of its block along each axis.
    pub block: [Range<usize>; MAX_RANK],
    /// Those that are its own, in the order of the block.
    pub columns: Range<usize>,
}

/// Some keys of a line of a block, as columns of a tile: the first so many of them are seen.
pub(super) struct Run {
    pub columns: Range<usize>,
    pub seen: usize,
}

impl<'s> Space<'s> {
    pub fn new(sparse: &'s BlockSparse) -> Self {
        let volume = (0..MAX_RANK)
            .map(|axis| sparse.key_block[axis].min(sparse.problem.axes[axis].keys))
            .product::<usize>();
        let tiles = volume.div_ceil(TILE);
        Self { sparse, width: volume.div_ceil(tiles), tiles }
    }

    /// The number of the first tile of a block.
    pub fn first_tile(&self, sample: usize, head: usize, block: usize) -> usize {
        let head = sample * self.sparse.problem.heads_kv + head;
        (head * self.sparse.key_blocks() + block) * self.tiles
    }

    /// Tiles of all samples and heads.
    fn all_tiles(&self) -> usize {
        self.first_tile(self.sparse.problem.batch, 0, 0)
    }

    /// The keys of a tile, by the number of the latter.
    pub fn tile(&self, tile: usize) -> Tile {
        let block = self.sparse.keys_of(tile / self.tiles % self.sparse.key_blocks());
        Tile::new(block, tile % self.tiles * self.width, self.width)
    }

    /// Where the vectors of the tokens of a block begin, in its order, within a sample and in vectors.
    pub fn tokens(
        &self,
        block: &[Range<usize>; MAX_RANK],
    ) -> impl Iterator<Item = usize> + use<'_> {
        let [_, height, width] = self.sparse.problem.axes.map(|axis| axis.keys);
        let [z, y, x] = block.clone();
        z.flat_map(move |z| y.clone().map(move |y| (z * height + y) * width))
            .flat_map(move |line| x.clone().map(move |x| line + x))
    }

    /// Calls `pack` with each tile's number, its part of `packed`, and the vectors of its keys.
    fn pack<'v, A: Real>(
        &self,
        vectors: &'v [A],
        dim: usize,
        packed: &mut [A],
        pack: impl Fn(&mut [A], usize, &'v [A]) + Sync,
    ) {
        let problem = &self.sparse.problem;
        let (heads, keys) = (problem.heads_kv, problem.keys());
        packed.par_chunks_mut(dim * self.width).enumerate().for_each(|(number, packed)| {
            let tile = self.tile(number);
            let head = number / (self.tiles * self.sparse.key_blocks());
            let (sample, head) = (head / heads, head % heads);
            let Range { start, end } = tile.columns;
            let tokens = self.tokens(&tile.block).take(end).skip(start);
            for (column, token) in tokens.enumerate() {
                let vector = ((sample * keys + token) * heads + head) * dim;
                pack(packed, column, &vectors[vector..][..dim]);
            }
        });
    }

    /// The vectors, times `factor`, a panel for each tile.
    pub fn panels<A: Real>(&self, vectors: &[A], dim: usize, factor: A) -> Panels<A> {
        let len = self.all_tiles() * dim * self.width;
        let mut elements = zeros(len + MARGIN);
        self.pack(vectors, dim, &mut elements[..len], |panel, column, vector| {
            for (line, value) in panel.chunks_exact_mut(self.width).zip(vector) {
                line[column] = *value * factor;
            }
        });
        Panels { elements, dim, width: self.width }
    }

    /// The vectors, those of a tile one after the other.
    pub fn vectors<A: Real>(&self, vectors: &[A], dim: usize) -> Vectors<A> {
        let mut elements = zeros(self.all_tiles() * dim * self.width);
        self.pack(vectors, dim, &mut elements, |rows, column, vector| {
            rows[column * dim..][..dim].copy_from_slice(vector);
        });
        let is_finite = elements
            .par_chunks(dim * self.width)
            .map(|tile| tile.iter().fold(true, |finite, value| finite & value.is_finite()))
            .collect();
        Vectors { elements, is_finite, dim, width: self.width }
    }
}

impl Tile {
    fn new(block: [Range<usize>; MAX_RANK], first: usize, width: usize) -> Self {
        let keys: usize = block.iter().map(|range| range.len()).product();
        Self { columns: first.min(keys)..(first + width).min(keys), block }
    }

    /// The lines of a tile, for a row that sees so many of the first keys along each axis.
    pub fn runs(&self, seen: [usize; MAX_RANK]) -> impl Iterator<Item = Run> + use<'_> {
        let [z, y, x] = &self.block;
        let Range { start: first, end } = self.columns;
        let mut column = first;
        std::iter::from_fn(move || {
            (column < end).then(|| {
                let (line, start) = (column / x.len(), column % x.len());
                let until = end.min(column - start + x.len());
                let is_reached =
                    z.start + line / y.len() < seen[0] && y.start + line % y.len() < seen[1];
                let reached = if is_reached { seen[2].saturating_sub(x.start) } else { 0 };
                let columns = column - first..until - first;
                let seen = reached.saturating_sub(start).min(columns.len());
                column = until;
                Run { columns, seen }
            })
        })
    }

    /// Puts `value` in the place of what a row does not see.
    pub fn hide<A: Real>(&self, seen: [usize; MAX_RANK], scores: &mut [A], value: A) {
        for run in self.runs(seen) {
            scores[run.columns.start + run.seen..run.columns.end].fill(value);
        }
    }
}

/// `[tiles, dim, width]`: one load takes a component of neighboring keys.
pub(super) struct Panels<A> {
    elements: Vec<A>,
    pub dim: usize,
    pub width: usize,
}

impl<A> Panels<A> {
    /// The panel of a tile, and what is behind it.
    pub fn tile(&self, tile: usize) -> &[A] {
        &self.elements[tile * self.dim * self.width..]
    }
}

/// `[tiles, width, dim]`
pub(super) struct Vectors<A> {
    elements: Vec<A>,
    /// Of each tile, whether no element is infinite or NaN.
    is_finite: Vec<bool>,
    pub dim: usize,
    width: usize,
}

impl<A> Vectors<A> {
    /// The vectors of a tile.
    pub fn tile(&self, tile: usize) -> &[A] {
        &self.elements[tile * self.dim * self.width..][..self.dim * self.width]
    }

    pub fn is_finite(&self, tile: usize) -> bool {
        self.is_finite[tile]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn_natten_kernels::{Axis, Problem};

    #[test]
    fn tiles_cover_blocks_of_any_shape() {
        let axes = [Axis::dense(1, 7, false), Axis::dense(1, 5, false), Axis::dense(1, 40, false)];
        let sparse = BlockSparse::new(Problem::new(axes, 1, 1), [1], [3, 4, 900]);
        let space = Space::new(&sparse);
        // 3 * 4 * 40 keys in tiles of 60.
        assert_eq!((space.tiles, space.width), (8, 60));
        let mut tokens = vec![0; 7 * 5 * 40];
        for number in 0..space.all_tiles() {
            let tile = space.tile(number);
            let Range { start, end } = tile.columns;
            assert!(end - start <= space.width);
            for token in space.tokens(&tile.block).take(end).skip(start) {
                tokens[token] += 1;
            }
        }
        assert!(tokens.iter().all(|count| *count == 1));
    }

    #[test]
    fn hidden_columns_are_those_behind_an_edge() {
        let axes = [Axis::dense(1, 4, false), Axis::dense(1, 5, false), Axis::dense(1, 9, false)];
        let sparse = BlockSparse::new(Problem::new(axes, 1, 1), [1], [4, 4, 8]);
        let space = Space::new(&sparse);
        let [_, height, width] = [4, 5, 9];
        for seen in [[4, 5, 9], [2, 3, 5], [4, 0, 9], [3, 5, 8], [1, 4, 1]] {
            for number in 0..space.all_tiles() {
                let tile = space.tile(number);
                let Range { start, end } = tile.columns;
                let mut scores = vec![1.0; end - start];
                tile.hide(seen, &mut scores, 0.0);
                let tokens = space.tokens(&tile.block).take(end).skip(start);
                for (token, score) in tokens.zip(scores) {
                    let at = [token / width / height, token / width % height, token % width];
                    let is_seen = (0..3).all(|axis| at[axis] < seen[axis]);
                    assert_eq!(score, if is_seen { 1.0f32 } else { 0.0 }, "{seen:?} {at:?}");
                }
            }
        }
    }
}
