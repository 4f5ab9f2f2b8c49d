//! Output and logsumexp of the rows that came out finite.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs, clippy::too_many_arguments)]

use cubecl::prelude::*;

use super::{Share, Tiles};
use crate::tensor_core::blueprint::Blueprint;
use crate::tensor_core::cooperative::{Sums, residue, row_sum, spoiled_rows, write_rows};
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
    let (dim, padded) = comptime!((blueprint.head_dim_v, blueprint.dim_v()));
    let row_lse = share.maximum * scale + share.sum.ln();
    // Finite if every number of the row is.
    let plane = first_row / comptime!(blueprint.plane_rows());
    let residue = row_lse * f32::new(SMALL)
        + residue(&mut tiles.scores, sums, &share.place, plane, dim, padded, blueprint);
    let is_fine = is_finite(row_sum(&mut tiles.scores, residue, &share.place, blueprint));
    let at = tile.position(share.place.row, comptime!(blueprint.cut()));
    if tile.is_row(&at) && is_fine && share.place.stripe == 0 {
        lse[space.row_place(tile, &at)] = row_lse;
    }
    let mine = select(tile.is_row(&at) && !is_fine, 1u32, 0u32);
    write_rows::<F, NO>(
        &mut tiles.scores,
        sums,
        1.0,
        out,
        space,
        tile,
        mine,
        first_row,
        lane,
        dim,
        padded,
        blueprint,
    );
    spoiled_rows(mine, lane, blueprint)
}
