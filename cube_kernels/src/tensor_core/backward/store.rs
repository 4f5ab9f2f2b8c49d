//! Gradients of the rows that came out finite.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::super::blueprint::ROWS;
use super::super::results::{Row, is_finite, residue, row_sum, write_row};
use super::super::work::Work;
use super::arguments::Outputs;
use super::part::Part;
use super::step::Sums;

/// Writes the rows, and gives a bit for each of this unit's, set where something in it is not finite so
/// that it has to be computed again.
#[cube]
pub(super) fn store<F: Float, NO: Size>(
    sums: &Sums,
    outputs: &mut Outputs<F, NO>,
    work: &Work,
    #[comptime] part: Part,
) -> u32 {
    let blueprint = comptime!(part.blueprint);
    let has_first = comptime!(part.has_first());
    let has_second = comptime!(part.has_second());
    let size = comptime!(blueprint.vector_out());
    let mut spoiled = 0u32;
    #[unroll]
    for block in 0..comptime!(blueprint.blocks) {
        #[unroll]
        for half in 0..2usize {
            let (dim, padded) = comptime!((blueprint.head_dim, blueprint.dim()));
            let first = comptime!(Row { block, half, dim, padded });
            let (dim, padded) = comptime!((blueprint.head_dim_v, blueprint.dim_v()));
            let second = comptime!(Row { block, half, dim, padded });
            let mut trace = 0.0f32;
            if has_first {
                trace += residue(&sums.first, work.lane, first);
            }
            if has_second {
                trace += residue(&sums.second, work.lane, second);
            }
            let is_fine = is_finite(row_sum(trace));
            let number = work.first_row + work.lane / 4 + comptime!(block * ROWS + half * 8);
            let at = work.tile.position(number, comptime!(blueprint.cut()));
            let is_row = work.tile.is_row(&at);
            if is_row && !is_fine {
                spoiled |= comptime!(1u32 << (block * 2 + half));
            }
            if is_row && is_fine {
                let place = work.space.row_place(&work.tile, &at);
                if has_first {
                    let (sums, out) = (&sums.first, &mut outputs.first);
                    write_row::<F, NO>(sums, work.scale, out, place, work.lane, first, size);
                }
                if has_second {
                    let (sums, out) = (&sums.second, &mut outputs.second);
                    write_row::<F, NO>(sums, 1.0, out, place, work.lane, second, size);
                }
            }
        }
    }
    spoiled
}
