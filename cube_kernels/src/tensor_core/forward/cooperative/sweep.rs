//! Sweeps over the keys, tile by tile.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs, clippy::too_many_arguments)]

use cubecl::prelude::*;

use super::softmax::{take_statistics, weigh};
use super::{Share, Sweep, Tiles};
use crate::MAX_RANK;
use crate::tensor_core::blueprint::{Blueprint, PLANE};
use crate::tensor_core::cooperative::{Sums, accumulate, score};
use crate::tensor_core::geometry::{CubeTile, Position, Walk};
use crate::tensor_core::mask::{WORDS, sees, sight};
use crate::tensor_core::staging::{Stage, fetch, put};

/// Takes all keys of the cube's windows, tile by tile.
#[cube]
pub(super) fn sweep_windows<F: Float, N: Size>(
    key: &[Vector<F, N>],
    value: &[Vector<F, N>],
    key_walk: &Walk,
    value_walk: &Walk,
    tile: &CubeTile,
    tiles: &mut Tiles<F, N>,
    share: &mut Share,
    sums: &mut Sums,
    factor: f32,
    unit: usize,
    #[comptime] sweep: Sweep,
    #[comptime] blueprint: Blueprint,
) {
    let mut at_z = 0usize;
    let mut at_y = 0usize;
    let mut at_x = 0usize;
    for _ in 0..tile.steps(comptime!(blueprint.cut())) {
        let corner = tile.corner(at_z, at_y, at_x, comptime!(blueprint.cut()));
        let sight = sight(&tiles.windows, &corner, unit / PLANE, blueprint);
        at_x += 1;
        if comptime!(blueprint.rank > 1) && at_x == tile.x.count {
            at_x = 0;
            at_y += 1;
            if comptime!(blueprint.rank > 2) && at_y == tile.y.count {
                at_y = 0;
                at_z += 1;
            }
        }
        begin_step::<F, N>(
            key,
            value,
            key_walk,
            value_walk,
            &corner,
            tiles,
            unit,
            sight.is_any,
            sweep,
            blueprint.kv_tile,
            blueprint,
        );
        let word = share.place.row * WORDS;
        let stripes = comptime!(blueprint.stripes());
        // Scores that the row does not see give way to the lowest number.
        if sight.is_any && !sight.is_all {
            for turn in 0..comptime!(blueprint.columns() / stripes) {
                let column = share.place.stripe + turn * stripes;
                if !sees(&tiles.windows, word, &corner, column, blueprint) {
                    tiles.scores[share.place.scores + column] = f32::min_value();
                }
            }
        }
        take_step::<F, N>(tiles, share, sums, factor, unit, sight.is_any, sweep, blueprint);
    }
}

/// Takes the additional keys, tile by tile.
#[cube]
pub(super) fn sweep_additional<F: Float, N: Size>(
    key: &[Vector<F, N>],
    value: &[Vector<F, N>],
    key_walk: &Walk,
    value_walk: &Walk,
    count: usize,
    tiles: &mut Tiles<F, N>,
    share: &mut Share,
    sums: &mut Sums,
    factor: f32,
    unit: usize,
    #[comptime] sweep: Sweep,
    #[comptime] blueprint: Blueprint,
) {
    let columns = comptime!(blueprint.columns());
    let stripes = comptime!(blueprint.stripes());
    for step in 0..count.div_ceil(columns) {
        let first = step * columns;
        let corner = Position { z: 0usize, y: 0usize, x: first };
        begin_step::<F, N>(
            key,
            value,
            key_walk,
            value_walk,
            &corner,
            tiles,
            unit,
            true,
            sweep,
            [1, 1, columns],
            blueprint,
        );
        if first + columns > count {
            for turn in 0..comptime!(columns / stripes) {
                let column = share.place.stripe + turn * stripes;
                if first + column >= count {
                    tiles.scores[share.place.scores + column] = f32::min_value();
                }
            }
        }
        take_step::<F, N>(tiles, share, sums, factor, unit, true, sweep, blueprint);
    }
}

/// Brings a tile of keys, and of values where they are needed, and multiplies the keys with the rows, if any of
/// the plane's sees one.
#[cube]
fn begin_step<F: Float, N: Size>(
    key: &[Vector<F, N>],
    value: &[Vector<F, N>],
    key_walk: &Walk,
    value_walk: &Walk,
    corner: &Position,
    tiles: &mut Tiles<F, N>,
    unit: usize,
    is_seen: bool,
    #[comptime] sweep: Sweep,
    #[comptime] shape: [usize; MAX_RANK],
    #[comptime] blueprint: Blueprint,
) {
    let first = comptime!(blueprint.first());
    let second = comptime!(blueprint.second());
    let key_stage = comptime!(Stage::new(&blueprint, first, blueprint.head_dim, shape));
    let fetched = fetch::<F, N>(key, key_walk, corner, unit, key_stage);
    put::<F, N>(&fetched, &mut tiles.key, unit, key_stage);
    if comptime!(sweep == Sweep::Output) {
        let value_stage = comptime!(Stage::new(&blueprint, second, blueprint.head_dim_v, shape));
        let fetched = fetch::<F, N>(value, value_walk, corner, unit, value_stage);
        put::<F, N>(&fetched, &mut tiles.value, unit, value_stage);
    }
    sync_cube();
    if is_seen {
        let plane = unit / PLANE;
        score::<F, N>(&tiles.query, &tiles.key, &mut tiles.scores, plane, first, blueprint);
    }
    sync_cube();
}

/// What a sweep does with masked scores. Those are told by being equal to the lowest number, never by not being so:
/// comparisons with NaN may say either.
#[cube]
fn take_step<F: Float, N: Size>(
    tiles: &mut Tiles<F, N>,
    share: &mut Share,
    sums: &mut Sums,
    factor: f32,
    unit: usize,
    is_seen: bool,
    #[comptime] sweep: Sweep,
    #[comptime] blueprint: Blueprint,
) {
    if comptime!(sweep == Sweep::Statistics) {
        if is_seen {
            take_statistics(&tiles.scores, share, factor, blueprint);
        }
    } else {
        if is_seen {
            weigh::<F, N>(tiles, share, factor, blueprint);
        }
        sync_cube();
        if is_seen {
            let second = comptime!(blueprint.second());
            let plane = unit / PLANE;
            accumulate::<F, N>(&tiles.weights, &tiles.value, sums, plane, second, blueprint);
        }
    }
    sync_cube();
}
