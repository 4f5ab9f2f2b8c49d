//! Gradients of the rows that came out finite.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs, clippy::too_many_arguments)]

use cubecl::prelude::*;

use super::super::blueprint::{Blueprint, ROWS};
use super::super::geometry::{CubeTile, Space};
use super::super::results::{Row, is_finite, residue, row_sum, write_row};
use super::pair::Role;
use super::step::Sums;

/// Writes the rows, and gives a bit for each of this unit's, set where something in it is not finite so
/// that it has to be computed again.
#[cube]
pub(super) fn store<F: Float, NO: Size>(
    sums: &Sums,
    out_first: &mut [Vector<F, NO>],
    out_second: &mut [Vector<F, NO>],
    space: &Space,
    tile: &CubeTile,
    scale: f32,
    first_row: usize,
    lane: usize,
    #[comptime] blueprint: Blueprint,
    #[comptime] role: Role,
) -> u32 {
    let has_first = comptime!(blueprint.has_first && role != Role::Values);
    let has_second = comptime!(blueprint.has_second && role != Role::Keys);
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
                trace += residue(&sums.first, lane, first);
            }
            if has_second {
                trace += residue(&sums.second, lane, second);
            }
            let is_fine = is_finite(row_sum(trace));
            let number = first_row + lane / 4 + comptime!(block * ROWS + half * 8);
            let at = tile.position(number, comptime!(blueprint.cut()));
            let is_row = tile.is_row(&at);
            if is_row && !is_fine {
                spoiled |= comptime!(1u32 << (block * 2 + half));
            }
            if is_row && is_fine {
                let place = space.row_place(tile, &at);
                if has_first {
                    write_row::<F, NO>(&sums.first, scale, out_first, place, lane, first, size);
                }
                if has_second {
                    write_row::<F, NO>(&sums.second, 1.0, out_second, place, lane, second, size);
                }
            }
        }
    }
    spoiled
}
