//! Output and logsumexp of the rows that came out finite.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::super::blueprint::{Blueprint, ROWS};
use super::super::results::{Row, is_finite, residue, row_sum, write_row};
use super::super::work::Work;
use super::softmax::{LOWEST, Softmax};
use crate::cube::forward::Outputs;

/// Exponents beyond this are rounded so much that weights relative to the largest score may leave the range
/// of f16.
const LARGEST: f32 = 1_048_576.0;

/// Writes the rows, and gives a bit for each of this unit's, set where it has to be computed again:
/// something in it is not finite, scores are huge, or none came near the maximum that the softmax began
/// with.
#[cube]
pub(super) fn store<F: Float, NO: Size>(
    state: &Softmax,
    outputs: &mut Outputs<F, NO>,
    work: &Work,
    #[comptime] blueprint: Blueprint,
) -> u32 {
    let mut spoiled = 0u32;
    #[unroll]
    for block in 0..comptime!(blueprint.blocks) {
        #[unroll]
        for half in 0..2usize {
            let index = comptime!(block * 2 + half);
            let (dim, padded) = comptime!((blueprint.head_dim_v, blueprint.dim_v()));
            let row = comptime!(Row { block, half, dim, padded });
            let sum = row_sum(state.sum[index]);
            let inverse = 1.0 / sum;
            let is_fine = is_finite(row_sum(residue(&state.sums, work.lane, row)))
                && is_finite(inverse)
                && state.maximum[index] > f32::new(LOWEST)
                && (state.maximum[index] * work.factor).abs() < f32::new(LARGEST);
            let number = work.first_row + work.lane / 4 + comptime!(block * ROWS + half * 8);
            let at = work.tile.position(number, comptime!(blueprint.cut()));
            let is_query = work.tile.is_row(&at);
            if is_query && !is_fine {
                spoiled |= comptime!(1u32 << index);
            }
            if is_query && is_fine {
                let place = work.space.row_place(&work.tile, &at);
                if work.lane.is_multiple_of(4) {
                    outputs.lse[place] = state.maximum[index] * work.scale + sum.ln();
                }
                let size = comptime!(blueprint.vector_out());
                let out = &mut outputs.out;
                write_row::<F, NO>(&state.sums, inverse, out, place, work.lane, row, size);
            }
        }
    }
    spoiled
}
