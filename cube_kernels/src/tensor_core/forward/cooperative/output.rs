//! Output and logsumexp of the rows that came out finite.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::{Share, Tiles};
use crate::cube::forward::Outputs;
use crate::tensor_core::blueprint::Blueprint;
use crate::tensor_core::cooperative::{Written, residue, row_sum, spoiled_rows, write_rows};
use crate::tensor_core::results::{SMALL, is_finite};
use crate::tensor_core::work::Work;

/// Writes the rows that came out finite, and gives what [`repair`](super::super::repair::repair) takes of the others.
#[cube]
pub(super) fn store<F: Float, N: Size, NO: Size>(
    tiles: &mut Tiles<F, N>,
    share: &Share,
    outputs: &mut Outputs<F, NO>,
    work: &Work,
    #[comptime] blueprint: Blueprint,
) -> u32 {
    let of_values = comptime!(blueprint.second_vectors());
    let row_lse = share.maximum * work.scale + share.sum.ln();
    // Finite if every number of the row is.
    let of_sums = residue(&mut tiles.scores, &share.sums, &share.place, work, of_values, blueprint);
    let residue = row_lse * f32::new(SMALL) + of_sums;
    let is_fine = is_finite(row_sum(&mut tiles.scores, residue, &share.place, blueprint));
    let at = work.tile.position(share.place.row, comptime!(blueprint.cut()));
    if work.tile.is_row(&at) && is_fine && share.place.stripe == 0 {
        outputs.lse[work.space.row_place(&work.tile, &at)] = row_lse;
    }
    let mine = select(work.tile.is_row(&at) && !is_fine, 1u32, 0u32);
    let rows = Written { mine, factor: 1.0f32 };
    write_rows::<F, NO>(
        &mut tiles.scores,
        &share.sums,
        &rows,
        &mut outputs.out,
        work,
        of_values,
        blueprint,
    );
    spoiled_rows(mine, work.lane, blueprint)
}
