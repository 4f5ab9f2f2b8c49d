//! Sweeps over the keys, tile by tile.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::softmax::{take_statistics, weigh};
use super::{Share, Sweep, Tiles};
use crate::MAX_RANK;
use crate::tensor_core::bias::{Bias, add_to_shared};
use crate::tensor_core::blueprint::Blueprint;
use crate::tensor_core::cooperative::{accumulate, score};
use crate::tensor_core::geometry::{FeedPair, Position};
use crate::tensor_core::mask::{WORDS, sees, sight};
use crate::tensor_core::staging::{Stage, bring};
use crate::tensor_core::work::Work;

/// Takes all keys of the cube's windows, tile by tile.
#[cube]
pub(super) fn sweep_windows<F: Float, N: Size>(
    feed: &FeedPair<'_, F, N>,
    tiles: &mut Tiles<F, N>,
    share: &mut Share,
    bias: ComptimeOption<Bias<'_, F>>,
    work: &Work,
    #[comptime] sweep: Sweep,
    #[comptime] blueprint: Blueprint,
) {
    let cut = comptime!(blueprint.cut());
    let stripes = comptime!(blueprint.stripes());
    let shape = comptime!(blueprint.kv_tile);
    let mut number = Position { z: 0usize, y: 0usize, x: 0usize };
    for _ in 0..work.tile.steps(cut) {
        let corner = work.tile.corner(&number, cut);
        let sight = sight(&tiles.windows, &corner, work, blueprint);
        work.tile.advance(&mut number, cut);
        bring_step::<F, N>(feed, &corner, tiles, work, sweep, shape, blueprint);
        score_step::<F, N>(tiles, sight.is_any, work, blueprint);
        let word = share.place.row * WORDS;
        if comptime!(blueprint.has_bias) && sight.is_any {
            add_to_shared(&mut tiles.scores, bias, &share.place, &corner, work, blueprint);
        }
        // Scores that the row does not see give way to the lowest number.
        if sight.is_any && !sight.is_all {
            for turn in 0..comptime!(blueprint.columns() / stripes) {
                let column = share.place.stripe + turn * stripes;
                if !sees(&tiles.windows, word, &corner, column, blueprint) {
                    tiles.scores[share.place.scores + column] = f32::min_value();
                }
            }
        }
        take_step::<F, N>(tiles, share, sight.is_any, work, sweep, blueprint);
    }
}

/// Takes the additional keys, tile by tile.
#[cube]
pub(super) fn sweep_additional<F: Float, N: Size>(
    feed: &FeedPair<'_, F, N>,
    tiles: &mut Tiles<F, N>,
    share: &mut Share,
    work: &Work,
    #[comptime] sweep: Sweep,
    #[comptime] blueprint: Blueprint,
) {
    let columns = comptime!(blueprint.columns());
    let stripes = comptime!(blueprint.stripes());
    let shape = comptime!([1, 1, columns]);
    let count = work.space.additional;
    for step in 0..count.div_ceil(columns) {
        let first = step * columns;
        let corner = Position { z: 0usize, y: 0usize, x: first };
        bring_step::<F, N>(feed, &corner, tiles, work, sweep, shape, blueprint);
        score_step::<F, N>(tiles, true, work, blueprint);
        if first + columns > count {
            for turn in 0..comptime!(columns / stripes) {
                let column = share.place.stripe + turn * stripes;
                if first + column >= count {
                    tiles.scores[share.place.scores + column] = f32::min_value();
                }
            }
        }
        take_step::<F, N>(tiles, share, true, work, sweep, blueprint);
    }
}

/// Brings a tile of keys, and of values where they are needed.
#[cube]
fn bring_step<F: Float, N: Size>(
    feed: &FeedPair<'_, F, N>,
    corner: &Position,
    tiles: &mut Tiles<F, N>,
    work: &Work,
    #[comptime] sweep: Sweep,
    #[comptime] shape: [usize; MAX_RANK],
    #[comptime] blueprint: Blueprint,
) {
    let (first, second) = comptime!((blueprint.first(), blueprint.second()));
    let key_stage = comptime!(Stage::new(&blueprint, first, blueprint.head_dim, shape));
    bring::<F, N>(&feed.first, &mut tiles.key, corner, work.unit, key_stage);
    if comptime!(sweep == Sweep::Output) {
        let value_stage = comptime!(Stage::new(&blueprint, second, blueprint.head_dim_v, shape));
        bring::<F, N>(&feed.second, &mut tiles.value, corner, work.unit, value_stage);
    }
    sync_cube();
}

/// Multiplies the plane's rows with the keys, if any of them sees one.
#[cube]
fn score_step<F: Float, N: Size>(
    tiles: &mut Tiles<F, N>,
    is_seen: bool,
    work: &Work,
    #[comptime] blueprint: Blueprint,
) {
    if is_seen {
        let first = comptime!(blueprint.first());
        score::<F, N>(&tiles.query, &tiles.key, &mut tiles.scores, work.group, first, blueprint);
    }
    sync_cube();
}

/// What a sweep does with masked scores. Those are told by being equal to the lowest number, never by not being so:
/// comparisons with NaN may say either.
#[cube]
fn take_step<F: Float, N: Size>(
    tiles: &mut Tiles<F, N>,
    share: &mut Share,
    is_seen: bool,
    work: &Work,
    #[comptime] sweep: Sweep,
    #[comptime] blueprint: Blueprint,
) {
    if comptime!(sweep == Sweep::Statistics) {
        if is_seen {
            take_statistics(&tiles.scores, share, work, blueprint);
        }
    } else {
        if is_seen {
            weigh::<F, N>(tiles, &*share, work, blueprint);
        }
        sync_cube();
        if is_seen {
            let second = comptime!(blueprint.second());
            let (weights, values) = (&tiles.weights, &tiles.value);
            accumulate::<F, N>(weights, values, &mut share.sums, work.group, second, blueprint);
        }
    }
    sync_cube();
}
