//! Output and logsumexp of the rows that came out finite.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs, clippy::too_many_arguments)]

use cubecl::prelude::*;

use super::super::blueprint::{Blueprint, COLUMNS, ROWS};
use super::super::geometry::{CubeTile, Space};
use super::super::products::Fragments;
use super::softmax::{LOWEST, Statistics};

/// Writes the rows, and gives a bit for each of this unit's, set where it has to be computed again:
/// something in it is not finite, or no score came near the maximum that the softmax began with.
#[cube]
pub(in super::super) fn store<F: Float, NO: Size>(
    sums: &mut Fragments<f32>,
    state: &Statistics,
    out: &mut [Vector<F, NO>],
    lse: &mut [f32],
    space: &Space,
    tile: &CubeTile,
    scale: f32,
    first_row: usize,
    lane: usize,
    #[comptime] blueprint: Blueprint,
) -> u32 {
    let matrices_v = comptime!(blueprint.dim_v() / COLUMNS);
    let size = comptime!(blueprint.vector_out());
    let vectors = comptime!(blueprint.head_dim_v / size);
    let mut spoiled = 0u32;
    #[unroll]
    for block in 0..comptime!(blueprint.blocks) {
        #[unroll]
        for half in 0..2usize {
            let row = comptime!(block * 2 + half);
            let mut sum = state.sum[row];
            sum += plane_shuffle_xor(sum, 1u32);
            sum += plane_shuffle_xor(sum, 2u32);
            let inverse = 1.0 / sum;
            // Zero, unless a number is not finite.
            let mut nothing = 0.0 * inverse;
            #[unroll]
            for matrix in 0..matrices_v {
                let pair = sums.index(comptime!(block * matrices_v + matrix))[half];
                if comptime!(matrix * COLUMNS + COLUMNS <= blueprint.head_dim_v) {
                    nothing += 0.0 * (pair.extract(0usize) + pair.extract(1usize));
                } else {
                    // What lies behind the end of the row may be anything.
                    let column = matrix * COLUMNS + lane % 4 * 2;
                    if column < comptime!(blueprint.head_dim_v) {
                        nothing += 0.0 * pair.extract(0usize);
                    }
                    if column + 1 < comptime!(blueprint.head_dim_v) {
                        nothing += 0.0 * pair.extract(1usize);
                    }
                }
            }
            nothing += plane_shuffle_xor(nothing, 1u32);
            nothing += plane_shuffle_xor(nothing, 2u32);
            let is_fine = nothing == 0.0 && state.maximum[row] > f32::new(LOWEST);
            let number = first_row + lane / 4 + comptime!(block * ROWS + half * 8);
            let at = tile.position(number, blueprint);
            let is_query = tile.is_row(&at);
            if is_query && !is_fine {
                spoiled |= comptime!(1u32 << row);
            }
            if is_query && is_fine {
                let place = space.row_place(tile, &at);
                if lane % 4 == 0 {
                    lse[place] = state.maximum[row] * scale + sum.ln();
                }
                #[unroll]
                for matrix in 0..matrices_v {
                    let pair = sums.index(comptime!(block * matrices_v + matrix))[half];
                    let first = (matrix * COLUMNS + lane % 4 * 2) / size;
                    #[unroll]
                    for i in 0..comptime!(2 / size) {
                        let mut vector = Vector::<f32, NO>::new(0.0f32);
                        #[unroll]
                        for element in 0..size {
                            let value = pair.extract(comptime!(i * size + element));
                            vector.insert(element, value * inverse);
                        }
                        if comptime!(matrix * COLUMNS + COLUMNS <= blueprint.head_dim_v) {
                            out[place * vectors + first + i] = Vector::cast_from(vector);
                        } else if first + i < vectors {
                            out[place * vectors + first + i] = Vector::cast_from(vector);
                        }
                    }
                }
            }
        }
    }
    spoiled
}
