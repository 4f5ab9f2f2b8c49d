//! What the planes of a pair make of one tile of columns.
//!
//! A plane that sums gradients of keys and of values has registers for 16 rows, and reads each column four times from shared
//! memory for them. Two planes that own 32 rows together, and sum one kind each, read it twice for as many: one makes weights,
//! hands them over as f32, and sums gradients of values; the other multiplies the rows' second vectors meanwhile, makes gradients
//! of scores of both, and sums gradients of keys.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::super::bias::add_bias;
use super::super::blueprint::{Blueprint, COLUMNS, PLANE};
use super::super::fragments::{Fragments, Pair};
use super::super::mask::mask_windows;
use super::super::meeting::{hear, tell};
use super::super::power::power;
use super::super::products::{accumulate, add_scores, no_scores};
use super::super::work::Work;
use super::step::{Columns, Rows, Sums};

/// Makes weights, hands them over, and takes the tile into the gradients of values.
#[cube]
pub(super) fn take_values<F: Float, N: Size>(
    columns: &Columns<'_, F, N>,
    rows: &Rows<'_, F, N>,
    handed: &mut [Pair<f32>],
    sums: &mut Sums,
    work: &Work,
    #[comptime] blueprint: Blueprint,
) {
    let (first, second) = comptime!((blueprint.first(), blueprint.second()));
    let sight = columns.sight;
    let mut weights = no_scores(first);
    if sight.is_any {
        add_scores::<F, N>(&mut weights, &rows.first, columns.first, work, first);
        add_bias::<F>(&mut weights, columns.bias, &sight.corner, work, blueprint);
        weigh(&mut weights, columns.statistics, work, blueprint);
        if !sight.is_all {
            mask_windows(&mut weights, 0.0, &rows.windows, &sight.corner, work, blueprint);
        }
        hand(&weights, handed, work, blueprint);
    }
    tell(work.group, comptime!(blueprint.staging));
    if sight.is_any {
        accumulate::<F, N>(&mut sums.second, &weights, columns.second, work.lane, second);
    }
}

/// Takes the tile into the gradients of keys, with the weights that are handed over.
#[cube]
pub(super) fn take_keys<F: Float, N: Size>(
    columns: &Columns<'_, F, N>,
    rows: &Rows<'_, F, N>,
    handed: &[Pair<f32>],
    sums: &mut Sums,
    work: &Work,
    #[comptime] blueprint: Blueprint,
) {
    let (first, second) = comptime!((blueprint.first(), blueprint.second()));
    let sight = columns.sight;
    let mut gradients = no_scores(second);
    if sight.is_any {
        add_scores::<F, N>(&mut gradients, &rows.second, columns.second, work, second);
    }
    hear(work.group, comptime!(blueprint.staging));
    if sight.is_any {
        differentiate(&mut gradients, columns.statistics, handed, work, blueprint);
        if !sight.is_all {
            mask_windows(&mut gradients, 0.0, &rows.windows, &sight.corner, work, blueprint);
        }
        accumulate::<F, N>(&mut sums.first, &gradients, columns.first, work.lane, first);
    }
}

/// Makes weights of scores.
#[cube]
fn weigh(
    weights: &mut Fragments<f32>,
    statistics: &[f32],
    work: &Work,
    #[comptime] blueprint: Blueprint,
) {
    let matrices = comptime!(blueprint.columns() / COLUMNS);
    #[unroll]
    for matrix in 0..matrices {
        #[unroll]
        for element in 0..2usize {
            let column = comptime!(matrix * COLUMNS + element) + work.lane % 4 * 2;
            let lse = statistics[column];
            #[unroll]
            for row in 0..comptime!(2 * blueprint.blocks) {
                let fragment = weights.index_mut(comptime!(row / 2 * matrices + matrix));
                let half = comptime!(row % 2);
                let mut pair = fragment[half];
                let argument = fma(pair.extract(element), work.factor, -lse);
                pair.insert(element, power(argument, comptime!(blueprint.exponential)));
                fragment[half] = pair;
            }
        }
    }
}

/// Makes gradients of the scores of those of the weights.
#[cube]
fn differentiate(
    gradients: &mut Fragments<f32>,
    statistics: &[f32],
    handed: &[Pair<f32>],
    work: &Work,
    #[comptime] blueprint: Blueprint,
) {
    let columns = comptime!(blueprint.columns());
    let matrices = comptime!(columns / COLUMNS);
    let at = place(work, blueprint);
    #[unroll]
    for matrix in 0..matrices {
        let column = comptime!(matrix * COLUMNS) + work.lane % 4 * 2 + columns;
        let mut delta = Pair::<f32>::new(0.0f32);
        delta.insert(0usize, statistics[column]);
        delta.insert(1usize, statistics[column + 1]);
        #[unroll]
        for row in 0..comptime!(2 * blueprint.blocks) {
            let number = comptime!(row / 2 * matrices + matrix);
            let half = comptime!(row % 2);
            let weights = handed[at + comptime!((2 * number + half) * PLANE)];
            let fragment = gradients.index_mut(number);
            fragment[half] = weights * (fragment[half] - delta);
        }
    }
}

/// Writes weights where the other plane of the pair finds them.
#[cube]
fn hand(
    weights: &Fragments<f32>,
    handed: &mut [Pair<f32>],
    work: &Work,
    #[comptime] blueprint: Blueprint,
) {
    let matrices = comptime!(blueprint.columns() / COLUMNS);
    let at = place(work, blueprint);
    #[unroll]
    for number in 0..comptime!(blueprint.blocks * matrices) {
        let fragment = weights.index(number);
        #[unroll]
        for half in 0..2usize {
            handed[at + comptime!((2 * number + half) * PLANE)] = fragment[half];
        }
    }
}

/// Where this unit's weights begin among those that are handed over: a plane's lie together.
#[cube]
fn place(work: &Work, #[comptime] blueprint: Blueprint) -> usize {
    work.first_row * comptime!(blueprint.columns() / 2) + work.lane
}
