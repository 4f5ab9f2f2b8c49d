//! Sweeps over the columns, tile by tile.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::super::arguments::Inputs;
use super::step::{seen, take};
use super::{Share, Sums, Tiles};
use crate::MAX_RANK;
use crate::tensor_core::backward::STATISTICS;
use crate::tensor_core::bias::Bias;
use crate::tensor_core::blueprint::{Blueprint, Pass};
use crate::tensor_core::geometry::{FeedPair, Position};
use crate::tensor_core::mask::{WORDS, sees, sight};
use crate::tensor_core::staging::{Stage, bring};
use crate::tensor_core::work::Work;

/// Takes all columns that the cube's rows see, tile by tile; where rows are keys, those of one head of the queries
/// after the other.
#[cube]
pub(super) fn sweep_windows<F: Float, N: Size>(
    inputs: &Inputs<'_, F, N>,
    tiles: &mut Tiles<F, N>,
    share: &Share,
    sums: &mut Sums,
    work: &Work,
    #[comptime] blueprint: Blueprint,
) {
    let (space, tile, unit) = (&work.space, &work.tile, work.unit);
    let columns = comptime!(blueprint.columns());
    let column_tile = comptime!(blueprint.column_tile());
    let stripes = comptime!(blueprint.stripes());
    let cut = comptime!(blueprint.cut());
    let is_keys = comptime!(blueprint.pass == Pass::Keys);
    let word = share.place.row * WORDS;
    let mut head = tile.head / space.group_size;
    let mut members = 1usize;
    if comptime!(is_keys) {
        head = tile.head * space.group_size;
        members = space.group_size;
    }
    for member in 0..members {
        let feed = inputs.columns.columns(space, tile, head + member);
        let mut number = Position { z: 0usize, y: 0usize, x: 0usize };
        for _ in 0..tile.steps(cut) {
            let corner = tile.corner(&number, cut);
            let sight = sight(&tiles.windows, &corner, work, blueprint);
            tile.advance(&mut number, cut);
            bring_step::<F, N>(&feed, &corner, tiles, work, column_tile, blueprint);
            if comptime!(is_keys) && unit < columns {
                let at = space.nearest_column(tile, &corner, unit, column_tile);
                let heads = space.heads * space.group_size;
                let query = STATISTICS * space.column_place(tile, &at, head + member, heads);
                tiles.statistics[unit] = inputs.statistics[query];
                tiles.statistics[unit + columns] = inputs.statistics[query + 1];
            }
            let mut visible = u32::MAX.runtime();
            if !sight.is_all {
                visible = 0u32;
                #[unroll]
                for turn in 0..comptime!(columns / stripes) {
                    let column = share.place.stripe + comptime!(turn * stripes);
                    if sees(&tiles.windows, word, &corner, column, blueprint) {
                        visible |= comptime!(1u32 << turn);
                    }
                }
            }
            let bias = inputs.bias.map(|values| {
                if comptime!(is_keys) {
                    Bias::of_head(values, head + member, space)
                } else {
                    Bias::of_head(values, tile.head, space)
                }
            });
            let seen = seen::<F>(visible, sight.is_any, corner, bias);
            take::<F, N>(tiles, share, sums, &seen, work, blueprint);
        }
    }
}

/// Takes the additional columns, which every row sees, tile by tile.
#[cube]
pub(super) fn sweep_additional<F: Float, N: Size>(
    feed: &FeedPair<'_, F, N>,
    tiles: &mut Tiles<F, N>,
    share: &Share,
    sums: &mut Sums,
    work: &Work,
    #[comptime] blueprint: Blueprint,
) {
    let columns = comptime!(blueprint.columns());
    let stripes = comptime!(blueprint.stripes());
    let line = comptime!([1, 1, columns]);
    let count = work.space.additional;
    for step in 0..count.div_ceil(columns) {
        let token = step * columns;
        let corner = Position { z: 0usize, y: 0usize, x: token };
        bring_step::<F, N>(feed, &corner, tiles, work, line, blueprint);
        let mut visible = 0u32;
        #[unroll]
        for turn in 0..comptime!(columns / stripes) {
            if token + share.place.stripe + comptime!(turn * stripes) < count {
                visible |= comptime!(1u32 << turn);
            }
        }
        let bias = ComptimeOption::new_None();
        let seen = seen::<F>(visible, true, corner, bias);
        take::<F, N>(tiles, share, sums, &seen, work, blueprint);
    }
}

/// Brings a tile of columns into shared memory.
#[cube]
fn bring_step<F: Float, N: Size>(
    feed: &FeedPair<'_, F, N>,
    corner: &Position,
    tiles: &mut Tiles<F, N>,
    work: &Work,
    #[comptime] shape: [usize; MAX_RANK],
    #[comptime] blueprint: Blueprint,
) {
    let (first, second) = comptime!((blueprint.first(), blueprint.second()));
    let stage = comptime!(Stage::new(&blueprint, first, blueprint.head_dim, shape));
    bring::<F, N>(&feed.first, &mut tiles.column_first, corner, work.unit, stage);
    let stage = comptime!(Stage::new(&blueprint, second, blueprint.head_dim_v, shape));
    bring::<F, N>(&feed.second, &mut tiles.column_second, corner, work.unit, stage);
}
