//! Streaming softmax in registers.
//!
//! A row's columns are spread over four units, which share its maximum; each sums the weights of its own
//! columns, and the sums are added up in the end.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::super::blueprint::{Blueprint, COLUMNS};
use super::super::fragments::{Fragments, Pair, zeros};
use super::super::power::power;
use super::super::work::Work;

/// The running maximum before the first score: far below what scores of rounded numbers reach, and far
/// above what stands for a masked score, so that the difference of the two has no weight.
pub(super) const LOWEST: f32 = -1e30;

/// What a plane keeps of its rows.
#[derive(CubeType)]
pub(super) struct Softmax {
    /// Sums of weighted values.
    pub sums: Fragments<f32>,
    /// Largest scores of this unit's rows: two of each block.
    pub maximum: Array<f32>,
    /// Sums of their weights.
    pub sum: Array<f32>,
}

#[cube]
pub(super) fn softmax(#[comptime] blueprint: Blueprint) -> Softmax {
    let rows = comptime!(blueprint.blocks * 2);
    let sums = zeros(comptime!(blueprint.blocks * blueprint.dim_v() / COLUMNS));
    let mut maximum = Array::<f32>::new(rows);
    let mut sum = Array::<f32>::new(rows);
    #[unroll]
    for row in 0..rows {
        maximum[row] = f32::new(LOWEST);
        sum[row] = 0.0f32;
    }
    Softmax { sums, maximum, sum }
}

/// Makes weights of scores, relative to the new maximum, and takes the sums to it.
#[cube]
pub(super) fn weigh(
    scores: &mut Fragments<f32>,
    state: &mut Softmax,
    work: &Work,
    #[comptime] blueprint: Blueprint,
) {
    let matrices = comptime!(blueprint.columns() / COLUMNS);
    let matrices_v = comptime!(blueprint.dim_v() / COLUMNS);
    #[unroll]
    for block in 0..comptime!(blueprint.blocks) {
        #[unroll]
        for half in 0..2usize {
            let row = comptime!(block * 2 + half);
            let before = state.maximum[row];
            let mut maximum = before;
            #[unroll]
            for matrix in 0..matrices {
                let pair = scores.index(comptime!(block * matrices + matrix))[half];
                maximum = max(maximum, max(pair.extract(0usize), pair.extract(1usize)));
            }
            maximum = max(maximum, plane_shuffle_xor(maximum, 1u32));
            maximum = max(maximum, plane_shuffle_xor(maximum, 2u32));
            state.maximum[row] = maximum;
            let decay = power((before - maximum) * work.factor, comptime!(blueprint.exponential));
            let offset = -maximum * work.factor;
            let mut sum = state.sum[row] * decay;
            #[unroll]
            for matrix in 0..matrices {
                let fragment = scores.index_mut(comptime!(block * matrices + matrix));
                let pair = fragment[half];
                let mut weights = Pair::<f32>::new(0.0f32);
                #[unroll]
                for element in 0..2usize {
                    let argument = fma(pair.extract(element), work.factor, offset);
                    let weight = power(argument, comptime!(blueprint.exponential));
                    sum += weight;
                    weights.insert(element, weight);
                }
                fragment[half] = weights;
            }
            state.sum[row] = sum;
            #[unroll]
            for matrix in 0..matrices_v {
                let fragment = state.sums.index_mut(comptime!(block * matrices_v + matrix));
                fragment[half] *= Pair::new(decay);
            }
        }
    }
}
