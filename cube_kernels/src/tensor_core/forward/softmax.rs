//! Streaming softmax in registers.
//!
//! A row's columns are spread over four units, which share its maximum; each sums the weights of its own
//! columns, and the sums are added up in the end.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::super::blueprint::{Blueprint, COLUMNS};
use super::super::power::power;
use super::super::products::{Fragments, Pair};

/// The running maximum before the first score: far below what scores of rounded numbers reach, and far
/// above what stands for a masked score, so that the difference of the two has no weight.
pub(in super::super) const LOWEST: f32 = -1e30;

/// Largest score and sum of weights of this unit's rows: two of each block.
#[derive(CubeType)]
pub(in super::super) struct Statistics {
    pub maximum: Array<f32>,
    pub sum: Array<f32>,
}

#[cube]
pub(in super::super) fn statistics(#[comptime] rows: usize) -> Statistics {
    let mut maximum = Array::<f32>::new(rows);
    let mut sum = Array::<f32>::new(rows);
    #[unroll]
    for row in 0..rows {
        maximum[row] = f32::new(LOWEST);
        sum[row] = 0.0f32;
    }
    Statistics { maximum, sum }
}

/// Makes weights of scores, relative to the new maximum, and takes `sums` to it.
#[cube]
pub(in super::super) fn weigh(
    scores: &mut Fragments<f32>,
    sums: &mut Fragments<f32>,
    statistics: &mut Statistics,
    factor: f32,
    #[comptime] blueprint: Blueprint,
) {
    let matrices = comptime!(blueprint.columns() / COLUMNS);
    let matrices_v = comptime!(blueprint.dim_v() / COLUMNS);
    #[unroll]
    for block in 0..comptime!(blueprint.blocks) {
        #[unroll]
        for half in 0..2usize {
            let row = comptime!(block * 2 + half);
            let before = statistics.maximum[row];
            let mut maximum = before;
            #[unroll]
            for matrix in 0..matrices {
                let pair = scores.index(comptime!(block * matrices + matrix))[half];
                maximum = max(maximum, max(pair.extract(0usize), pair.extract(1usize)));
            }
            maximum = max(maximum, plane_shuffle_xor(maximum, 1u32));
            maximum = max(maximum, plane_shuffle_xor(maximum, 2u32));
            statistics.maximum[row] = maximum;
            let decay = power((before - maximum) * factor, comptime!(blueprint.exponential));
            let offset = -maximum * factor;
            let mut sum = statistics.sum[row] * decay;
            #[unroll]
            for matrix in 0..matrices {
                let fragment = scores.index_mut(comptime!(block * matrices + matrix));
                let pair = fragment[half];
                let mut weights = Pair::<f32>::new(0.0f32);
                #[unroll]
                for element in 0..2usize {
                    let argument = fma(pair.extract(element), factor, offset);
                    let weight = power(argument, comptime!(blueprint.exponential));
                    sum += weight;
                    weights.insert(element, weight);
                }
                fragment[half] = weights;
            }
            statistics.sum[row] = sum;
            #[unroll]
            for matrix in 0..matrices_v {
                let fragment = sums.index_mut(comptime!(block * matrices_v + matrix));
                fragment[half] *= Pair::new(decay);
            }
        }
    }
}
