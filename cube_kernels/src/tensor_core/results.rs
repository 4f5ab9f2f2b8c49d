//! Sums of a row as it is written, and rows that a plane holds one at a time.

// `#[cube]` adds a module beside each function, without docs.
// Of equal branches one is chosen at compile time, so that the other costs no comparison.
#![allow(missing_docs, clippy::if_same_then_else)]

use cubecl::prelude::*;

use super::blueprint::{Blueprint, COLUMNS, PLANE};
use super::fragments::Fragments;
use crate::cube::narrow_all;

/// Which row of a plane's sums: half of a block, whose vectors have `dim` elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Row {
    /// Number of the block.
    pub block: usize,
    /// Which of the unit's two rows in it.
    pub half: usize,
    /// Elements.
    pub dim: usize,
    /// The same in whole matrices.
    pub padded: usize,
}

impl Row {
    /// Fragments of the row.
    fn matrices(&self) -> usize {
        self.padded / COLUMNS
    }

    /// Number of a fragment among those of the plane.
    fn fragment(&self, matrix: usize) -> usize {
        self.block * self.matrices() + matrix
    }

    /// Whether a fragment lies inside the vector.
    fn is_inside(&self, matrix: usize) -> bool {
        (matrix + 1) * COLUMNS <= self.dim
    }
}

/// Small enough that a sum of as many finite numbers as a row has, times it, is finite; and a power of two
/// other than zero, by which compilers take a product to be zero.
pub(super) const SMALL: f32 = 1.0 / 65536.0;

/// A number that is finite if every number in the row is, of this unit's part, and no other. What lies behind
/// the end of the vector may be anything.
#[cube]
pub(super) fn residue(sums: &Fragments<f32>, lane: usize, #[comptime] row: Row) -> f32 {
    let mut residue = 0.0f32;
    #[unroll]
    for matrix in 0..comptime!(row.matrices()) {
        let pair = sums.index(comptime!(row.fragment(matrix)))[comptime!(row.half)];
        #[unroll]
        for element in 0..2usize {
            let column = matrix * COLUMNS + lane % 4 * 2 + element;
            if comptime!(row.is_inside(matrix)) {
                residue += pair.extract(element) * f32::new(SMALL);
            } else if column < comptime!(row.dim) {
                residue += pair.extract(element) * f32::new(SMALL);
            }
        }
    }
    residue
}

/// Whether a number is neither an infinity nor NaN.
#[cube]
pub(super) fn is_finite(value: f32) -> bool {
    value.abs() <= f32::max_value()
}

/// The sum over the four units that hold a row.
#[cube]
pub(super) fn row_sum(value: f32) -> f32 {
    let value = value + plane_shuffle_xor(value, 1u32);
    value + plane_shuffle_xor(value, 2u32)
}

/// Writes this unit's part of the row, times `factor`, to vector number `place`, in pieces of `size`
/// elements.
#[cube]
pub(super) fn write_row<F: Float, NO: Size>(
    sums: &Fragments<f32>,
    factor: f32,
    out: &mut [Vector<F, NO>],
    place: usize,
    lane: usize,
    #[comptime] row: Row,
    #[comptime] size: usize,
) {
    let pieces = comptime!(row.dim / size);
    #[unroll]
    for matrix in 0..comptime!(row.matrices()) {
        let pair = sums.index(comptime!(row.fragment(matrix)))[comptime!(row.half)];
        let first = (matrix * COLUMNS + lane % 4 * 2) / size;
        #[unroll]
        for i in 0..comptime!(2 / size) {
            let mut piece = Vector::<f32, NO>::new(0.0f32);
            #[unroll]
            for element in 0..size {
                piece.insert(element, pair.extract(comptime!(i * size + element)) * factor);
            }
            if comptime!(row.is_inside(matrix)) {
                out[place * pieces + first + i] = Vector::cast_from(piece);
            } else if first + i < pieces {
                out[place * pieces + first + i] = Vector::cast_from(piece);
            }
        }
    }
}

impl Blueprint {
    /// A row of so many vectors, as it is written.
    pub(super) fn stored(&self, vectors: usize) -> Stored {
        Stored { vectors, vector: self.vector, size: self.vector_out() }
    }
}

/// A row as [`write_vectors`] takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stored {
    /// Vectors of the row.
    pub vectors: usize,
    /// Elements of each.
    pub vector: usize,
    /// Elements of a piece, as they are written.
    pub size: usize,
}

/// As many zeros as a unit has vectors of a row.
#[cube]
pub(super) fn no_sums<N: Size>(#[comptime] slices: usize) -> Array<Vector<f32, N>> {
    let mut sums = Array::<Vector<f32, N>>::new(slices);
    #[unroll]
    for slice in 0..slices {
        sums[slice] = Vector::new(0.0f32);
    }
    sums
}

/// A unit's part of the vector that begins at `from`, of `vectors` vectors.
#[cube]
pub(super) fn load_vectors<F: Float, N: Size>(
    source: &[Vector<F, N>],
    from: usize,
    lane: usize,
    #[comptime] vectors: usize,
) -> Array<Vector<f32, N>> {
    let slices = comptime!(vectors.div_ceil(PLANE));
    let mut loaded = Array::<Vector<f32, N>>::new(slices);
    #[unroll]
    for slice in 0..slices {
        loaded[slice] = Vector::new(0.0f32);
        let vector = lane + comptime!(slice * PLANE);
        if vector < vectors {
            loaded[slice] = Vector::cast_from(source[from + vector]);
        }
    }
    loaded
}

/// Writes what units hold of one row, times `factor`.
#[cube]
pub(super) fn write_vectors<F: Float, N: Size, NO: Size>(
    sums: &Array<Vector<f32, N>>,
    factor: f32,
    out: &mut [Vector<F, NO>],
    place: usize,
    lane: usize,
    #[comptime] row: Stored,
) {
    let vectors = comptime!(row.vectors);
    let parts = comptime!(row.vector / row.size);
    #[unroll]
    for slice in 0..comptime!(vectors.div_ceil(PLANE)) {
        let at = lane + comptime!(slice * PLANE);
        if at < vectors {
            #[unroll]
            for part in 0..parts {
                let mut piece = Vector::<f32, NO>::new(0.0f32);
                #[unroll]
                for element in 0..comptime!(row.size) {
                    let value = sums[slice].extract(comptime!(part * row.size + element));
                    piece.insert(element, value * factor);
                }
                out[(place * vectors + at) * parts + part] = narrow_all(piece);
            }
        }
    }
}
