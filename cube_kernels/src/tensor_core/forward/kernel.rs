//! The kernel: how a cube goes through the keys of its queries.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs, clippy::too_many_arguments)]

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::blueprint::{Blueprint, COLUMNS, PLANE, ROWS, Staging};
use super::super::geometry::{CubeTile, Position, Space, Strides, Walk};
use super::super::mask::{mask_line, mask_windows, sight, words, write_windows};
use super::super::products::{Fragments, accumulate, add_scores, held, no_scores, zeros};
use super::super::staging::{Stage, begin, clear, fetch, finish, put};
use super::repair::repair;
use super::softmax::{Statistics, statistics, weigh};
use super::store::store;

/// Strides of all inputs.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(in super::super) struct AllStrides {
    pub query: Strides,
    pub key: Strides,
    pub value: Strides,
    pub additional_key: Strides,
    pub additional_value: Strides,
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(in super::super) fn forward_kernel<F: Float, N: Size, NO: Size>(
    query: &[Vector<F, N>],
    key: &[Vector<F, N>],
    value: &[Vector<F, N>],
    additional_key: &[Vector<F, N>],
    additional_value: &[Vector<F, N>],
    out: &mut [Vector<F, NO>],
    lse: &mut [f32],
    space: Space,
    strides: AllStrides,
    factor: f32,
    scale: f32,
    #[comptime] blueprint: Blueprint,
    #[define(F)] _dtype: ElemType,
) {
    if CUBE_POS >= space.cubes {
        terminate!();
    }
    let tile = space.tile(CUBE_POS, comptime!(blueprint.cut()));
    if !tile.has_rows() {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let lane = unit % PLANE;
    let first_row = unit / PLANE * comptime!(ROWS * blueprint.blocks);
    let head_kv = tile.head / space.group_size;

    let first = comptime!(blueprint.first());
    let second = comptime!(blueprint.second());
    let (rows, columns) = comptime!((blueprint.rows(), blueprint.columns()));
    let mut shared_query =
        Shared::<[Vector<F, N>]>::new_aligned_slice(comptime!(rows * first.pitch), 16usize);
    let mut shared_key =
        Shared::<[Vector<F, N>]>::new_aligned_slice(comptime!(columns * first.pitch), 16usize);
    let shared_value =
        Shared::<[Vector<F, N>]>::new_aligned_slice(comptime!(columns * second.pitch), 16usize);
    let size = comptime!(if blueprint.has_keys { words(&blueprint) } else { 1 });
    let mut windows = Shared::<[u32]>::new_slice(size);

    let query_stage =
        comptime!(Stage::new(&blueprint, first, blueprint.head_dim, blueprint.q_tile));
    let key_stage = comptime!(Stage { tile: blueprint.kv_tile, ..query_stage });
    clear::<F, N>(&mut shared_query, unit, 1usize, query_stage);
    clear::<F, N>(&mut shared_key, unit, 1usize, key_stage);
    let corner = Position { z: tile.z.row, y: tile.y.row, x: tile.x.row };
    let query_walk = space.row_walk(&tile, &strides.query);
    let fetched = fetch::<F, N>(query, &query_walk, &corner, unit, query_stage);
    put::<F, N>(&fetched, &mut shared_query, unit, query_stage);
    if comptime!(blueprint.has_keys) {
        write_windows(&mut windows, &space, &tile, unit, blueprint);
    }
    sync_cube();
    let held = held::<F, N>(&shared_query, first_row, lane, first);

    let mut sums = zeros(comptime!(blueprint.blocks * blueprint.dim_v() / COLUMNS));
    let mut state = statistics(comptime!(blueprint.blocks * 2));
    if comptime!(blueprint.has_keys) {
        let key_walk = space.column_walk(&tile, &strides.key, head_kv);
        let value_walk = space.column_walk(&tile, &strides.value, head_kv);
        sweep_windows::<F, N>(
            key,
            value,
            &key_walk,
            &value_walk,
            &tile,
            &shared_query,
            &held,
            shared_key.clone(),
            shared_value.clone(),
            &windows,
            &mut sums,
            &mut state,
            factor,
            unit,
            blueprint,
        );
    }
    if comptime!(blueprint.has_additional) {
        let key_walk = space.additional_walk(&tile, &strides.additional_key);
        let value_walk = space.additional_walk(&tile, &strides.additional_value);
        sweep_additional::<F, N>(
            additional_key,
            additional_value,
            &key_walk,
            &value_walk,
            space.additional,
            &shared_query,
            &held,
            shared_key.clone(),
            shared_value.clone(),
            &mut sums,
            &mut state,
            factor,
            unit,
            blueprint,
        );
    }

    let spoiled = store::<F, NO>(
        &sums, &state, out, lse, &space, &tile, factor, scale, first_row, lane, blueprint,
    );
    repair::<F, N, NO>(
        query,
        key,
        value,
        additional_key,
        additional_value,
        out,
        lse,
        &space,
        &strides,
        &tile,
        spoiled,
        scale,
        first_row,
        lane,
        blueprint,
    );
}

/// Takes all keys of the cube's windows into the sums, tile by tile.
#[cube]
fn sweep_windows<F: Float, N: Size>(
    key: &[Vector<F, N>],
    value: &[Vector<F, N>],
    key_walk: &Walk,
    value_walk: &Walk,
    tile: &CubeTile,
    shared_query: &[Vector<F, N>],
    held: &Fragments<F>,
    mut shared_key: Shared<[Vector<F, N>]>,
    mut shared_value: Shared<[Vector<F, N>]>,
    windows: &[u32],
    sums: &mut Fragments<f32>,
    state: &mut Statistics,
    factor: f32,
    unit: usize,
    #[comptime] blueprint: Blueprint,
) {
    let (first, second) = comptime!((blueprint.first(), blueprint.second()));
    let key_stage = comptime!(Stage::new(&blueprint, first, blueprint.head_dim, blueprint.kv_tile));
    let value_stage =
        comptime!(Stage::new(&blueprint, second, blueprint.head_dim_v, blueprint.kv_tile));
    let is_async = comptime!(blueprint.staging != Staging::Registers);
    let lane = unit % PLANE;
    let first_row = unit / PLANE * comptime!(ROWS * blueprint.blocks);
    let steps = tile.steps(comptime!(blueprint.cut()));
    let mut at_z = 0usize;
    let mut at_y = 0usize;
    let mut at_x = 0usize;
    let corner = tile.corner(at_z, at_y, at_x, comptime!(blueprint.cut()));
    if comptime!(is_async) {
        begin::<F, N>(key, &mut shared_key, key_walk, &corner, unit, key_stage);
    } else {
        let rows = fetch::<F, N>(key, key_walk, &corner, unit, key_stage);
        put::<F, N>(&rows, &mut shared_key, unit, key_stage);
    }
    for step in 0..steps {
        let corner = tile.corner(at_z, at_y, at_x, comptime!(blueprint.cut()));
        let sight = sight(windows, &corner, unit / PLANE, blueprint);
        // The next tile; behind the last one the first, which is there in any case.
        at_x += 1;
        if at_x == tile.x.count {
            at_x = 0;
            if comptime!(blueprint.rank > 1) {
                at_y += 1;
                if at_y == tile.y.count {
                    at_y = 0;
                    if comptime!(blueprint.rank > 2) {
                        at_z += 1;
                        if at_z == tile.z.count {
                            at_z = 0;
                        }
                    }
                }
            }
        }
        let next = tile.corner(at_z, at_y, at_x, comptime!(blueprint.cut()));

        if comptime!(is_async) {
            finish(comptime!(blueprint.staging));
            sync_cube();
            begin::<F, N>(value, &mut shared_value, value_walk, &corner, unit, value_stage);
            let mut weights = no_scores(first);
            if sight.is_any {
                add_scores::<F, N>(
                    &mut weights,
                    shared_query,
                    held,
                    &shared_key,
                    first_row,
                    lane,
                    first,
                );
                if !sight.is_all {
                    let masked = f32::min_value();
                    mask_windows(
                        &mut weights,
                        masked,
                        windows,
                        &corner,
                        first_row,
                        lane,
                        blueprint,
                    );
                }
                weigh(&mut weights, sums, state, factor, blueprint);
            }
            finish(comptime!(blueprint.staging));
            sync_cube();
            if step + 1 < steps {
                begin::<F, N>(key, &mut shared_key, key_walk, &next, unit, key_stage);
            }
            if sight.is_any {
                accumulate::<F, N>(sums, &weights, &shared_value, lane, second);
            }
        } else {
            sync_cube();
            let rows = fetch::<F, N>(value, value_walk, &corner, unit, value_stage);
            let mut weights = no_scores(first);
            if sight.is_any {
                add_scores::<F, N>(
                    &mut weights,
                    shared_query,
                    held,
                    &shared_key,
                    first_row,
                    lane,
                    first,
                );
                if !sight.is_all {
                    let masked = f32::min_value();
                    mask_windows(
                        &mut weights,
                        masked,
                        windows,
                        &corner,
                        first_row,
                        lane,
                        blueprint,
                    );
                }
                weigh(&mut weights, sums, state, factor, blueprint);
            }
            put::<F, N>(&rows, &mut shared_value, unit, value_stage);
            sync_cube();
            // Behind the last step this is read in vain.
            let rows = fetch::<F, N>(key, key_walk, &next, unit, key_stage);
            if sight.is_any {
                accumulate::<F, N>(sums, &weights, &shared_value, lane, second);
            }
            put::<F, N>(&rows, &mut shared_key, unit, key_stage);
        }
    }
    sync_cube();
}

/// Takes the additional keys into the sums, tile by tile.
#[cube]
fn sweep_additional<F: Float, N: Size>(
    key: &[Vector<F, N>],
    value: &[Vector<F, N>],
    key_walk: &Walk,
    value_walk: &Walk,
    count: usize,
    shared_query: &[Vector<F, N>],
    held: &Fragments<F>,
    mut shared_key: Shared<[Vector<F, N>]>,
    mut shared_value: Shared<[Vector<F, N>]>,
    sums: &mut Fragments<f32>,
    state: &mut Statistics,
    factor: f32,
    unit: usize,
    #[comptime] blueprint: Blueprint,
) {
    let columns = comptime!(blueprint.columns());
    let (first, second) = comptime!((blueprint.first(), blueprint.second()));
    let key_stage = comptime!(Stage::new(&blueprint, first, blueprint.head_dim, [1, 1, columns]));
    let value_stage =
        comptime!(Stage::new(&blueprint, second, blueprint.head_dim_v, [1, 1, columns]));
    let lane = unit % PLANE;
    let first_row = unit / PLANE * comptime!(ROWS * blueprint.blocks);
    for step in 0..count.div_ceil(columns) {
        let token = step * columns;
        let corner = Position { z: 0usize, y: 0usize, x: token };
        let keys = fetch::<F, N>(key, key_walk, &corner, unit, key_stage);
        put::<F, N>(&keys, &mut shared_key, unit, key_stage);
        let values = fetch::<F, N>(value, value_walk, &corner, unit, value_stage);
        put::<F, N>(&values, &mut shared_value, unit, value_stage);
        sync_cube();
        let mut weights = no_scores(first);
        add_scores::<F, N>(&mut weights, shared_query, held, &shared_key, first_row, lane, first);
        if token + columns > count {
            let end = (count - token) as i32;
            #[unroll]
            for block in 0..comptime!(blueprint.blocks) {
                #[unroll]
                for half in 0..2usize {
                    mask_line(
                        &mut weights,
                        f32::min_value(),
                        0i32,
                        end,
                        lane,
                        block,
                        half,
                        blueprint,
                    );
                }
            }
        }
        weigh(&mut weights, sums, state, factor, blueprint);
        accumulate::<F, N>(sums, &weights, &shared_value, lane, second);
        sync_cube();
    }
}
