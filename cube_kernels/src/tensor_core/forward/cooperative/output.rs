//! Output and logsumexp of the rows that came out finite.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs, clippy::too_many_arguments)]

use cubecl::prelude::*;

use super::products::show;
use super::{Share, Sums, Tiles};
use crate::tensor_core::blueprint::{Blueprint, PLANE};
use crate::tensor_core::geometry::{CubeTile, Space};
use crate::tensor_core::results::{SMALL, is_finite};

/// Writes the rows that came out finite, and gives what [`repair`](super::super::repair::repair) takes of the others.
#[cube]
pub(super) fn store<F: Float, N: Size, NO: Size>(
    tiles: &mut Tiles<F, N>,
    sums: &Sums,
    share: &Share,
    out: &mut [Vector<F, NO>],
    lse: &mut [f32],
    space: &Space,
    tile: &CubeTile,
    scale: f32,
    first_row: usize,
    lane: usize,
    #[comptime] blueprint: Blueprint,
) -> u32 {
    let columns = comptime!(blueprint.columns());
    let stripes = comptime!(blueprint.stripes());
    let per_plane = comptime!(blueprint.plane_rows());
    let pitch = comptime!(blueprint.score_pitch());
    let size = comptime!(blueprint.vector_out());
    let vectors = comptime!(blueprint.head_dim_v / size);
    let row_lse = share.maximum * scale + share.sum.ln();
    // Finite if every number of the row is.
    let mut residue = row_lse * f32::new(SMALL);
    #[unroll]
    for part in 0..comptime!(blueprint.dim_v().div_ceil(columns)) {
        show::<F, N>(tiles, sums, first_row / per_plane, part, blueprint);
        for turn in 0..comptime!(columns / stripes) {
            let column = share.stripe + turn * stripes;
            if column + comptime!(part * columns) < comptime!(blueprint.head_dim_v) {
                residue += tiles.scores[share.scores + column] * f32::new(SMALL);
            }
        }
        sync_cube();
    }
    // Of the row, by all of its units.
    tiles.scores[share.scores + share.stripe] = residue;
    sync_cube();
    let mut residue = 0.0f32;
    #[unroll]
    for stripe in 0..stripes {
        residue += tiles.scores[share.scores + stripe];
    }
    let is_fine = is_finite(residue);
    let at = tile.position(share.row, comptime!(blueprint.cut()));
    if tile.is_row(&at) && is_fine && share.stripe == 0 {
        lse[space.row_place(tile, &at)] = row_lse;
    }
    // As the repair takes them: a unit has bits for two rows.
    let mine = select(tile.is_row(&at) && !is_fine, 1u32, 0u32);
    let row = (lane / 4) as u32;
    let mut spoiled = plane_shuffle(mine, row);
    if comptime!(per_plane > 8) {
        spoiled |= plane_shuffle(mine, row + 8) << 1u32;
    }
    sync_cube();
    #[unroll]
    for part in 0..comptime!(blueprint.dim_v().div_ceil(columns)) {
        show::<F, N>(tiles, sums, first_row / per_plane, part, blueprint);
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
                    elements.insert(element, tiles.scores[row * pitch + pair * size + element]);
                }
                let place = space.row_place(tile, &at);
                out[place * vectors + vector] = Vector::cast_from(elements);
            }
        }
        sync_cube();
    }
    spoiled
}
