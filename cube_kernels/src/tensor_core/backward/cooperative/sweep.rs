//! Sweeps over the columns, tile by tile.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs, clippy::too_many_arguments)]

use cubecl::prelude::*;

use super::step::take;
use super::{PairStrides, Share, Sums, Tiles};
use crate::MAX_RANK;
use crate::tensor_core::backward::STATISTICS;
use crate::tensor_core::blueprint::{Blueprint, PLANE, Pass};
use crate::tensor_core::geometry::{CubeTile, Position, Space, Walk};
use crate::tensor_core::mask::{WORDS, sees, sight};
use crate::tensor_core::staging::{Stage, fetch, put};

/// Takes all columns that the cube's rows see, tile by tile; where rows are keys, those of one head of the queries
/// after the other.
#[cube]
pub(super) fn sweep_windows<F: Float, N: Size>(
    column_first: &[Vector<F, N>],
    column_second: &[Vector<F, N>],
    statistics: &[f32],
    space: &Space,
    strides: &PairStrides,
    tile: &CubeTile,
    tiles: &mut Tiles<F, N>,
    share: &Share,
    sums: &mut Sums,
    factor: f32,
    unit: usize,
    #[comptime] blueprint: Blueprint,
) {
    let columns = comptime!(blueprint.columns());
    let column_tile = comptime!(blueprint.column_tile());
    let stripes = comptime!(blueprint.stripes());
    let is_keys = comptime!(blueprint.pass == Pass::Keys);
    let word = share.place.row * WORDS;
    let mut head = tile.head / space.group_size;
    let mut heads = 1usize;
    let mut members = 1usize;
    if comptime!(is_keys) {
        head = tile.head * space.group_size;
        heads = space.heads * space.group_size;
        members = space.group_size;
    }
    for member in 0..members {
        let walk = space.column_walk(tile, &strides.column_first, head + member);
        let walk_second = space.column_walk(tile, &strides.column_second, head + member);
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
            bring::<F, N>(
                column_first,
                column_second,
                &walk,
                &walk_second,
                &corner,
                tiles,
                unit,
                column_tile,
                blueprint,
            );
            if comptime!(is_keys) && unit < columns {
                let at = space.nearest_column(tile, &corner, unit, column_tile);
                let query = STATISTICS * space.column_place(tile, &at, head + member, heads);
                tiles.statistics[unit] = statistics[query];
                tiles.statistics[unit + columns] = statistics[query + 1];
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
            take::<F, N>(tiles, share, sums, visible, sight.is_any, factor, unit, blueprint);
        }
    }
}

/// Takes the additional columns, which every row sees, tile by tile.
#[cube]
pub(super) fn sweep_additional<F: Float, N: Size>(
    additional_first: &[Vector<F, N>],
    additional_second: &[Vector<F, N>],
    space: &Space,
    strides: &PairStrides,
    tile: &CubeTile,
    tiles: &mut Tiles<F, N>,
    share: &Share,
    sums: &mut Sums,
    factor: f32,
    unit: usize,
    #[comptime] blueprint: Blueprint,
) {
    let columns = comptime!(blueprint.columns());
    let stripes = comptime!(blueprint.stripes());
    let count = space.additional;
    let walk = space.additional_walk(tile, &strides.additional_first);
    let walk_second = space.additional_walk(tile, &strides.additional_second);
    for step in 0..count.div_ceil(columns) {
        let token = step * columns;
        let corner = Position { z: 0usize, y: 0usize, x: token };
        bring::<F, N>(
            additional_first,
            additional_second,
            &walk,
            &walk_second,
            &corner,
            tiles,
            unit,
            [1, 1, columns],
            blueprint,
        );
        let mut visible = 0u32;
        #[unroll]
        for turn in 0..comptime!(columns / stripes) {
            if token + share.place.stripe + comptime!(turn * stripes) < count {
                visible |= comptime!(1u32 << turn);
            }
        }
        take::<F, N>(tiles, share, sums, visible, true, factor, unit, blueprint);
    }
}

/// Brings a tile of columns into shared memory.
#[cube]
fn bring<F: Float, N: Size>(
    first: &[Vector<F, N>],
    second: &[Vector<F, N>],
    walk: &Walk,
    walk_second: &Walk,
    corner: &Position,
    tiles: &mut Tiles<F, N>,
    unit: usize,
    #[comptime] shape: [usize; MAX_RANK],
    #[comptime] blueprint: Blueprint,
) {
    let (one, other) = comptime!((blueprint.first(), blueprint.second()));
    let stage = comptime!(Stage::new(&blueprint, one, blueprint.head_dim, shape));
    let fetched = fetch::<F, N>(first, walk, corner, unit, stage);
    put::<F, N>(&fetched, &mut tiles.column_first, unit, stage);
    let stage = comptime!(Stage::new(&blueprint, other, blueprint.head_dim_v, shape));
    let fetched = fetch::<F, N>(second, walk_second, corner, unit, stage);
    put::<F, N>(&fetched, &mut tiles.column_second, unit, stage);
}
