//! Products on matrix units, and the fragments that they take and give.
//!
//! A plane multiplies 16 x 16 by 16 x 8 elements at a time. Unit `4 g + t` of it holds, of the first
//! matrix, elements `2 t` and `2 t + 1` of rows `g` and `g + 8`, and the same 8 columns on; of the result,
//! columns `2 t` and `2 t + 1` of rows `g` and `g + 8`. So two neighboring results are the first matrix of
//! a further product, once they are rounded, with no exchange between units. [`tf32`](super::tf32) has what is
//! different with elements of four bytes.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::cmma::{MatrixIdent, MmaDefinition};
use cubecl::prelude::*;

use super::blueprint::{COLUMNS, DEPTH, Operand, ROWS};
use super::fragments::{Fragments, Pair, zeros};
use super::tf32;
use super::work::Work;

/// Vectors of the cube's rows: in shared memory, and the plane's fragments of them where they are held.
#[derive(CubeType)]
pub(super) struct Rows<F: Float, N: Size> {
    pub shared: Shared<[Vector<F, N>]>,
    pub held: Fragments<F>,
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
fn below(lane: usize, pitch: usize, #[comptime] operand: Operand) -> usize {
    (lane % 16) * pitch + lane / 16 * comptime!(operand.depth() / 2 / operand.vector)
}

/// The same in a second matrix that is read as it is: matrices 1 and 3 lie beside matrices 0 and 2.
#[cube]
fn beside(lane: usize, pitch: usize, #[comptime] operand: Operand) -> usize {
    let half = comptime!(operand.depth() / 2 / operand.vector);
    (lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * half
}

/// Fragments of the plane's rows, piece by piece of the vectors and for each the plane's blocks.
#[cube]
fn load<F: Float, N: Size>(
    shared: &[Vector<F, N>],
    work: &Work,
    #[comptime] piece: usize,
    #[comptime] pieces: usize,
    #[comptime] operand: Operand,
) -> Fragments<F> {
    let pitch = comptime!(operand.pitch);
    let (depth, vector) = comptime!((operand.depth(), operand.vector));
    let at = work.first_row * pitch + below(work.lane, pitch, operand);
    let mut fragments = Sequence::new();
    #[unroll]
    for i in 0..pieces {
        #[unroll]
        for block in 0..comptime!(operand.blocks) {
            let offset = comptime!((piece + i) * depth / vector + block * ROWS * pitch);
            if comptime!(operand.is_tf32) {
                fragments.push(tf32::read::<F, N>(shared, at + offset, true));
            } else {
                fragments.push(read::<F, N>(shared, at + offset, false));
            }
        }
    }
    fragments
}

/// As many zeros as the plane has scores with a tile of columns.
#[cube]
pub(super) fn no_scores(#[comptime] operand: Operand) -> Fragments<f32> {
    zeros(comptime!(operand.blocks * operand.matrices))
}

/// The vectors that lie in `shared`, with all fragments of the plane's where they are held.
#[cube]
pub(super) fn rows<F: Float, N: Size>(
    shared: Shared<[Vector<F, N>]>,
    work: &Work,
    #[comptime] operand: Operand,
) -> Rows<F, N> {
    let pieces = comptime!(if operand.is_held { operand.dim / operand.depth() } else { 0 });
    let held = load::<F, N>(&shared, work, 0usize, pieces, operand);
    Rows::<F, N> { shared, held }
}

/// Adds the products of the plane's rows with a tile of columns to `scores`: for each block, columns in
/// order.
#[cube]
pub(super) fn add_scores<F: Float, N: Size>(
    scores: &mut Fragments<f32>,
    rows: &Rows<F, N>,
    columns: &[Vector<F, N>],
    work: &Work,
    #[comptime] operand: Operand,
) {
    #[unroll]
    for piece in 0..comptime!(operand.dim / operand.depth()) {
        if comptime!(operand.is_held) {
            let first = comptime!(piece * operand.blocks);
            add_piece::<F, N>(scores, &rows.held, columns, work.lane, piece, first, operand);
        } else {
            let loaded = load::<F, N>(&rows.shared, work, piece, 1usize, operand);
            add_piece::<F, N>(scores, &loaded, columns, work.lane, piece, 0usize, operand);
        }
    }
}

/// Adds what one piece of the vectors gives; its fragments of the rows begin with number `first`.
#[cube]
fn add_piece<F: Float, N: Size>(
    scores: &mut Fragments<f32>,
    rows: &Fragments<F>,
    shared_columns: &[Vector<F, N>],
    lane: usize,
    #[comptime] piece: usize,
    #[comptime] first: usize,
    #[comptime] operand: Operand,
) {
    let pitch = comptime!(operand.pitch);
    let (depth, vector) = comptime!((operand.depth(), operand.vector));
    let at = beside(lane, pitch, operand);
    #[unroll]
    for pair in 0..comptime!(operand.matrices / 2) {
        let offset = comptime!(pair * 2 * COLUMNS * pitch + piece * depth / vector);
        if comptime!(operand.is_tf32) {
            let is_rounded = comptime!(operand.has_rounded_columns);
            let columns = tf32::read::<F, N>(shared_columns, at + offset, is_rounded);
            #[unroll]
            for block in 0..comptime!(operand.blocks) {
                let row = rows.index(comptime!(first + block));
                #[unroll]
                for half in 0..2usize {
                    let score = comptime!(block * operand.matrices + 2 * pair + half);
                    tf32::multiply::<F>(row, columns[half], scores.index_mut(score));
                }
            }
        } else {
            let columns = read::<F, N>(shared_columns, at + offset, false);
            #[unroll]
            for block in 0..comptime!(operand.blocks) {
                let row = rows.index(comptime!(first + block));
                let score = comptime!(block * operand.matrices + 2 * pair);
                multiply::<F>(row, &half::<F>(&columns, 0usize), scores.index_mut(score));
                let score = comptime!(score + 1);
                multiply::<F>(row, &half::<F>(&columns, 2usize), scores.index_mut(score));
            }
        }
    }
}

/// `sums += weights * columns`.
#[cube]
pub(super) fn accumulate<F: Float, N: Size>(
    sums: &mut Fragments<f32>,
    weights: &Fragments<f32>,
    shared_columns: &[Vector<F, N>],
    lane: usize,
    #[comptime] operand: Operand,
) {
    if comptime!(operand.is_tf32) {
        tf32::accumulate::<F, N>(sums, weights, shared_columns, lane, operand);
    } else {
        accumulate_pairs::<F, N>(sums, weights, shared_columns, lane, operand);
    }
}

/// The same where elements have two bytes, pairs of matrices at a time.
#[cube]
fn accumulate_pairs<F: Float, N: Size>(
    sums: &mut Fragments<f32>,
    weights: &Fragments<f32>,
    shared_columns: &[Vector<F, N>],
    lane: usize,
    #[comptime] operand: Operand,
) {
    let pitch = comptime!(operand.pitch);
    let vector = comptime!(operand.vector);
    let matrices = comptime!(operand.matrices);
    let pieces = comptime!(operand.dim / COLUMNS);
    let at = below(lane, pitch, operand);
    #[unroll]
    for piece in 0..comptime!(matrices / 2) {
        let mut rows = Sequence::<Array<Pair<F>>>::new();
        #[unroll]
        for block in 0..comptime!(operand.blocks) {
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
        for pair in 0..comptime!(pieces / 2) {
            let offset = comptime!(piece * DEPTH * pitch + pair * 2 * COLUMNS / vector);
            let columns = read::<F, N>(shared_columns, at + offset, true);
            #[unroll]
            for block in 0..comptime!(operand.blocks) {
                let first = rows.index(block);
                let sum = comptime!(block * pieces + 2 * pair);
                multiply::<F>(first, &half::<F>(&columns, 0usize), sums.index_mut(sum));
                let sum = comptime!(sum + 1);
                multiply::<F>(first, &half::<F>(&columns, 2usize), sums.index_mut(sum));
            }
        }
    }
}
