//! Rows that did not come out finite, computed once more from nothing but what they see.
//!
//! The forward pass does the same, and says why. A plane takes such rows one after another, its units
//! sharing the vectors.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::super::bias::{Bias, of_pair};
use super::super::blueprint::{Blueprint, PLANE, Pass, ROWS};
use super::super::geometry::{FeedPair, Position};
use super::super::power::power;
use super::super::results::{load_vectors, no_sums, write_vectors};
use super::super::work::Work;
use super::arguments::{Inputs, Outputs};
use super::part::Part;
use super::statistics::STATISTICS;

/// A unit's part of a row: its vectors, and the sums of their gradients.
#[derive(CubeType)]
struct OneRow<N: Size> {
    first: Array<Vector<f32, N>>,
    second: Array<Vector<f32, N>>,
    sum_first: Array<Vector<f32, N>>,
    sum_second: Array<Vector<f32, N>>,
}

/// Computes the plane's rows again that `spoiled` marks, a bit for each of this unit's.
#[cube]
pub(super) fn repair<F: Float, N: Size, NO: Size>(
    inputs: &Inputs<'_, F, N>,
    outputs: &mut Outputs<F, NO>,
    work: &Work,
    spoiled: u32,
    #[comptime] part: Part,
) {
    let blueprint = comptime!(part.blueprint);
    let lane = work.lane;
    let vectors = comptime!(blueprint.head_dim / blueprint.vector);
    let vectors_second = comptime!(blueprint.head_dim_v / blueprint.vector);
    for row in 0..comptime!(ROWS * blueprint.blocks) {
        // Four units hold the row, at the same place of theirs.
        let flags = plane_shuffle(spoiled, (row % 8 * 4) as u32);
        if (flags >> (row / 8) as u32) & 1 == 1 {
            let at = work.tile.position(work.first_row + row, comptime!(blueprint.cut()));
            let feed = inputs.rows.first.rows(&work.space, &work.tile);
            let from = feed.walk.vector(&at, 0usize, comptime!([1, 1, 1]));
            let first = load_vectors::<F, N>(feed.vectors, from, lane, vectors);
            let feed = inputs.rows.second.rows(&work.space, &work.tile);
            let from = feed.walk.vector(&at, 0usize, comptime!([1, 1, 1]));
            let second = load_vectors::<F, N>(feed.vectors, from, lane, vectors_second);
            let mut one = OneRow::<N> {
                first,
                second,
                sum_first: no_sums::<N>(comptime!(vectors.div_ceil(PLANE))),
                sum_second: no_sums::<N>(comptime!(vectors_second.div_ceil(PLANE))),
            };
            visit::<F, N>(&mut one, inputs, &at, work, blueprint);
            let place = work.space.row_place(&work.tile, &at);
            if comptime!(part.has_first()) {
                let stored = comptime!(blueprint.stored(vectors));
                let (sums, out) = (&one.sum_first, &mut outputs.first);
                write_vectors::<F, N, NO>(sums, work.scale, out, place, lane, stored);
            }
            if comptime!(part.has_second()) {
                let stored = comptime!(blueprint.stored(vectors_second));
                let (sums, out) = (&one.sum_second, &mut outputs.second);
                write_vectors::<F, N, NO>(sums, 1.0, out, place, lane, stored);
            }
        }
    }
}

/// Takes all columns that the row at a position sees into its sums.
#[cube]
fn visit<F: Float, N: Size>(
    one: &mut OneRow<N>,
    inputs: &Inputs<'_, F, N>,
    row: &Position,
    work: &Work,
    #[comptime] blueprint: Blueprint,
) {
    let (space, tile) = (&work.space, &work.tile);
    let is_keys = comptime!(blueprint.pass == Pass::Keys);
    let place = space.row_place(tile, row);
    let mut head = tile.head / space.group_size;
    let mut members = 1usize;
    if comptime!(is_keys) {
        head = tile.head * space.group_size;
        members = space.group_size;
    }
    if comptime!(blueprint.has_keys) {
        let along_z = space.z.sees(&tile.z, row.z);
        let along_y = space.y.sees(&tile.y, row.y);
        let along_x = space.x.sees(&tile.x, row.x);
        for member in 0..members {
            let feed = inputs.columns.columns(space, tile, head + member);
            let bias = inputs.bias.map(|values| {
                if comptime!(is_keys) {
                    Bias::of_head(values, head + member, space)
                } else {
                    Bias::of_head(values, tile.head, space)
                }
            });
            for z in along_z.start..along_z.end {
                for y in along_y.start..along_y.end {
                    for x in along_x.start..along_x.end {
                        let at = Position { z, y, x };
                        let mut query = place;
                        if comptime!(is_keys) {
                            let heads = space.heads * space.group_size;
                            query = space.column_place(tile, &at, head + member, heads);
                        }
                        let more = of_pair_in::<F>(bias, row, &at, is_keys);
                        let numbers = inputs.statistics;
                        add::<F, N>(one, &feed, &at, numbers, query, more, work, blueprint);
                    }
                }
            }
        }
    }
    if comptime!(blueprint.has_additional) {
        let feed = inputs.additional.additional(space, tile);
        for x in 0..space.additional {
            let at = Position { z: 0usize, y: 0usize, x };
            let none = ComptimeOption::new_None();
            add::<F, N>(one, &feed, &at, inputs.statistics, place, none, work, blueprint);
        }
    }
}

/// The bias of a row and a column, where there is one.
#[cube]
fn of_pair_in<F: Float>(
    bias: ComptimeOption<Bias<'_, F>>,
    row: &Position,
    column: &Position,
    #[comptime] is_keys: bool,
) -> ComptimeOption<f32> {
    if comptime!(is_keys) { of_pair(bias, column, row) } else { of_pair(bias, row, column) }
}

/// Takes the column at a position into the sums of the row, with what is added to its score; `query` is the place of the
/// statistics.
#[cube]
fn add<F: Float, N: Size>(
    one: &mut OneRow<N>,
    feed: &FeedPair<'_, F, N>,
    at: &Position,
    statistics: &[f32],
    query: usize,
    bias: ComptimeOption<f32>,
    work: &Work,
    #[comptime] blueprint: Blueprint,
) {
    let vectors = comptime!(blueprint.head_dim / blueprint.vector);
    let vectors_second = comptime!(blueprint.head_dim_v / blueprint.vector);
    let from = feed.first.walk.vector(at, 0usize, comptime!([1, 1, 1]));
    let first = load_vectors::<F, N>(feed.first.vectors, from, work.lane, vectors);
    let from = feed.second.walk.vector(at, 0usize, comptime!([1, 1, 1]));
    let second = load_vectors::<F, N>(feed.second.vectors, from, work.lane, vectors_second);
    let mut product = 0.0f32;
    #[unroll]
    for slice in 0..comptime!(vectors.div_ceil(PLANE)) {
        product += (one.first[slice] * first[slice]).vector_sum();
    }
    let mut product_second = 0.0f32;
    #[unroll]
    for slice in 0..comptime!(vectors_second.div_ceil(PLANE)) {
        product_second += (one.second[slice] * second[slice]).vector_sum();
    }
    let score = plane_sum(product);
    let biased: ComptimeOption<f32> = bias.map(|bias| score + bias / work.scale);
    let score = biased.unwrap_or(score);
    let argument = fma(score, work.factor, -statistics[STATISTICS * query]);
    let weight = power(argument, comptime!(blueprint.exponential));
    let gradient = weight * (plane_sum(product_second) - statistics[STATISTICS * query + 1]);
    #[unroll]
    for slice in 0..comptime!(vectors.div_ceil(PLANE)) {
        one.sum_first[slice] += first[slice] * Vector::new(gradient);
    }
    if comptime!(blueprint.has_second) {
        #[unroll]
        for slice in 0..comptime!(vectors_second.div_ceil(PLANE)) {
            one.sum_second[slice] += second[slice] * Vector::new(weight);
        }
    }
}
