//! Gradients of the rows that came out finite.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs, clippy::too_many_arguments)]

use cubecl::prelude::*;

use super::{Share, Sums, Tiles};
use crate::tensor_core::blueprint::Blueprint;
use crate::tensor_core::cooperative::{residue, row_sum, spoiled_rows, write_rows};
use crate::tensor_core::geometry::{CubeTile, Space};
use crate::tensor_core::results::is_finite;

/// Writes the rows that came out finite, and gives what [`repair`](super::super::repair::repair) takes of the others.
#[cube]
pub(super) fn store<F: Float, N: Size, NO: Size>(
    tiles: &mut Tiles<F, N>,
    sums: &Sums,
    share: &Share,
    out_first: &mut [Vector<F, NO>],
    out_second: &mut [Vector<F, NO>],
    space: &Space,
    tile: &CubeTile,
    scale: f32,
    first_row: usize,
    lane: usize,
    #[comptime] blueprint: Blueprint,
) -> u32 {
    let (dim, padded) = comptime!((blueprint.head_dim, blueprint.dim()));
    let (dim_second, padded_second) = comptime!((blueprint.head_dim_v, blueprint.dim_v()));
    let plane = first_row / comptime!(blueprint.plane_rows());
    let mut trace = 0.0f32;
    if comptime!(blueprint.has_first) {
        trace +=
            residue(&mut tiles.scores, &sums.first, &share.place, plane, dim, padded, blueprint);
    }
    if comptime!(blueprint.has_second) {
        trace += residue(
            &mut tiles.scores,
            &sums.second,
            &share.place,
            plane,
            dim_second,
            padded_second,
            blueprint,
        );
    }
    let is_fine = is_finite(row_sum(&mut tiles.scores, trace, &share.place, blueprint));
    let at = tile.position(share.place.row, comptime!(blueprint.cut()));
    let mine = select(tile.is_row(&at) && !is_fine, 1u32, 0u32);
    if comptime!(blueprint.has_first) {
        write_rows::<F, NO>(
            &mut tiles.scores,
            &sums.first,
            scale,
            out_first,
            space,
            tile,
            mine,
            first_row,
            lane,
            dim,
            padded,
            blueprint,
        );
    }
    if comptime!(blueprint.has_second) {
        write_rows::<F, NO>(
            &mut tiles.scores,
            &sums.second,
            1.0,
            out_second,
            space,
            tile,
            mine,
            first_row,
            lane,
            dim_second,
            padded_second,
            blueprint,
        );
    }
    spoiled_rows(mine, lane, blueprint)
}
