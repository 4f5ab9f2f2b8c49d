//! Rows that did not come out finite, computed once more from nothing but what they see.
//!
//! A tile holds keys that some of its queries do not see. Their weights are zero, but zero times a value
//! that is not finite is no number, so that it would reach rows that do not see it. Here a plane takes such
//! rows one after another, its units sharing the vectors.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs, clippy::too_many_arguments)]

use cubecl::prelude::*;

use super::super::blueprint::{Blueprint, PLANE, ROWS};
use super::super::geometry::{AxisSpace, AxisTile, CubeTile, Position, Space, Walk};
use super::super::results::{load_vectors, write_vectors};
use super::kernel::AllStrides;

/// Index into the statistics of a row: the largest score so far.
const MAXIMUM: usize = 0;
/// Index into the statistics of a row: the sum of exponentials relative to the maximum.
const SUM: usize = 1;

/// Keys of a row's window along one axis: positions.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Span {
    start: usize,
    end: usize,
}

/// Computes the plane's rows again that `spoiled` marks, a bit for each of this unit's.
#[cube]
pub(in super::super) fn repair<F: Float, N: Size, NO: Size>(
    query: &[Vector<F, N>],
    key: &[Vector<F, N>],
    value: &[Vector<F, N>],
    additional_key: &[Vector<F, N>],
    additional_value: &[Vector<F, N>],
    out: &mut [Vector<F, NO>],
    lse: &mut [f32],
    space: &Space,
    strides: &AllStrides,
    tile: &CubeTile,
    spoiled: u32,
    scale: f32,
    first_row: usize,
    lane: usize,
    #[comptime] blueprint: Blueprint,
) {
    let head_kv = tile.head / space.group_size;
    let vectors = comptime!(blueprint.head_dim / blueprint.vector);
    let vectors_v = comptime!(blueprint.head_dim_v / blueprint.vector);
    let slices_v = comptime!(vectors_v.div_ceil(PLANE));
    for row in 0..comptime!(ROWS * blueprint.blocks) {
        // Four units hold the row, at the same place of theirs.
        let flags = plane_shuffle(spoiled, (row % 8 * 4) as u32);
        if (flags >> (row / 8) as u32) & 1 == 1 {
            let at = tile.position(first_row + row, comptime!(blueprint.cut()));
            let walk = space.row_walk(tile, &strides.query);
            let from = walk.vector(&at, 0usize, comptime!([1, 1, 1]));
            let fixed = load_vectors::<F, N>(query, from, lane, vectors);
            let mut sums = Array::<Vector<f32, N>>::new(slices_v);
            #[unroll]
            for slice in 0..slices_v {
                sums[slice] = Vector::new(0.0f32);
            }
            let mut state = Array::<f32>::new(2usize);
            state[MAXIMUM] = f32::min_value();
            state[SUM] = 0.0;
            if comptime!(blueprint.has_keys) {
                let key_walk = space.column_walk(tile, &strides.key, head_kv);
                let value_walk = space.column_walk(tile, &strides.value, head_kv);
                let along_z = span(&space.z, &tile.z, at.z);
                let along_y = span(&space.y, &tile.y, at.y);
                let along_x = span(&space.x, &tile.x, at.x);
                for z in along_z.start..along_z.end {
                    for y in along_y.start..along_y.end {
                        for x in along_x.start..along_x.end {
                            let at = Position { z, y, x };
                            attend::<F, N>(
                                &fixed,
                                &mut sums,
                                &mut state,
                                key,
                                value,
                                &key_walk,
                                &value_walk,
                                &at,
                                scale,
                                lane,
                                blueprint,
                            );
                        }
                    }
                }
            }
            if comptime!(blueprint.has_additional) {
                let key_walk = space.additional_walk(tile, &strides.additional_key);
                let value_walk = space.additional_walk(tile, &strides.additional_value);
                for x in 0..space.additional {
                    let at = Position { z: 0usize, y: 0usize, x };
                    attend::<F, N>(
                        &fixed,
                        &mut sums,
                        &mut state,
                        additional_key,
                        additional_value,
                        &key_walk,
                        &value_walk,
                        &at,
                        scale,
                        lane,
                        blueprint,
                    );
                }
            }
            let place = space.row_place(tile, &at);
            if lane == 0 {
                lse[place] = state[MAXIMUM] + state[SUM].ln();
            }
            let (size, vector) = comptime!((blueprint.vector_out(), blueprint.vector));
            let inverse = 1.0 / state[SUM];
            write_vectors::<F, N, NO>(&sums, inverse, out, place, lane, vectors_v, vector, size);
        }
    }
}

#[cube]
fn span(space: &AxisSpace, tile: &AxisTile, position: usize) -> Span {
    let start = space.start(position, tile.columns);
    Span { start, end: space.end(position, start, tile.rows, tile.columns) }
}

/// Takes the key at a position into the softmax of the row.
#[cube]
fn attend<F: Float, N: Size>(
    fixed: &Array<Vector<f32, N>>,
    sums: &mut Array<Vector<f32, N>>,
    state: &mut Array<f32>,
    key: &[Vector<F, N>],
    value: &[Vector<F, N>],
    key_walk: &Walk,
    value_walk: &Walk,
    at: &Position,
    scale: f32,
    lane: usize,
    #[comptime] blueprint: Blueprint,
) {
    let vectors = comptime!(blueprint.head_dim / blueprint.vector);
    let vectors_v = comptime!(blueprint.head_dim_v / blueprint.vector);
    let from = key_walk.vector(at, 0usize, comptime!([1, 1, 1]));
    let elements = load_vectors::<F, N>(key, from, lane, vectors);
    let mut product = 0.0f32;
    #[unroll]
    for slice in 0..comptime!(vectors.div_ceil(PLANE)) {
        product += (fixed[slice] * elements[slice]).vector_sum();
    }
    let score = plane_sum(product) * scale;
    let maximum = max(state[MAXIMUM], score);
    let decay = (state[MAXIMUM] - maximum).exp();
    let weight = (score - maximum).exp();
    state[MAXIMUM] = maximum;
    state[SUM] = state[SUM] * decay + weight;
    let from = value_walk.vector(at, 0usize, comptime!([1, 1, 1]));
    let elements = load_vectors::<F, N>(value, from, lane, vectors_v);
    #[unroll]
    for slice in 0..comptime!(vectors_v.div_ceil(PLANE)) {
        sums[slice] = sums[slice] * Vector::new(decay) + elements[slice] * Vector::new(weight);
    }
}
