//! Weights of scores that lie in shared memory. A row's columns are shared by a few units.
//!
//! A weight is the power of a difference, so that the largest one is 1: of two products, each of 1e9, a difference is off by a hundred. Where
//! what is below the normal numbers is lost in products, and not in sums, such rows became zeros.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::{Share, Tiles};
use crate::cube::narrow;
use crate::tensor_core::blueprint::Blueprint;
use crate::tensor_core::work::Work;

/// Takes this unit's scores into the largest score and the sum of exponentials.
#[cube]
pub(super) fn take_statistics(
    scores: &[f32],
    share: &mut Share,
    work: &Work,
    #[comptime] blueprint: Blueprint,
) {
    let stripes = comptime!(blueprint.stripes());
    let turns = comptime!(blueprint.columns() / stripes);
    let first = share.place.scores + share.place.stripe;
    let mut maximum = share.maximum;
    for turn in 0..turns {
        maximum = max(maximum, scores[first + turn * stripes]);
    }
    let mut sum = share.sum * ((share.maximum - maximum) * work.factor).exp();
    for turn in 0..turns {
        let score = scores[first + turn * stripes];
        let weight = ((score - maximum) * work.factor).exp();
        sum += select(score == f32::min_value(), 0.0f32, weight);
    }
    share.maximum = maximum;
    share.sum = sum;
}

/// Makes weights of this unit's scores.
#[cube]
pub(super) fn weigh<F: Float, N: Size>(
    tiles: &mut Tiles<F, N>,
    share: &Share,
    work: &Work,
    #[comptime] blueprint: Blueprint,
) {
    let stripes = comptime!(blueprint.stripes());
    let inverse = 1.0 / share.sum;
    for turn in 0..comptime!(blueprint.columns() / stripes) {
        let column = share.place.stripe + turn * stripes;
        let score = tiles.scores[share.place.scores + column];
        let weight = ((score - share.maximum) * work.factor).exp() * inverse;
        let weight = select(score == f32::min_value(), 0.0f32, weight);
        tiles.weights[share.place.weights + column] = narrow::<F>(weight);
    }
}

/// Puts together what the units of a row have found.
#[cube]
pub(super) fn finish_statistics(
    scores: &mut [f32],
    share: &mut Share,
    work: &Work,
    #[comptime] blueprint: Blueprint,
) {
    let stripes = comptime!(blueprint.stripes());
    scores[share.place.scores + 2 * share.place.stripe] = share.maximum;
    scores[share.place.scores + 2 * share.place.stripe + 1] = share.sum;
    sync_cube();
    let mut maximum = f32::min_value();
    #[unroll]
    for stripe in 0..stripes {
        maximum = max(maximum, scores[share.place.scores + comptime!(2 * stripe)]);
    }
    let mut sum = 0.0f32;
    #[unroll]
    for stripe in 0..stripes {
        let part = scores[share.place.scores + comptime!(2 * stripe + 1)];
        let below = scores[share.place.scores + comptime!(2 * stripe)] - maximum;
        sum += part * (below * work.factor).exp();
    }
    share.maximum = maximum;
    share.sum = sum;
    sync_cube();
}
