//! Gradients of the rows that came out finite.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::super::arguments::Outputs;
use super::{Share, Sums, Tiles};
use crate::tensor_core::blueprint::Blueprint;
use crate::tensor_core::cooperative::{Written, residue, row_sum, spoiled_rows, write_rows};
use crate::tensor_core::results::is_finite;
use crate::tensor_core::work::Work;

/// Writes the rows that came out finite, and gives what [`repair`](super::super::repair::repair) takes of the others.
#[cube]
pub(super) fn store<F: Float, N: Size, NO: Size>(
    tiles: &mut Tiles<F, N>,
    sums: &Sums,
    share: &Share,
    outputs: &mut Outputs<F, NO>,
    work: &Work,
    #[comptime] blueprint: Blueprint,
) -> u32 {
    let first = comptime!(blueprint.first_vectors());
    let second = comptime!(blueprint.second_vectors());
    let mut trace = 0.0f32;
    if comptime!(blueprint.has_first) {
        trace += residue(&mut tiles.scores, &sums.first, &share.place, work, first, blueprint);
    }
    if comptime!(blueprint.has_second) {
        trace += residue(&mut tiles.scores, &sums.second, &share.place, work, second, blueprint);
    }
    let is_fine = is_finite(row_sum(&mut tiles.scores, trace, &share.place, blueprint));
    let at = work.tile.position(share.place.row, comptime!(blueprint.cut()));
    let mine = select(work.tile.is_row(&at) && !is_fine, 1u32, 0u32);
    if comptime!(blueprint.has_first) {
        let rows = Written { mine, factor: work.scale };
        let (scores, out) = (&mut tiles.scores, &mut outputs.first);
        write_rows::<F, NO>(scores, &sums.first, &rows, out, work, first, blueprint);
    }
    if comptime!(blueprint.has_second) {
        let rows = Written { mine, factor: 1.0f32 };
        let (scores, out) = (&mut tiles.scores, &mut outputs.second);
        write_rows::<F, NO>(scores, &sums.second, &rows, out, work, second, blueprint);
    }
    spoiled_rows(mine, work.lane, blueprint)
}
