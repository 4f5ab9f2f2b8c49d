//! Sums as they are written: a few columns at a time, where scores were.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs, clippy::too_many_arguments)]

use cubecl::prelude::*;

use super::super::blueprint::{Blueprint, PLANE};
use super::super::geometry::{CubeTile, Space};
use super::super::results::SMALL;
use super::products::{Sums, show};

/// The row that a unit shares with others, and its part of it.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(in super::super) struct Place {
    /// Number of the row in the cube.
    pub row: usize,
    /// First column; the next ones are `stripes` apart.
    pub stripe: usize,
    /// Where the row's scores and weights begin.
    pub scores: usize,
    pub weights: usize,
}

/// Where a unit's part of its row is.
#[cube]
pub(in super::super) fn place(
    first_row: usize,
    lane: usize,
    #[comptime] blueprint: Blueprint,
) -> Place {
    let per_plane = comptime!(blueprint.plane_rows());
    let row = first_row + lane % per_plane;
    Place {
        row,
        stripe: lane / per_plane,
        scores: row * comptime!(blueprint.score_pitch()),
        weights: row * comptime!(blueprint.weight_pitch()),
    }
}

/// A number that is finite if every number in the row is, of this unit's part, and no other. The sums are those of
/// vectors of `dim` elements, `padded` in whole matrices.
#[cube]
pub(in super::super) fn residue(
    scores: &mut [f32],
    sums: &Sums,
    place: &Place,
    plane: usize,
    #[comptime] dim: usize,
    #[comptime] padded: usize,
    #[comptime] blueprint: Blueprint,
) -> f32 {
    let columns = comptime!(blueprint.columns());
    let stripes = comptime!(blueprint.stripes());
    let mut residue = 0.0f32;
    #[unroll]
    for part in 0..comptime!(padded.div_ceil(columns)) {
        show(scores, sums, plane, part, padded, blueprint);
        for turn in 0..comptime!(columns / stripes) {
            let column = place.stripe + turn * stripes;
            if column + comptime!(part * columns) < dim {
                residue += scores[place.scores + column] * f32::new(SMALL);
            }
        }
        sync_cube();
    }
    residue
}

/// The sum over the units that share a row.
#[cube]
pub(in super::super) fn row_sum(
    scores: &mut [f32],
    value: f32,
    place: &Place,
    #[comptime] blueprint: Blueprint,
) -> f32 {
    scores[place.scores + place.stripe] = value;
    sync_cube();
    let mut sum = 0.0f32;
    #[unroll]
    for stripe in 0..comptime!(blueprint.stripes()) {
        sum += scores[place.scores + stripe];
    }
    sum
}

/// What repairs take of the rows that did not come out finite, where `mine` is 1 for this unit's: a unit has bits for two rows.
#[cube]
pub(in super::super) fn spoiled_rows(
    mine: u32,
    lane: usize,
    #[comptime] blueprint: Blueprint,
) -> u32 {
    let row = (lane / 4) as u32;
    let mut spoiled = plane_shuffle(mine, row);
    if comptime!(blueprint.plane_rows() > 8) {
        spoiled |= plane_shuffle(mine, row + 8) << 1u32;
    }
    spoiled
}

/// Writes the plane's rows, times `factor`, for which `mine` is 0.
#[cube]
pub(in super::super) fn write_rows<F: Float, NO: Size>(
    scores: &mut [f32],
    sums: &Sums,
    factor: f32,
    out: &mut [Vector<F, NO>],
    space: &Space,
    tile: &CubeTile,
    mine: u32,
    first_row: usize,
    lane: usize,
    #[comptime] dim: usize,
    #[comptime] padded: usize,
    #[comptime] blueprint: Blueprint,
) {
    let columns = comptime!(blueprint.columns());
    let per_plane = comptime!(blueprint.plane_rows());
    let pitch = comptime!(blueprint.score_pitch());
    let size = comptime!(blueprint.vector_out());
    let vectors = comptime!(dim / size);
    // Scores are still read where this begins.
    sync_cube();
    #[unroll]
    for part in 0..comptime!(padded.div_ceil(columns)) {
        show(scores, sums, first_row / per_plane, part, padded, blueprint);
        for turn in 0..comptime!((per_plane * columns / size).div_ceil(PLANE)) {
            let number = lane + turn * PLANE;
            let local = number / comptime!(columns / size);
            let pair = number % comptime!(columns / size);
            let vector = pair + comptime!(part * columns / size);
            let row = first_row + local;
            let at = tile.position(row, comptime!(blueprint.cut()));
            let is_fine = (plane_shuffle(mine, local as u32)) == 0;
            if local < per_plane && vector < vectors && is_fine && tile.is_row(&at) {
                let mut elements = Vector::<f32, NO>::new(0.0f32);
                #[unroll]
                for element in 0..size {
                    let value = scores[row * pitch + pair * size + element];
                    elements.insert(element, value * factor);
                }
                let place = space.row_place(tile, &at);
                out[place * vectors + vector] = Vector::cast_from(elements);
            }
        }
        sync_cube();
    }
}
