//! Products on matrix units, and the fragments that they take and give.
//!
//! A plane multiplies 16 x 16 by 16 x 8 elements at a time. Unit `4 g + t` of it holds, of the first
//! matrix, elements `2 t` and `2 t + 1` of rows `g` and `g + 8`, and the same 8 columns on; of the result,
//! columns `2 t` and `2 t + 1` of rows `g` and `g + 8`. So two neighboring results are the first matrix of
//! a further product, once they are rounded, with no exchange between units.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs, clippy::too_many_arguments)]

use cubecl::cmma::{MatrixIdent, MmaDefinition};
use cubecl::prelude::*;

use super::super::blueprint::{Blueprint, COLUMNS, DEPTH, ROWS};

/// Two neighboring elements.
pub(in super::super) type Pair<F> = Vector<F, Const<2>>;
/// Fragments of some matrices, a unit's share of each.
pub(in super::super) type Fragments<F> = Sequence<Array<Pair<F>>>;

/// `matrices` results full of zeros.
#[cube]
pub(in super::super) fn zeros(#[comptime] matrices: usize) -> Fragments<f32> {
    let mut fragments = Sequence::new();
    #[unroll]
    for _ in 0..matrices {
        let mut fragment = Array::<Pair<f32>>::new(2usize);
        fragment[0] = Pair::new(0.0f32);
        fragment[1] = Pair::new(0.0f32);
        fragments.push(fragment);
    }
    fragments
}

#[cube]
fn multiply<F: Float>(first: &Array<Pair<F>>, second: &Array<Pair<F>>, sum: &mut Array<Pair<f32>>) {
    let instruction = MmaDefinition::<F, F, f32>::new(ROWS, COLUMNS, DEPTH);
    instruction.execute_inplace(first, second, sum);
}

/// Reads four matrices of 8 x 8 elements, each transposed or not; `vector` is where this unit's row of
/// one of them begins.
#[cube]
fn read<F: Float, N: Size>(
    shared: &[Vector<F, N>],
    vector: usize,
    #[comptime] transpose: bool,
) -> Array<Pair<F>> {
    let instruction = MmaDefinition::<F, F, f32>::new(ROWS, COLUMNS, DEPTH);
    instruction.load_matrix::<Vector<F, N>, Const<2>>(
        &shared[vector..vector + 1],
        MatrixIdent::A,
        4usize,
        transpose,
    )
}

#[cube]
fn half<F: Float>(matrices: &Array<Pair<F>>, #[comptime] first: usize) -> Array<Pair<F>> {
    let mut fragment = Array::<Pair<F>>::new(2usize);
    fragment[0] = matrices[first];
    fragment[1] = matrices[comptime!(first + 1)];
    fragment
}

/// Where this unit's row begins, in a first matrix of 16 x 16 that is read as it is and in a second one
/// that is read transposed: matrices 1 and 3 lie below matrices 0 and 2.
#[cube]
fn below(lane: usize, pitch: usize, #[comptime] vector: usize) -> usize {
    (lane % 16) * pitch + lane / 16 * comptime!(8 / vector)
}

/// The same in a second matrix that is read as it is: matrices 1 and 3 lie beside matrices 0 and 2.
#[cube]
fn beside(lane: usize, pitch: usize, #[comptime] vector: usize) -> usize {
    (lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * comptime!(8 / vector)
}

/// Fragments of the plane's queries, piece by piece of the vectors and for each the plane's blocks.
#[cube]
pub(in super::super) fn queries<F: Float, N: Size>(
    shared: &[Vector<F, N>],
    first_row: usize,
    lane: usize,
    #[comptime] piece: usize,
    #[comptime] pieces: usize,
    #[comptime] blueprint: Blueprint,
) -> Fragments<F> {
    let pitch = comptime!(blueprint.pitch());
    let vector = comptime!(blueprint.vector);
    let at = first_row * pitch + below(lane, pitch, vector);
    let mut fragments = Sequence::new();
    #[unroll]
    for i in 0..pieces {
        #[unroll]
        for block in 0..comptime!(blueprint.blocks) {
            let offset = comptime!((piece + i) * DEPTH / vector + block * ROWS * pitch);
            fragments.push(read::<F, N>(shared, at + offset, false));
        }
    }
    fragments
}

/// Scores of the plane's queries with a tile of keys: for each block, columns in order.
#[cube]
pub(in super::super) fn scores<F: Float, N: Size>(
    shared_query: &[Vector<F, N>],
    held: &Fragments<F>,
    shared_key: &[Vector<F, N>],
    first_row: usize,
    lane: usize,
    #[comptime] blueprint: Blueprint,
) -> Fragments<f32> {
    let pitch = comptime!(blueprint.pitch());
    let vector = comptime!(blueprint.vector);
    let matrices = comptime!(blueprint.columns() / COLUMNS);
    let mut scores = zeros(comptime!(blueprint.blocks * matrices));
    let at = beside(lane, pitch, vector);
    #[unroll]
    for piece in 0..comptime!(blueprint.dim() / DEPTH) {
        if comptime!(blueprint.holds_queries) {
            #[unroll]
            for pair in 0..comptime!(matrices / 2) {
                let offset = comptime!(pair * 2 * COLUMNS * pitch + piece * DEPTH / vector);
                let keys = read::<F, N>(shared_key, at + offset, false);
                #[unroll]
                for block in 0..comptime!(blueprint.blocks) {
                    let first = held.index(comptime!(piece * blueprint.blocks + block));
                    let score = comptime!(block * matrices + 2 * pair);
                    multiply::<F>(first, &half::<F>(&keys, 0usize), scores.index_mut(score));
                    let score = comptime!(score + 1);
                    multiply::<F>(first, &half::<F>(&keys, 2usize), scores.index_mut(score));
                }
            }
        } else {
            let rows = queries::<F, N>(shared_query, first_row, lane, piece, 1usize, blueprint);
            #[unroll]
            for pair in 0..comptime!(matrices / 2) {
                let offset = comptime!(pair * 2 * COLUMNS * pitch + piece * DEPTH / vector);
                let keys = read::<F, N>(shared_key, at + offset, false);
                #[unroll]
                for block in 0..comptime!(blueprint.blocks) {
                    let first = rows.index(block);
                    let score = comptime!(block * matrices + 2 * pair);
                    multiply::<F>(first, &half::<F>(&keys, 0usize), scores.index_mut(score));
                    let score = comptime!(score + 1);
                    multiply::<F>(first, &half::<F>(&keys, 2usize), scores.index_mut(score));
                }
            }
        }
    }
    scores
}

/// `sums += weights * values`.
#[cube]
pub(in super::super) fn accumulate<F: Float, N: Size>(
    sums: &mut Fragments<f32>,
    weights: &Fragments<f32>,
    shared_value: &[Vector<F, N>],
    lane: usize,
    #[comptime] blueprint: Blueprint,
) {
    let pitch = comptime!(blueprint.pitch_v());
    let vector = comptime!(blueprint.vector);
    let matrices = comptime!(blueprint.columns() / COLUMNS);
    let matrices_v = comptime!(blueprint.dim_v() / COLUMNS);
    let at = below(lane, pitch, vector);
    #[unroll]
    for piece in 0..comptime!(matrices / 2) {
        let mut rows = Sequence::<Array<Pair<F>>>::new();
        #[unroll]
        for block in 0..comptime!(blueprint.blocks) {
            let left = weights.index(comptime!(block * matrices + 2 * piece));
            let right = weights.index(comptime!(block * matrices + 2 * piece + 1));
            let mut row = Array::<Pair<F>>::new(4usize);
            row[0] = Pair::cast_from(left[0]);
            row[1] = Pair::cast_from(left[1]);
            row[2] = Pair::cast_from(right[0]);
            row[3] = Pair::cast_from(right[1]);
            rows.push(row);
        }
        #[unroll]
        for pair in 0..comptime!(matrices_v / 2) {
            let offset = comptime!(piece * DEPTH * pitch + pair * 2 * COLUMNS / vector);
            let values = read::<F, N>(shared_value, at + offset, true);
            #[unroll]
            for block in 0..comptime!(blueprint.blocks) {
                let first = rows.index(block);
                let sum = comptime!(block * matrices_v + 2 * pair);
                multiply::<F>(first, &half::<F>(&values, 0usize), sums.index_mut(sum));
                let sum = comptime!(sum + 1);
                multiply::<F>(first, &half::<F>(&values, 2usize), sums.index_mut(sum));
            }
        }
    }
}
