//! Products of f32 that are rounded to tf32: 10 bits of the mantissa of f32 and all of its range.
//!
//! A plane multiplies 16 x 8 by 8 x 8 elements at a time. Unit `4 g + t` of it holds, of the first matrix,
//! elements `t` and `t + 4` of rows `g` and `g + 8`, and of the second elements `t` and `t + 4` of column `g`.
//! Matrices of 8 x 8 elements of 2 bytes are ones of 8 x 4 elements of 4 bytes, so that what reads the former
//! gives fragments of the latter.
//!
//! Results have columns `2 t` and `2 t + 1` in a unit. As the first matrix of a further product they are taken
//! for elements `t` and `t + 4`, and the second matrix has its rows in the same order: a sum has none.
//!
//! The instruction drops the bits that tf32 does not have. Operands are rounded before, to the nearest, which
//! halves the error of each and leaves sums no bias: rows as they are put into shared memory, columns there, too, or
//! as they are read where copies bring them, and weights as they become operands.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::cmma::{MatrixIdent, MmaDefinition};
use cubecl::prelude::*;

use super::blueprint::{COLUMNS, Operand, ROWS, TF32_DEPTH};
use super::fragments::{Fragments, Pair};

#[cube]
fn instruction() -> MmaDefinition<tf32, tf32, f32> {
    MmaDefinition::<tf32, tf32, f32>::new(ROWS, COLUMNS, TF32_DEPTH)
}

/// Rounded to the nearest with 11 significant bits, by two instructions where the conversion takes four.
///
/// The first product is rounded to a multiple of 2^13 units in the last place of `x`, which stays so when the second
/// leaves `x` of it. Beyond 2^114 it overflows, and what is not finite does not become finite: such rows are
/// computed again.
#[cube]
pub(super) fn round<F: Float, N: Size>(x: Vector<F, N>) -> Vector<F, N> {
    let scaled = x * Vector::new(F::new(8193.0));
    fma(x, Vector::new(F::new(-8192.0)), scaled)
}

#[cube]
fn pair<F: Float>(first: F, second: F) -> Pair<F> {
    let mut pair = Pair::<F>::new(F::new(0.0));
    pair.insert(0usize, first);
    pair.insert(1usize, second);
    pair
}

/// Reads four matrices of 8 x 4 elements, and rounds them where they are not; `vector` is where this unit's row of
/// one of them begins.
#[cube]
pub(super) fn read<F: Float, N: Size>(
    shared: &[Vector<F, N>],
    vector: usize,
    #[comptime] is_rounded: bool,
) -> Array<Pair<F>> {
    let words = instruction().load_matrix::<Vector<F, N>, Const<1>>(
        &shared[vector..vector + 1],
        MatrixIdent::A,
        4usize,
        false,
    );
    let mut fragment = Array::<Pair<F>>::new(2usize);
    #[unroll]
    for half in 0..2usize {
        let first = words[comptime!(2 * half)].extract(0usize);
        let second = words[comptime!(2 * half + 1)].extract(0usize);
        let pair = pair::<F>(first, second);
        if comptime!(is_rounded) {
            fragment[half] = pair;
        } else {
            fragment[half] = round::<F, Const<2>>(pair);
        }
    }
    fragment
}

/// `sum += first * second`, of a fragment of two pairs and one pair, both rounded.
#[cube]
pub(super) fn multiply<F: Float>(
    first: &Array<Pair<F>>,
    second: Pair<F>,
    sum: &mut Array<Pair<f32>>,
) {
    let mut left = Array::<Pair<tf32>>::new(2usize);
    left[0] = Pair::<tf32>::reinterpret(first[0]);
    left[1] = Pair::<tf32>::reinterpret(first[1]);
    let mut right = Array::<Pair<tf32>>::new(1usize);
    right[0] = Pair::<tf32>::reinterpret(second);
    instruction().execute_inplace(&left, &right, sum);
}

/// `sums += weights * columns`.
///
/// Columns of the result are read one element a unit. Rows of shared memory are an odd number of 16-byte pieces
/// apart, so that elements of rows `2 t` and columns `g` lie in different banks.
#[cube]
pub(super) fn accumulate<F: Float, N: Size>(
    sums: &mut Fragments<f32>,
    weights: &Fragments<f32>,
    shared_columns: &[Vector<F, N>],
    lane: usize,
    #[comptime] operand: Operand,
) {
    let elements = shared_columns.with_vector_size::<Const<1>>();
    let pitch = comptime!(operand.pitch * operand.vector);
    let matrices = comptime!(operand.matrices);
    let pieces = comptime!(operand.dim / COLUMNS);
    let at = lane % 4 * comptime!(2 * pitch) + lane / 4;
    #[unroll]
    for piece in 0..matrices {
        let mut rows = Sequence::<Array<Pair<F>>>::new();
        #[unroll]
        for block in 0..comptime!(operand.blocks) {
            let weight = weights.index(comptime!(block * matrices + piece));
            let mut row = Array::<Pair<F>>::new(2usize);
            #[unroll]
            for element in 0..2usize {
                let upper = F::cast_from(weight[0].extract(element));
                let lower = F::cast_from(weight[1].extract(element));
                row[element] = round::<F, Const<2>>(pair::<F>(upper, lower));
            }
            rows.push(row);
        }
        #[unroll]
        for i in 0..pieces {
            let first = at + comptime!(piece * TF32_DEPTH * pitch + i * COLUMNS);
            let upper = elements[first].extract(0usize);
            let lower = elements[first + pitch].extract(0usize);
            let mut column = pair::<F>(upper, lower);
            if comptime!(!operand.has_rounded_columns) {
                column = round::<F, Const<2>>(column);
            }
            #[unroll]
            for block in 0..comptime!(operand.blocks) {
                let sum = comptime!(block * pieces + i);
                multiply::<F>(rows.index(block), column, sums.index_mut(sum));
            }
        }
    }
}
