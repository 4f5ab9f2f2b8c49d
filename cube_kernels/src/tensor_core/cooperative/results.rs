//! Sums as they are written: a few columns at a time, where scores were.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::super::blueprint::{Blueprint, PLANE};
use super::super::results::SMALL;
use super::super::work::Work;
use super::products::{Sums, show};
use crate::cube::narrow_all;

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

/// Length of the vectors that are summed, and the same in whole matrices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in super::super) struct Vectors {
    dim: usize,
    padded: usize,
}

impl Blueprint {
    /// Those of sums of queries or keys.
    pub(in super::super) fn first_vectors(&self) -> Vectors {
        Vectors { dim: self.head_dim, padded: self.dim() }
    }

    /// Those of sums of values or of the output's gradient.
    pub(in super::super) fn second_vectors(&self) -> Vectors {
        Vectors { dim: self.head_dim_v, padded: self.dim_v() }
    }
}

/// What is written of the plane's rows: those for which `mine` is 0, times `factor`.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(in super::super) struct Written {
    pub mine: u32,
    pub factor: f32,
}

/// Where a unit's part of its row is.
#[cube]
pub(in super::super) fn place(work: &Work, #[comptime] blueprint: Blueprint) -> Place {
    let per_plane = comptime!(blueprint.plane_rows());
    let row = work.first_row + work.lane % per_plane;
    Place {
        row,
        stripe: work.lane / per_plane,
        scores: row * comptime!(blueprint.score_pitch()),
        weights: row * comptime!(blueprint.weight_pitch()),
    }
}

/// A number that is finite if every number in the row is, of this unit's part, and no other.
#[cube]
pub(in super::super) fn residue(
    scores: &mut [f32],
    sums: &Sums,
    place: &Place,
    work: &Work,
    #[comptime] vectors: Vectors,
    #[comptime] blueprint: Blueprint,
) -> f32 {
    let (dim, padded) = comptime!((vectors.dim, vectors.padded));
    let columns = comptime!(blueprint.columns());
    let stripes = comptime!(blueprint.stripes());
    let mut residue = 0.0f32;
    #[unroll]
    for part in 0..comptime!(padded.div_ceil(columns)) {
        show(scores, sums, work.group, part, padded, blueprint);
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

/// Writes the plane's rows that came out finite.
#[cube]
pub(in super::super) fn write_rows<F: Float, NO: Size>(
    scores: &mut [f32],
    sums: &Sums,
    rows: &Written,
    out: &mut [Vector<F, NO>],
    work: &Work,
    #[comptime] vectors: Vectors,
    #[comptime] blueprint: Blueprint,
) {
    let (dim, padded) = comptime!((vectors.dim, vectors.padded));
    let columns = comptime!(blueprint.columns());
    let per_plane = comptime!(blueprint.plane_rows());
    let pitch = comptime!(blueprint.score_pitch());
    let size = comptime!(blueprint.vector_out());
    let pieces = comptime!(dim / size);
    // Scores are still read where this begins.
    sync_cube();
    #[unroll]
    for part in 0..comptime!(padded.div_ceil(columns)) {
        show(scores, sums, work.group, part, padded, blueprint);
        for turn in 0..comptime!((per_plane * columns / size).div_ceil(PLANE)) {
            let number = work.lane + turn * PLANE;
            let local = number / comptime!(columns / size);
            let pair = number % comptime!(columns / size);
            let vector = pair + comptime!(part * columns / size);
            let row = work.first_row + local;
            let at = work.tile.position(row, comptime!(blueprint.cut()));
            let is_fine = plane_shuffle(rows.mine, local as u32) == 0;
            if local < per_plane && vector < pieces && is_fine && work.tile.is_row(&at) {
                let mut elements = Vector::<f32, NO>::new(0.0f32);
                #[unroll]
                for element in 0..size {
                    let value = scores[row * pitch + pair * size + element];
                    elements.insert(element, value * rows.factor);
                }
                let place = work.space.row_place(&work.tile, &at);
                out[place * pieces + vector] = narrow_all(elements);
            }
        }
        sync_cube();
    }
}
