//! Products of tiles in shared memory with `f32` registers, which is where the time goes.
//!
//! A unit at `(x, y)` of the cube's grid owns rows `y`, `y + down`, .. and columns `x * columns_each ..`. Of
//! 8 rows and 4 columns it reads 12 lines for 128 multiply-adds.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::super::blueprint::{Blueprint, Operand, WEIGHTS};
use super::source::Source;
use super::staging::{Stage, stage};
use crate::MAX_RANK;
use crate::cube::narrow_all;

/// Weights as they are read.
pub(super) type Weights = Vector<f32, Const<4>>;

/// What a cube shares.
#[derive(CubeType)]
pub(super) struct Memory<N: Size> {
    /// The rows' first vectors, queries or keys.
    pub first: Shared<[Vector<f32, N>]>,
    /// The rows' second vectors, the output's gradient or values.
    pub second: Shared<[Vector<f32, N>]>,
    /// Columns of a step.
    pub columns: Shared<[Vector<f32, N>]>,
    /// Weights of a step.
    pub weights: Shared<[Weights]>,
    /// What units of a row tell each other.
    pub partials: Shared<[f32]>,
    /// Of each row the largest score so far.
    pub maxima: Shared<[f32]>,
    /// Of each row the window.
    pub windows: Shared<[u32]>,
}

#[cube]
pub(super) fn memory<N: Size>(#[comptime] blueprint: Blueprint) -> Memory<N> {
    let (rows, columns) = comptime!((blueprint.rows(), blueprint.columns()));
    let maxima = comptime!(if blueprint.partials() > 1 { rows } else { 1 });
    Memory::<N> {
        first: Shared::new_aligned_slice(comptime!(blueprint.first_rows()), 16usize),
        second: Shared::new_aligned_slice(comptime!(blueprint.second_rows()), 16usize),
        columns: Shared::new_aligned_slice(comptime!(columns * blueprint.column_pitch()), 16usize),
        weights: Shared::new_aligned_slice(comptime!(rows * blueprint.weight_pitch()), 16usize),
        partials: Shared::new_slice(comptime!(blueprint.partials())),
        maxima: Shared::new_slice(maxima),
        windows: Shared::new_slice(comptime!(rows * blueprint.window_words())),
    }
}

/// `count` zeros.
#[cube]
pub(super) fn zero_scores(#[comptime] count: usize) -> Array<f32> {
    let mut zeros = Array::<f32>::new(count);
    #[unroll]
    for i in 0..count {
        zeros[i] = 0.0;
    }
    zeros
}

/// `count` lines of zeros.
#[cube]
pub(super) fn zero_lines<N: Size>(#[comptime] count: usize) -> Array<Vector<f32, N>> {
    let mut zeros = Array::<Vector<f32, N>>::new(count);
    #[unroll]
    for i in 0..count {
        zeros[i] = Vector::new(0.0f32);
    }
    zeros
}

/// This unit's scores: products of its rows' vectors with those of its columns, the first or the second ones. The columns
/// pass through shared memory, which has to be free; the last piece is read there without a barrier behind it.
#[cube]
pub(super) fn scores<F: Float, N: Size>(
    rows: &Source<'_, F, N>,
    columns: &Source<'_, F, N>,
    memory: &mut Memory<N>,
    unit: usize,
    #[comptime] is_second: bool,
    #[comptime] column_tile: [usize; MAX_RANK],
    #[comptime] blueprint: Blueprint,
) -> Array<f32> {
    let operand = comptime!(if is_second { blueprint.second() } else { blueprint.first() });
    let (rows_each, columns_each) = comptime!((blueprint.rows_each, blueprint.columns_each));
    let mut scores = zero_scores(comptime!(rows_each * columns_each));
    #[unroll]
    for piece in 0..comptime!(operand.pieces()) {
        if comptime!(piece > 0) {
            sync_cube();
        }
        let of_piece = comptime!(Stage::columns(&blueprint, operand, column_tile, piece));
        stage::<F, N>(columns, &mut memory.columns, unit, of_piece);
        if comptime!(!blueprint.holds_rows) {
            let of_piece = comptime!(Stage::row_piece(&blueprint, operand, piece));
            stage::<F, N>(rows, &mut memory.first, unit, of_piece);
        }
        sync_cube();
        if comptime!(is_second && blueprint.holds_rows) {
            let (rows, columns) = (&memory.second, &memory.columns);
            add_piece::<N>(&mut scores, rows, columns, unit, piece, operand, blueprint);
        } else {
            let (rows, columns) = (&memory.first, &memory.columns);
            add_piece::<N>(&mut scores, rows, columns, unit, piece, operand, blueprint);
        }
    }
    scores
}

#[cube]
fn add_piece<N: Size>(
    scores: &mut Array<f32>,
    rows: &[Vector<f32, N>],
    columns: &[Vector<f32, N>],
    unit: usize,
    #[comptime] piece: usize,
    #[comptime] operand: Operand,
    #[comptime] blueprint: Blueprint,
) {
    let (rows_each, columns_each) = comptime!((blueprint.rows_each, blueprint.columns_each));
    let row_step = comptime!(blueprint.down * blueprint.row_pitch(operand));
    let column_step = comptime!(blueprint.across * blueprint.column_pitch());
    let first = comptime!(if blueprint.holds_rows { piece * operand.depth } else { 0 });
    let row_at =
        unit / comptime!(blueprint.across) * comptime!(blueprint.row_pitch(operand)) + first;
    let column_at = unit % comptime!(blueprint.across) * comptime!(blueprint.column_pitch());
    for line in 0..comptime!(operand.piece(piece)) {
        let mut own = Array::<Vector<f32, N>>::new(rows_each);
        #[unroll]
        for i in 0..rows_each {
            own[i] = rows[row_at + line + comptime!(i * row_step)];
        }
        #[unroll]
        for j in 0..columns_each {
            let column = columns[column_at + line + comptime!(j * column_step)];
            #[unroll]
            for i in 0..rows_each {
                let at = comptime!(i * columns_each + j);
                let mut score = scores[at];
                #[unroll]
                for element in 0..comptime!(blueprint.vector) {
                    score += own[i].extract(element) * column.extract(element);
                }
                scores[at] = score;
            }
        }
    }
}

/// Writes this unit's weights to shared memory.
#[cube]
pub(super) fn write_weights(
    weights: &mut [Weights],
    values: &Array<f32>,
    unit: usize,
    #[comptime] blueprint: Blueprint,
) {
    let columns_each = comptime!(blueprint.columns_each);
    let pieces = comptime!(columns_each / WEIGHTS);
    #[unroll]
    for i in 0..comptime!(blueprint.rows_each) {
        let row = unit / comptime!(blueprint.across) + comptime!(i * blueprint.down);
        let at =
            row * comptime!(blueprint.weight_pitch()) + unit % comptime!(blueprint.across) * pieces;
        #[unroll]
        for piece in 0..pieces {
            let mut vector = Weights::new(0.0f32);
            #[unroll]
            for element in 0..WEIGHTS {
                vector.insert(
                    element,
                    values[comptime!(i * columns_each + piece * WEIGHTS + element)],
                );
            }
            weights[at + piece] = vector;
        }
    }
}

/// How columns are weighted and summed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Summed {
    pub operand: Operand,
    /// Columns of a step along each axis.
    pub column_tile: [usize; MAX_RANK],
    /// Whether the only piece of the columns is in shared memory.
    pub is_staged: bool,
}

/// Adds to this unit's sums the columns, weighted as shared memory says. The columns pass through shared
/// memory, which has to be free, unless they are there; the last piece is read there without a barrier behind it.
#[cube]
pub(super) fn accumulate<F: Float, N: Size>(
    sums: &mut Array<Vector<f32, N>>,
    columns: &Source<'_, F, N>,
    memory: &mut Memory<N>,
    unit: usize,
    #[comptime] summed: Summed,
    #[comptime] blueprint: Blueprint,
) {
    let Summed { operand, column_tile, is_staged } = comptime!(summed);
    #[unroll]
    for piece in 0..comptime!(operand.pieces()) {
        if comptime!(piece > 0 || !is_staged) {
            if comptime!(piece > 0) {
                sync_cube();
            }
            let of_piece = comptime!(Stage::columns(&blueprint, operand, column_tile, piece));
            stage::<F, N>(columns, &mut memory.columns, unit, of_piece);
            sync_cube();
        }
        let (weights, columns) = (&memory.weights, &memory.columns);
        accumulate_piece::<N>(sums, weights, columns, unit, piece, operand, blueprint);
    }
}

#[cube]
fn accumulate_piece<N: Size>(
    sums: &mut Array<Vector<f32, N>>,
    weights: &[Weights],
    columns: &[Vector<f32, N>],
    unit: usize,
    #[comptime] piece: usize,
    #[comptime] operand: Operand,
    #[comptime] blueprint: Blueprint,
) {
    let (rows_each, across) = comptime!((blueprint.rows_each, blueprint.across));
    let each = comptime!(blueprint.lines_each(operand));
    let before = comptime!(blueprint.lines_before(operand, piece));
    let lines = comptime!(operand.piece(piece));
    let x = unit % across;
    let weight_at = unit / across * comptime!(blueprint.weight_pitch());
    let weight_step = comptime!(blueprint.down * blueprint.weight_pitch());
    let parts = comptime!(blueprint.columns_each / WEIGHTS);
    for owner in 0..across {
        #[unroll]
        for part in 0..parts {
            let mut own = Array::<Weights>::new(rows_each);
            #[unroll]
            for i in 0..rows_each {
                own[i] = weights[weight_at + owner * parts + comptime!(part + i * weight_step)];
            }
            #[unroll]
            for element in 0..WEIGHTS {
                // As columns are spread when they are staged.
                let slot = owner + comptime!((part * WEIGHTS + element) * across);
                #[unroll]
                for l in 0..comptime!(lines.div_ceil(across)) {
                    let mut line = x + comptime!(l * across);
                    if comptime!((l + 1) * across > lines) {
                        // Behind the end of the vector sums are never written.
                        line = min(line, comptime!(lines - 1));
                    }
                    let column = columns[slot * comptime!(blueprint.column_pitch()) + line];
                    #[unroll]
                    for i in 0..rows_each {
                        let at = comptime!(i * each + before + l);
                        sums[at] += Vector::new(own[i].extract(element)) * column;
                    }
                }
            }
        }
    }
}

/// Writes this unit's lines of row number `i` of its own, times `factor`, to vector number `place`.
#[cube]
pub(super) fn store_row<F: Float, N: Size>(
    sums: &Array<Vector<f32, N>>,
    factor: f32,
    out: &mut [Vector<F, N>],
    place: usize,
    unit: usize,
    #[comptime] row: OwnRow,
) {
    let OwnRow { i, operand, blueprint } = comptime!(row);
    let across = comptime!(blueprint.across);
    let each = comptime!(blueprint.lines_each(operand));
    let x = unit % across;
    #[unroll]
    for piece in 0..comptime!(operand.pieces()) {
        let lines = comptime!(operand.piece(piece));
        let before = comptime!(blueprint.lines_before(operand, piece));
        #[unroll]
        for l in 0..comptime!(lines.div_ceil(across)) {
            let line = x + comptime!(l * across);
            if line < lines {
                let at = place * comptime!(operand.lines) + comptime!(piece * operand.depth) + line;
                out[at] = narrow_all(sums[comptime!(i * each + before + l)] * Vector::new(factor));
            }
        }
    }
}

/// Row number `i` of a unit's own, of sums of an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct OwnRow {
    pub i: usize,
    pub operand: Operand,
    pub blueprint: Blueprint,
}
