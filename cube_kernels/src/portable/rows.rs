//! Arithmetic on rows, shared by all kernels: `f32` accumulators in registers, storage type `F`,
//! read as vectors of `N` elements (a *line* is one such vector).
//!
//! Rows are taken `block` at a time, a compile-time number: that many independent sums hide the
//! latency of loads, and the fixed row is read once per block instead of being held in registers.

// `#[cube]` and `CubeLaunch` add items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::geometry::{Owned, Run};
use crate::cube::narrow_all;

/// Contiguous tensors of one kind of token. First vectors are queries and keys, second ones values and the output's
/// gradient.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Rows<'a, F: Float, N: Size> {
    pub first: &'a [Vector<F, N>],
    pub second: &'a [Vector<F, N>],
}

/// The row that a unit works for, and the slice of it that it sums.
#[derive(CubeType)]
pub(super) struct Fixed<'a, F: Float, N: Size> {
    pub first: &'a [Vector<F, N>],
    pub second: &'a [Vector<F, N>],
    pub row: usize,
    pub slice: usize,
    pub scale: f32,
}

#[cube]
pub(super) fn fixed<'a, F: Float, N: Size>(
    first: &'a [Vector<F, N>],
    second: &'a [Vector<F, N>],
    own: &Owned,
    scale: f32,
) -> Fixed<'a, F, N> {
    Fixed::<'a, F, N> { first, second, row: own.row, slice: own.slice, scale }
}

/// Bits of the exponent of an `f32`, all set in infinities and NaN and in no other number.
const EXPONENT: u32 = 0x7f80_0000;

/// How rows are divided among units: a unit has registers for a few lines of sums only, so that
/// long rows fall into slices, one unit each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Slicing {
    /// Lines of a row.
    pub lines: usize,
    /// Lines of a slice; the last slices may hold fewer, or none.
    pub slice: usize,
    /// Number of slices.
    pub slices: usize,
}

impl Slicing {
    /// A row of `lines` in `slices` slices.
    pub fn new(lines: usize, slices: usize) -> Self {
        Self { lines, slice: lines.div_ceil(slices), slices }
    }

    /// Whether some slice reaches past the end of the row.
    pub fn is_ragged(&self) -> bool {
        self.slice * self.slices != self.lines
    }
}

/// Dot products of one row with `block` rows, which begin at that of `at`.
#[cube]
pub(super) fn dots<F: Float, N: Size>(
    fixed: &[Vector<F, N>],
    fixed_row: usize,
    rows: &[Vector<F, N>],
    at: Run,
    #[comptime] lines: usize,
    #[comptime] block: usize,
) -> Array<f32> {
    let mut partial = Array::<Vector<f32, N>>::new(block);
    #[unroll]
    for b in 0..block {
        partial[b] = Vector::new(0.0f32);
    }
    let fixed_at = fixed_row * lines;
    for line in 0..lines {
        let factor = Vector::<f32, N>::cast_from(fixed[fixed_at + line]);
        #[unroll]
        for b in 0..block {
            let place = (at.row + b * at.step) * lines + line;
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

/// `sums += weights[b] * rows[b]`, over `block` rows and the lines of one slice.
#[cube]
pub(super) fn accumulate<F: Float, N: Size>(
    sums: &mut Array<Vector<f32, N>>,
    weights: &Array<f32>,
    rows: &[Vector<F, N>],
    at: Run,
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
                let place = (at.row + b * at.step) * comptime!(slicing.lines) + first + i;
                sum += Vector::new(weights[b]) * Vector::<f32, N>::cast_from(rows[place]);
            }
            sums[i] = sum;
        }
    }
}

/// Sets the accumulators of a slice to zero.
#[cube]
pub(super) fn zeros<N: Size>(#[comptime] slicing: Slicing) -> Array<Vector<f32, N>> {
    let mut sums = Array::<Vector<f32, N>>::new(comptime!(slicing.slice));
    #[unroll]
    for i in 0..comptime!(slicing.slice) {
        sums[i] = Vector::new(0.0f32);
    }
    sums
}

/// Multiplies the accumulators of a slice by `factor`.
#[cube]
pub(super) fn rescale<N: Size>(
    sums: &mut Array<Vector<f32, N>>,
    factor: f32,
    #[comptime] slicing: Slicing,
) {
    let factor = Vector::<f32, N>::new(factor);
    #[unroll]
    for i in 0..comptime!(slicing.slice) {
        sums[i] *= factor;
    }
}

/// Writes the accumulators of a slice, times `factor`, to their place in `row`.
#[cube]
pub(super) fn store<F: Float, N: Size>(
    sums: &Array<Vector<f32, N>>,
    factor: f32,
    rows: &mut [Vector<F, N>],
    row: usize,
    slice: usize,
    #[comptime] slicing: Slicing,
) {
    let first = slice * comptime!(slicing.slice);
    #[unroll]
    for i in 0..comptime!(slicing.slice) {
        if in_row(first + i, slicing) {
            let at = row * comptime!(slicing.lines) + first + i;
            rows[at] = narrow_all(sums[i] * Vector::new(factor));
        }
    }
}

/// Whether some number in a slice of `row` is not finite. Looks at bits, for a device may compute as if
/// every number were finite.
#[cube]
pub(super) fn is_spoiled<F: Float, N: Size>(
    rows: &[Vector<F, N>],
    row: usize,
    slice: usize,
    #[comptime] slicing: Slicing,
    #[comptime] size: usize,
) -> bool {
    let first = slice * comptime!(slicing.slice);
    let mut exponents = 0u32;
    for i in 0..comptime!(slicing.slice) {
        if in_row(first + i, slicing) {
            let at = row * comptime!(slicing.lines) + first + i;
            let line = Vector::<f32, N>::cast_from(rows[at]);
            #[unroll]
            for element in 0..size {
                let bits = u32::reinterpret(line.extract(element));
                exponents = max(exponents, bits & EXPONENT);
            }
        }
    }
    exponents == EXPONENT
}

/// Whether a line belongs to the row: the last slices may reach past its end.
#[cube]
pub(super) fn in_row(line: usize, #[comptime] slicing: Slicing) -> bool {
    let mut inside = true;
    if comptime!(slicing.is_ragged()) {
        inside = line < comptime!(slicing.lines);
    }
    inside
}
