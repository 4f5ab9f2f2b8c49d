//! Rows that did not come out finite, computed once more from nothing but what they see.
//!
//! The forward pass does the same, and says why. A plane takes such rows one after another, its units
//! sharing the vectors.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs, clippy::too_many_arguments)]

use cubecl::prelude::*;

use super::super::blueprint::{Blueprint, PLANE, Pass, ROWS};
use super::super::geometry::{AxisSpace, AxisTile, CubeTile, Position, Space, Walk};
use super::super::power::power;
use super::super::results::{load_vectors, write_vectors};
use super::kernel::PairStrides;
use super::pair::Role;
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
    row_first: &[Vector<F, N>],
    row_second: &[Vector<F, N>],
    column_first: &[Vector<F, N>],
    column_second: &[Vector<F, N>],
    additional_first: &[Vector<F, N>],
    additional_second: &[Vector<F, N>],
    statistics: &[f32],
    out_first: &mut [Vector<F, NO>],
    out_second: &mut [Vector<F, NO>],
    space: &Space,
    strides: &PairStrides,
    tile: &CubeTile,
    spoiled: u32,
    factor: f32,
    scale: f32,
    first_row: usize,
    lane: usize,
    #[comptime] blueprint: Blueprint,
    #[comptime] role: Role,
) {
    let is_keys = comptime!(blueprint.pass == Pass::Keys);
    let vectors = comptime!(blueprint.head_dim / blueprint.vector);
    let vectors_second = comptime!(blueprint.head_dim_v / blueprint.vector);
    for row in 0..comptime!(ROWS * blueprint.blocks) {
        // Four units hold the row, at the same place of theirs.
        let flags = plane_shuffle(spoiled, (row % 8 * 4) as u32);
        if (flags >> (row / 8) as u32) & 1 == 1 {
            let at = tile.position(first_row + row, comptime!(blueprint.cut()));
            let place = space.row_place(tile, &at);
            let walk = space.row_walk(tile, &strides.row_first);
            let from = walk.vector(&at, 0usize, comptime!([1, 1, 1]));
            let first = load_vectors::<F, N>(row_first, from, lane, vectors);
            let walk = space.row_walk(tile, &strides.row_second);
            let from = walk.vector(&at, 0usize, comptime!([1, 1, 1]));
            let second = load_vectors::<F, N>(row_second, from, lane, vectors_second);
            let mut one = OneRow::<N> {
                first,
                second,
                sum_first: zeros::<N>(comptime!(vectors.div_ceil(PLANE))),
                sum_second: zeros::<N>(comptime!(vectors_second.div_ceil(PLANE))),
            };
            let mut head = tile.head / space.group_size;
            let mut members = 1usize;
            let mut heads = 1usize;
            if comptime!(is_keys) {
                head = tile.head * space.group_size;
                members = space.group_size;
                heads = space.heads * space.group_size;
            }
            if comptime!(blueprint.has_keys) {
                let along_z = span(&space.z, &tile.z, at.z);
                let along_y = span(&space.y, &tile.y, at.y);
                let along_x = span(&space.x, &tile.x, at.x);
                for member in 0..members {
                    let walk = space.column_walk(tile, &strides.column_first, head + member);
                    let walk_second =
                        space.column_walk(tile, &strides.column_second, head + member);
                    for z in along_z.start..along_z.end {
                        for y in along_y.start..along_y.end {
                            for x in along_x.start..along_x.end {
                                let at = Position { z, y, x };
                                let mut query = place;
                                if comptime!(is_keys) {
                                    query = space.column_place(tile, &at, head + member, heads);
                                }
                                add::<F, N>(
                                    &mut one,
                                    column_first,
                                    column_second,
                                    &walk,
                                    &walk_second,
                                    &at,
                                    statistics,
                                    query,
                                    factor,
                                    lane,
                                    blueprint,
                                );
                            }
                        }
                    }
                }
            }
            if comptime!(blueprint.has_additional) {
                let walk = space.additional_walk(tile, &strides.additional_first);
                let walk_second = space.additional_walk(tile, &strides.additional_second);
                for x in 0..space.additional {
                    let at = Position { z: 0usize, y: 0usize, x };
                    add::<F, N>(
                        &mut one,
                        additional_first,
                        additional_second,
                        &walk,
                        &walk_second,
                        &at,
                        statistics,
                        place,
                        factor,
                        lane,
                        blueprint,
                    );
                }
            }
            let (size, vector) = comptime!((blueprint.vector_out(), blueprint.vector));
            if comptime!(blueprint.has_first && role != Role::Values) {
                write_vectors::<F, N, NO>(
                    &one.sum_first,
                    scale,
                    out_first,
                    place,
                    lane,
                    vectors,
                    vector,
                    size,
                );
            }
            if comptime!(blueprint.has_second && role != Role::Keys) {
                write_vectors::<F, N, NO>(
                    &one.sum_second,
                    1.0,
                    out_second,
                    place,
                    lane,
                    vectors_second,
                    vector,
                    size,
                );
            }
        }
    }
}

#[cube]
fn zeros<N: Size>(#[comptime] slices: usize) -> Array<Vector<f32, N>> {
    let mut sums = Array::<Vector<f32, N>>::new(slices);
    #[unroll]
    for slice in 0..slices {
        sums[slice] = Vector::new(0.0f32);
    }
    sums
}

/// Columns that a row sees along one axis: positions.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Span {
    start: usize,
    end: usize,
}

#[cube]
fn span(space: &AxisSpace, tile: &AxisTile, position: usize) -> Span {
    let start = space.start(position, tile.columns);
    Span { start, end: space.end(position, start, tile.rows, tile.columns) }
}

/// Takes the column at a position into the sums of the row; `query` is the place of the statistics.
#[cube]
fn add<F: Float, N: Size>(
    one: &mut OneRow<N>,
    column_first: &[Vector<F, N>],
    column_second: &[Vector<F, N>],
    walk: &Walk,
    walk_second: &Walk,
    at: &Position,
    statistics: &[f32],
    query: usize,
    factor: f32,
    lane: usize,
    #[comptime] blueprint: Blueprint,
) {
    let vectors = comptime!(blueprint.head_dim / blueprint.vector);
    let vectors_second = comptime!(blueprint.head_dim_v / blueprint.vector);
    let from = walk.vector(at, 0usize, comptime!([1, 1, 1]));
    let first = load_vectors::<F, N>(column_first, from, lane, vectors);
    let from = walk_second.vector(at, 0usize, comptime!([1, 1, 1]));
    let second = load_vectors::<F, N>(column_second, from, lane, vectors_second);
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
    let argument = fma(score, factor, -statistics[STATISTICS * query]);
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
