//! What a plane makes of one tile of columns.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs, clippy::too_many_arguments)]

use cubecl::prelude::*;

use super::super::blueprint::{Blueprint, COLUMNS, Pass};
use super::super::geometry::{CubeTile, Position, Space};
use super::super::mask::mask_windows;
use super::super::power::power;
use super::super::products::{Fragments, accumulate, add_scores, no_scores};
use super::statistics::STATISTICS;

/// Sums of the gradients of the rows' first and second vectors.
#[derive(CubeType)]
pub(super) struct Sums {
    pub first: Fragments<f32>,
    pub second: Fragments<f32>,
}

/// A unit's part of the statistics of its rows: scaled logsumexp and delta, two rows of each block.
#[derive(CubeType)]
pub(super) struct RowStatistics {
    lse: Array<f32>,
    delta: Array<f32>,
}

/// Statistics of this unit's rows, where rows are queries.
#[cube]
pub(super) fn row_statistics(
    statistics: &[f32],
    space: &Space,
    tile: &CubeTile,
    first_row: usize,
    lane: usize,
    #[comptime] blueprint: Blueprint,
) -> RowStatistics {
    let rows = comptime!(2 * blueprint.blocks);
    let mut lse = Array::<f32>::new(rows);
    let mut delta = Array::<f32>::new(rows);
    #[unroll]
    for row in 0..rows {
        lse[row] = 0.0f32;
        delta[row] = 0.0f32;
        if comptime!(blueprint.pass != Pass::Keys) {
            let at = tile
                .position(first_row + lane / 4 + comptime!(row * 8), comptime!(blueprint.cut()));
            if tile.is_row(&at) {
                let place = STATISTICS * space.row_place(tile, &at);
                lse[row] = statistics[place];
                delta[row] = statistics[place + 1];
            }
        }
    }
    RowStatistics { lse, delta }
}

/// Takes a tile of columns into the sums.
#[cube]
pub(super) fn take<F: Float, N: Size>(
    shared_rows_first: &[Vector<F, N>],
    shared_rows_second: &[Vector<F, N>],
    held_first: &Fragments<F>,
    held_second: &Fragments<F>,
    shared_first: &[Vector<F, N>],
    shared_second: &[Vector<F, N>],
    shared_statistics: &[f32],
    windows: &[u32],
    own: &RowStatistics,
    sums: &mut Sums,
    corner: &Position,
    is_masked: bool,
    factor: f32,
    first_row: usize,
    lane: usize,
    #[comptime] blueprint: Blueprint,
) {
    let (first, second) = comptime!((blueprint.first(), blueprint.second()));
    let mut weights = no_scores(first);
    add_scores::<F, N>(
        &mut weights,
        shared_rows_first,
        held_first,
        shared_first,
        first_row,
        lane,
        first,
    );
    if comptime!(blueprint.has_first) {
        let mut gradients = no_scores(second);
        add_scores::<F, N>(
            &mut gradients,
            shared_rows_second,
            held_second,
            shared_second,
            first_row,
            lane,
            second,
        );
        differentiate(
            &mut weights,
            &mut gradients,
            shared_statistics,
            own,
            factor,
            lane,
            blueprint,
        );
        if is_masked {
            if comptime!(blueprint.has_second) {
                mask_windows(&mut weights, 0.0, windows, corner, first_row, lane, blueprint);
            }
            mask_windows(&mut gradients, 0.0, windows, corner, first_row, lane, blueprint);
        }
        if comptime!(blueprint.has_second) {
            accumulate::<F, N>(&mut sums.second, &weights, shared_second, lane, second);
        }
        accumulate::<F, N>(&mut sums.first, &gradients, shared_first, lane, first);
    } else {
        // Gradients that nothing reads, which the compiler drops.
        let mut gradients = no_scores(second);
        differentiate(
            &mut weights,
            &mut gradients,
            shared_statistics,
            own,
            factor,
            lane,
            blueprint,
        );
        if is_masked {
            mask_windows(&mut weights, 0.0, windows, corner, first_row, lane, blueprint);
        }
        accumulate::<F, N>(&mut sums.second, &weights, shared_second, lane, second);
    }
}

/// Makes weights of scores, and gradients of the scores of those of the weights.
#[cube]
pub(super) fn differentiate(
    weights: &mut Fragments<f32>,
    gradients: &mut Fragments<f32>,
    shared_statistics: &[f32],
    own: &RowStatistics,
    factor: f32,
    lane: usize,
    #[comptime] blueprint: Blueprint,
) {
    let columns = comptime!(blueprint.columns());
    let matrices = comptime!(columns / COLUMNS);
    #[unroll]
    for matrix in 0..matrices {
        #[unroll]
        for element in 0..2usize {
            let mut lse = 0.0f32;
            let mut delta = 0.0f32;
            if comptime!(blueprint.pass == Pass::Keys) {
                let column = comptime!(matrix * COLUMNS + element) + lane % 4 * 2;
                lse = shared_statistics[column];
                delta = shared_statistics[column + columns];
            }
            #[unroll]
            for row in 0..comptime!(2 * blueprint.blocks) {
                if comptime!(blueprint.pass != Pass::Keys) {
                    lse = own.lse[row];
                    delta = own.delta[row];
                }
                let number = comptime!(row / 2 * matrices + matrix);
                let half = comptime!(row % 2);
                let fragment = weights.index_mut(number);
                let mut pair = fragment[half];
                let argument = fma(pair.extract(element), factor, -lse);
                let weight = power(argument, comptime!(blueprint.exponential));
                pair.insert(element, weight);
                fragment[half] = pair;
                let fragment = gradients.index_mut(number);
                let mut pair = fragment[half];
                pair.insert(element, weight * (pair.extract(element) - delta));
                fragment[half] = pair;
            }
        }
    }
}
