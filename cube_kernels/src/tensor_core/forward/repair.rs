//! Rows that did not come out finite, computed once more from nothing but what they see.
//!
//! A tile holds keys that some of its queries do not see. Their weights are zero, but zero times a value
//! that is not finite is no number, so that it would reach rows that do not see it. Here a plane takes such
//! rows one after another, its units sharing the vectors. Rows that see nothing are among them: their output is 0, their
//! logsumexp -inf.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::super::bias::{Bias, of_pair};
use super::super::blueprint::{Blueprint, PLANE, ROWS};
use super::super::geometry::{FeedPair, Position};
use super::super::results::{load_vectors, no_sums, write_vectors};
use super::super::work::Work;
use crate::cube::forward::{Inputs, Outputs};

/// One row: a unit's part of its query and its sums, and the softmax so far.
#[derive(CubeType)]
struct OneRow<N: Size> {
    query: Array<Vector<f32, N>>,
    sums: Array<Vector<f32, N>>,
    /// Index [`MAXIMUM`] and index [`SUM`].
    state: Array<f32>,
}

/// The largest score so far.
const MAXIMUM: usize = 0;
/// The sum of exponentials relative to the maximum.
const SUM: usize = 1;

/// Computes the plane's rows again that `spoiled` marks, a bit for each of this unit's.
#[cube]
pub(super) fn repair<F: Float, N: Size, NO: Size>(
    inputs: &Inputs<'_, F, N>,
    outputs: &mut Outputs<F, NO>,
    work: &Work,
    spoiled: u32,
    #[comptime] blueprint: Blueprint,
) {
    let (space, tile, lane) = (&work.space, &work.tile, work.lane);
    let vectors = comptime!(blueprint.head_dim / blueprint.vector);
    let vectors_v = comptime!(blueprint.head_dim_v / blueprint.vector);
    for row in 0..comptime!(ROWS * blueprint.blocks) {
        // Four units hold the row, at the same place of theirs.
        let flags = plane_shuffle(spoiled, (row % 8 * 4) as u32);
        if (flags >> (row / 8) as u32) & 1 == 1 {
            let at = tile.position(work.first_row + row, comptime!(blueprint.cut()));
            let feed = inputs.query.rows(space, tile);
            let from = feed.walk.vector(&at, 0usize, comptime!([1, 1, 1]));
            let mut one = OneRow::<N> {
                query: load_vectors::<F, N>(feed.vectors, from, lane, vectors),
                sums: no_sums::<N>(comptime!(vectors_v.div_ceil(PLANE))),
                state: Array::<f32>::new(2usize),
            };
            one.state[MAXIMUM] = f32::min_value();
            one.state[SUM] = 0.0;
            let mut seen = 0usize;
            if comptime!(blueprint.has_keys) {
                let head = tile.head / space.group_size;
                let feed = inputs.columns.columns(space, tile, head);
                let bias = inputs.bias.map(|values| Bias::of_head(values, tile.head, space));
                let along_z = space.z.sees(&tile.z, at.z);
                let along_y = space.y.sees(&tile.y, at.y);
                let along_x = space.x.sees(&tile.x, at.x);
                seen = along_z.length() * along_y.length() * along_x.length();
                for z in along_z.start..along_z.end {
                    for y in along_y.start..along_y.end {
                        for x in along_x.start..along_x.end {
                            let key = Position { z, y, x };
                            let bias = of_pair(bias, &at, &key);
                            attend::<F, N>(&mut one, &feed, &key, bias, work, blueprint);
                        }
                    }
                }
            }
            if comptime!(blueprint.has_additional) {
                let feed = inputs.additional.additional(space, tile);
                seen += space.additional;
                for x in 0..space.additional {
                    let at = Position { z: 0usize, y: 0usize, x };
                    let none = ComptimeOption::new_None();
                    attend::<F, N>(&mut one, &feed, &at, none, work, blueprint);
                }
            }
            let place = space.row_place(tile, &at);
            if lane == 0 {
                outputs.lse[place] = one.state[MAXIMUM] + one.state[SUM].ln();
            }
            let stored = comptime!(blueprint.stored(vectors_v));
            let mut inverse = 1.0 / one.state[SUM];
            if comptime!(blueprint.has_origin) {
                // A sum of 0 is not enough to tell: scores of -inf have it, too.
                inverse = select(seen == 0, 0.0f32, inverse);
            }
            write_vectors::<F, N, NO>(&one.sums, inverse, &mut outputs.out, place, lane, stored);
        }
    }
}

/// Takes the key at a position into the softmax of the row, with what is added to its score.
#[cube]
fn attend<F: Float, N: Size>(
    one: &mut OneRow<N>,
    feed: &FeedPair<'_, F, N>,
    at: &Position,
    bias: ComptimeOption<f32>,
    work: &Work,
    #[comptime] blueprint: Blueprint,
) {
    let vectors = comptime!(blueprint.head_dim / blueprint.vector);
    let vectors_v = comptime!(blueprint.head_dim_v / blueprint.vector);
    let from = feed.first.walk.vector(at, 0usize, comptime!([1, 1, 1]));
    let elements = load_vectors::<F, N>(feed.first.vectors, from, work.lane, vectors);
    let mut product = 0.0f32;
    #[unroll]
    for slice in 0..comptime!(vectors.div_ceil(PLANE)) {
        product += (one.query[slice] * elements[slice]).vector_sum();
    }
    let score = plane_sum(product) * work.scale;
    let biased: ComptimeOption<f32> = bias.map(|bias| score + bias);
    let score = biased.unwrap_or(score);
    let maximum = max(one.state[MAXIMUM], score);
    let decay = (one.state[MAXIMUM] - maximum).exp();
    let weight = (score - maximum).exp();
    one.state[MAXIMUM] = maximum;
    one.state[SUM] = one.state[SUM] * decay + weight;
    let from = feed.second.walk.vector(at, 0usize, comptime!([1, 1, 1]));
    let elements = load_vectors::<F, N>(feed.second.vectors, from, work.lane, vectors_v);
    #[unroll]
    for slice in 0..comptime!(vectors_v.div_ceil(PLANE)) {
        let kept = one.sums[slice] * Vector::new(decay);
        one.sums[slice] = kept + elements[slice] * Vector::new(weight);
    }
}
