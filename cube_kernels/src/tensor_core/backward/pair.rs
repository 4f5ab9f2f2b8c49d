//! What the planes of a pair make of one tile of columns.
//!
//! A plane that sums gradients of keys and of values has registers for 16 rows, and reads each column four times from shared
//! memory for them. Two planes that own 32 rows together, and sum one kind each, read it twice for as many: one makes weights,
//! hands them over as f32, and sums gradients of values; the other multiplies the rows' second vectors meanwhile, makes gradients
//! of scores of both, and sums gradients of keys.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs, clippy::too_many_arguments)]

use cubecl::prelude::*;

use super::super::blueprint::{Blueprint, COLUMNS, Operand, PLANE};
use super::super::geometry::Position;
use super::super::mask::{Sight, mask_windows};
use super::super::meeting::{hear, tell};
use super::super::power::power;
use super::super::products::{Fragments, Pair, accumulate, add_scores, no_scores};
use super::step::Sums;

/// What a plane sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Role {
    /// All that the kernel does.
    Both,
    /// Gradients of values.
    Values,
    /// Gradients of keys.
    Keys,
}

impl Role {
    /// How it multiplies the rows' first vectors: it holds those that it does.
    pub fn rows_first(self, operand: Operand) -> Operand {
        Operand { is_held: operand.is_held && self != Self::Keys, ..operand }
    }

    /// How it multiplies the rows' second vectors.
    pub fn rows_second(self, operand: Operand) -> Operand {
        Operand { is_held: operand.is_held && self != Self::Values, ..operand }
    }
}

/// Makes weights, hands them over, and takes the tile into the gradients of values.
#[cube]
pub(super) fn take_values<F: Float, N: Size>(
    shared_rows_first: &[Vector<F, N>],
    held_first: &Fragments<F>,
    shared_first: &[Vector<F, N>],
    shared_second: &[Vector<F, N>],
    shared_statistics: &[f32],
    handed: &mut [Pair<f32>],
    windows: &[u32],
    sums: &mut Sums,
    corner: &Position,
    sight: &Sight,
    factor: f32,
    first_row: usize,
    lane: usize,
    #[comptime] blueprint: Blueprint,
) {
    let (first, second) = comptime!((blueprint.first(), blueprint.second()));
    let mut weights = no_scores(first);
    if sight.is_any {
        add_scores::<F, N>(
            &mut weights,
            shared_rows_first,
            held_first,
            shared_first,
            first_row,
            lane,
            first,
        );
        weigh(&mut weights, shared_statistics, factor, lane, blueprint);
        if !sight.is_all {
            mask_windows(&mut weights, 0.0, windows, corner, first_row, lane, blueprint);
        }
        hand(&weights, handed, first_row, lane, blueprint);
    }
    tell(pair(first_row, blueprint), comptime!(blueprint.staging));
    if sight.is_any {
        accumulate::<F, N>(&mut sums.second, &weights, shared_second, lane, second);
    }
}

/// Takes the tile into the gradients of keys, with the weights that are handed over.
#[cube]
pub(super) fn take_keys<F: Float, N: Size>(
    shared_rows_second: &[Vector<F, N>],
    held_second: &Fragments<F>,
    shared_first: &[Vector<F, N>],
    shared_second: &[Vector<F, N>],
    shared_statistics: &[f32],
    handed: &[Pair<f32>],
    windows: &[u32],
    sums: &mut Sums,
    corner: &Position,
    sight: &Sight,
    first_row: usize,
    lane: usize,
    #[comptime] blueprint: Blueprint,
) {
    let (first, second) = comptime!((blueprint.first(), blueprint.second()));
    let mut gradients = no_scores(second);
    if sight.is_any {
        add_scores::<F, N>(
            &mut gradients,
            shared_rows_second,
            held_second,
            shared_second,
            first_row,
            lane,
            second,
        );
    }
    hear(pair(first_row, blueprint), comptime!(blueprint.staging));
    if sight.is_any {
        differentiate(&mut gradients, shared_statistics, handed, first_row, lane, blueprint);
        if !sight.is_all {
            mask_windows(&mut gradients, 0.0, windows, corner, first_row, lane, blueprint);
        }
        accumulate::<F, N>(&mut sums.first, &gradients, shared_first, lane, first);
    }
}

/// Makes weights of scores.
#[cube]
fn weigh(
    weights: &mut Fragments<f32>,
    shared_statistics: &[f32],
    factor: f32,
    lane: usize,
    #[comptime] blueprint: Blueprint,
) {
    let matrices = comptime!(blueprint.columns() / COLUMNS);
    #[unroll]
    for matrix in 0..matrices {
        #[unroll]
        for element in 0..2usize {
            let column = comptime!(matrix * COLUMNS + element) + lane % 4 * 2;
            let lse = shared_statistics[column];
            #[unroll]
            for row in 0..comptime!(2 * blueprint.blocks) {
                let fragment = weights.index_mut(comptime!(row / 2 * matrices + matrix));
                let half = comptime!(row % 2);
                let mut pair = fragment[half];
                let argument = fma(pair.extract(element), factor, -lse);
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
    shared_statistics: &[f32],
    handed: &[Pair<f32>],
    first_row: usize,
    lane: usize,
    #[comptime] blueprint: Blueprint,
) {
    let columns = comptime!(blueprint.columns());
    let matrices = comptime!(columns / COLUMNS);
    let at = place(first_row, lane, blueprint);
    #[unroll]
    for matrix in 0..matrices {
        let column = comptime!(matrix * COLUMNS) + lane % 4 * 2 + columns;
        let mut delta = Pair::<f32>::new(0.0f32);
        delta.insert(0usize, shared_statistics[column]);
        delta.insert(1usize, shared_statistics[column + 1]);
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
    first_row: usize,
    lane: usize,
    #[comptime] blueprint: Blueprint,
) {
    let matrices = comptime!(blueprint.columns() / COLUMNS);
    let at = place(first_row, lane, blueprint);
    #[unroll]
    for number in 0..comptime!(blueprint.blocks * matrices) {
        let fragment = weights.index(number);
        #[unroll]
        for half in 0..2usize {
            handed[at + comptime!((2 * number + half) * PLANE)] = fragment[half];
        }
    }
}

/// Number of the pair of planes.
#[cube]
fn pair(first_row: usize, #[comptime] blueprint: Blueprint) -> usize {
    first_row / comptime!(blueprint.plane_rows())
}

/// Where this unit's weights begin among those that are handed over: a plane's lie together.
#[cube]
fn place(first_row: usize, lane: usize, #[comptime] blueprint: Blueprint) -> usize {
    first_row * comptime!(blueprint.columns() / 2) + lane
}
