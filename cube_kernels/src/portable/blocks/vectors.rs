//! Arithmetic on rows that lie anywhere: those of views, where [`rows`](super::super::rows) knows contiguous ones.

// `#[cube]` adds items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::super::rows::{Slicing, in_row};

/// Tokens of a line: where the vectors of the first begin, and how far it is to the next.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct Line {
    pub at: usize,
    pub step: usize,
}

#[cube]
impl Line {
    /// The same from its token number `index` on.
    pub fn from(&self, index: usize) -> Line {
        Line { at: self.at + index * self.step, step: self.step }
    }
}

/// Dot products of the row that begins at `fixed_at` with the first `block` tokens of a line.
#[cube]
pub(crate) fn dots<F: Float, N: Size>(
    fixed: &[Vector<F, N>],
    fixed_at: usize,
    rows: &[Vector<F, N>],
    line: Line,
    #[comptime] lines: usize,
    #[comptime] block: usize,
) -> Array<f32> {
    let mut partial = Array::<Vector<f32, N>>::new(block);
    #[unroll]
    for b in 0..block {
        partial[b] = Vector::new(0.0f32);
    }
    for i in 0..lines {
        let factor = Vector::<f32, N>::cast_from(fixed[fixed_at + i]);
        #[unroll]
        for b in 0..block {
            let place = line.at + b * line.step + i;
            partial[b] += factor * Vector::<f32, N>::cast_from(rows[place]);
        }
    }
    let mut sums = Array::<f32>::new(block);
    #[unroll]
    for b in 0..block {
        sums[b] = partial[b].vector_sum();
    }
    sums
}

/// `sums += weights[b] * rows[b]`, over the first `block` tokens of a line and the vectors of one slice.
#[cube]
pub(super) fn accumulate<F: Float, N: Size>(
    sums: &mut Array<Vector<f32, N>>,
    weights: &Array<f32>,
    rows: &[Vector<F, N>],
    line: Line,
    slice: usize,
    #[comptime] slicing: Slicing,
    #[comptime] block: usize,
) {
    let first = slice * comptime!(slicing.slice);
    #[unroll]
    for i in 0..comptime!(slicing.slice) {
        if in_row(first + i, slicing) {
            let mut sum = sums[i];
            #[unroll]
            for b in 0..block {
                let place = line.at + b * line.step + first + i;
                sum += Vector::new(weights[b]) * Vector::<f32, N>::cast_from(rows[place]);
            }
            sums[i] = sum;
        }
    }
}
