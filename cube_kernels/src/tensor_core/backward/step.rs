//! What a plane makes of one tile of columns.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::super::bias::{Bias, add_bias};
use super::super::blueprint::{Blueprint, COLUMNS, Pass};
use super::super::fragments::Fragments;
use super::super::mask::{Sight, mask_windows};
use super::super::power::power;
use super::super::products::{self, accumulate, add_scores, no_scores};
use super::super::work::Work;
use super::slopes::{Slopes, add_slopes};
use super::statistics::STATISTICS;

/// What a plane keeps of its rows.
#[derive(CubeType)]
pub(super) struct Rows<'a, F: Float, N: Size> {
    pub first: products::Rows<F, N>,
    pub second: products::Rows<F, N>,
    /// Windows of the cube's rows.
    pub windows: Shared<[u32]>,
    pub statistics: &'a RowStatistics,
}

/// A tile of columns in shared memory, and how the plane sees it.
#[derive(CubeType)]
pub(super) struct Columns<'a, F: Float, N: Size> {
    pub first: &'a [Vector<F, N>],
    pub second: &'a [Vector<F, N>],
    /// Of columns that are queries: their logsumexps, then their deltas.
    pub statistics: &'a [f32],
    /// Of the scores with rows.
    pub bias: ComptimeOption<Bias<'a, F>>,
    pub sight: Sight,
}

#[cube]
pub(super) fn columns<'a, F: Float, N: Size>(
    first: &'a [Vector<F, N>],
    second: &'a [Vector<F, N>],
    statistics: &'a [f32],
    bias: ComptimeOption<Bias<'a, F>>,
    sight: Sight,
) -> Columns<'a, F, N> {
    Columns::<'a, F, N> { first, second, statistics, bias, sight }
}

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
    work: &Work,
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
            let number = work.first_row + work.lane / 4 + comptime!(row * 8);
            let at = work.tile.position(number, comptime!(blueprint.cut()));
            if work.tile.is_row(&at) {
                let place = STATISTICS * work.space.row_place(&work.tile, &at);
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
    columns: &Columns<'_, F, N>,
    rows: &Rows<'_, F, N>,
    sums: &mut Sums,
    slopes: &mut Slopes,
    work: &Work,
    #[comptime] blueprint: Blueprint,
) {
    let (first, second) = comptime!((blueprint.first(), blueprint.second()));
    let (windows, corner) = (&rows.windows, &columns.sight.corner);
    let is_masked = !columns.sight.is_all;
    let (statistics, own) = (columns.statistics, rows.statistics);
    let mut weights = no_scores(first);
    add_scores::<F, N>(&mut weights, &rows.first, columns.first, work, first);
    add_bias::<F>(&mut weights, columns.bias, corner, work, blueprint);
    if comptime!(blueprint.has_first) {
        let mut gradients = no_scores(second);
        add_scores::<F, N>(&mut gradients, &rows.second, columns.second, work, second);
        differentiate(&mut weights, &mut gradients, statistics, own, work, blueprint);
        if is_masked {
            if comptime!(blueprint.has_second) {
                mask_windows(&mut weights, 0.0, windows, corner, work, blueprint);
            }
            mask_windows(&mut gradients, 0.0, windows, corner, work, blueprint);
        }
        if comptime!(blueprint.bias_sums > 0) {
            add_slopes(slopes.index_mut(0), &gradients, corner, work, blueprint);
        }
        if comptime!(blueprint.has_second) {
            accumulate::<F, N>(&mut sums.second, &weights, columns.second, work.lane, second);
        }
        accumulate::<F, N>(&mut sums.first, &gradients, columns.first, work.lane, first);
    } else {
        // Gradients that nothing reads, which the compiler drops.
        let mut gradients = no_scores(second);
        differentiate(&mut weights, &mut gradients, statistics, own, work, blueprint);
        if is_masked {
            mask_windows(&mut weights, 0.0, windows, corner, work, blueprint);
        }
        accumulate::<F, N>(&mut sums.second, &weights, columns.second, work.lane, second);
    }
}

/// Makes weights of scores, and gradients of the scores of those of the weights.
#[cube]
pub(super) fn differentiate(
    weights: &mut Fragments<f32>,
    gradients: &mut Fragments<f32>,
    statistics: &[f32],
    own: &RowStatistics,
    work: &Work,
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
                let column = comptime!(matrix * COLUMNS + element) + work.lane % 4 * 2;
                lse = statistics[column];
                delta = statistics[column + columns];
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
                let argument = fma(pair.extract(element), work.factor, -lse);
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
