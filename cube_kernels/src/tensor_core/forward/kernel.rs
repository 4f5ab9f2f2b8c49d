//! The kernel: how a cube goes through the keys of its queries.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs, clippy::too_many_arguments)]

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::blueprint::{Blueprint, COLUMNS, DEPTH, PLANE, ROWS, Staging};
use super::super::geometry::{CubeTile, Position, Space, Strides, Walk};
use super::mask::{WORDS, mask_line, mask_windows, write_windows};
use super::products::{Fragments, accumulate, queries, scores, zeros};
use super::repair::repair;
use super::softmax::{Statistics, statistics, weigh};
use super::staging::{Stage, begin, clear, fetch, finish, put};
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
    let tile = space.tile(CUBE_POS, blueprint);
    // Some dilation groups have a tile less than others.
    if tile.z.query >= tile.z.queries
        || tile.y.query >= tile.y.queries
        || tile.x.query >= tile.x.queries
    {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let lane = unit % PLANE;
    let first_row = unit / PLANE * comptime!(ROWS * blueprint.blocks);

    let mut shared_query =
        Shared::<[Vector<F, N>]>::new_aligned_slice(comptime!(blueprint.rows() * blueprint.pitch()), 16usize);
    let mut shared_key =
        Shared::<[Vector<F, N>]>::new_aligned_slice(comptime!(blueprint.columns() * blueprint.pitch()), 16usize);
    let shared_value =
        Shared::<[Vector<F, N>]>::new_aligned_slice(comptime!(blueprint.columns() * blueprint.pitch_v()), 16usize);
    let mut windows =
        Shared::<[u32]>::new_slice(comptime!(if blueprint.has_keys { blueprint.rows() * WORDS } else { 1 }));

    let query_stage = comptime!(Stage {
        tile: blueprint.q_tile,
        vector: blueprint.vector,
        vectors: blueprint.head_dim / blueprint.vector,
        pitch: blueprint.pitch(),
        units: blueprint.units(),
    });
    let key_stage = comptime!(Stage { tile: blueprint.kv_tile, ..query_stage });
    let padded = comptime!(blueprint.dim() / blueprint.vector);
    clear::<F, N>(&mut shared_query, unit, query_stage, padded);
    clear::<F, N>(&mut shared_key, unit, key_stage, padded);
    let corner = Position { z: tile.z.query, y: tile.y.query, x: tile.x.query };
    let query_walk = space.query_walk(&tile, &strides.query);
    let rows = fetch::<F, N>(query, &query_walk, &corner, unit, query_stage);
    put::<F, N>(&rows, &mut shared_query, unit, query_stage);
    if comptime!(blueprint.has_keys) {
        write_windows(&mut windows, &space, &tile, unit, blueprint);
    }
    sync_cube();
    let pieces = comptime!(if blueprint.holds_queries { blueprint.dim() / DEPTH } else { 0 });
    let held = queries::<F, N>(&shared_query, first_row, lane, 0usize, pieces, blueprint);

    let mut sums = zeros(comptime!(blueprint.blocks * blueprint.dim_v() / COLUMNS));
    let mut state = statistics(comptime!(blueprint.blocks * 2));
    if comptime!(blueprint.has_keys) {
        let key_walk = space.key_walk(&tile, &strides.key);
        let value_walk = space.key_walk(&tile, &strides.value);
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

    let spoiled =
        store::<F, NO>(&mut sums, &state, out, lse, &space, &tile, scale, first_row, lane, blueprint);
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
    let key_stage = comptime!(stage(&blueprint, blueprint.kv_tile, true));
    let value_stage = comptime!(stage(&blueprint, blueprint.kv_tile, false));
    let is_async = comptime!(blueprint.staging == Staging::Async);
    let lane = unit % PLANE;
    let first_row = unit / PLANE * comptime!(ROWS * blueprint.blocks);
    let mut steps = tile.x.count;
    if comptime!(blueprint.rank > 1) {
        steps *= tile.y.count;
    }
    if comptime!(blueprint.rank > 2) {
        steps *= tile.z.count;
    }
    let mut at_z = 0usize;
    let mut at_y = 0usize;
    let mut at_x = 0usize;
    let corner = corner_of(tile, at_z, at_y, at_x, blueprint);
    if comptime!(is_async) {
        begin::<F, N>(key, &mut shared_key, key_walk, &corner, unit, key_stage);
    } else {
        let rows = fetch::<F, N>(key, key_walk, &corner, unit, key_stage);
        put::<F, N>(&rows, &mut shared_key, unit, key_stage);
    }
    for step in 0..steps {
        let corner = corner_of(tile, at_z, at_y, at_x, blueprint);
        let is_whole = is_whole(tile, at_z, at_y, at_x, blueprint);
        // The next tile.
        at_x += 1;
        if comptime!(blueprint.rank > 1) && at_x == tile.x.count {
            at_x = 0;
            at_y += 1;
            if comptime!(blueprint.rank > 2) && at_y == tile.y.count {
                at_y = 0;
                at_z += 1;
            }
        }
        let next = corner_of(tile, at_z, at_y, at_x, blueprint);

        if comptime!(is_async) {
            finish();
            sync_cube();
            begin::<F, N>(value, &mut shared_value, value_walk, &corner, unit, value_stage);
            let mut weights =
                scores::<F, N>(shared_query, held, &shared_key, first_row, lane, blueprint);
            if !is_whole {
                mask_windows(&mut weights, windows, &corner, first_row, lane, blueprint);
            }
            weigh(&mut weights, sums, state, factor, blueprint);
            finish();
            sync_cube();
            if step + 1 < steps {
                begin::<F, N>(key, &mut shared_key, key_walk, &next, unit, key_stage);
            }
            accumulate::<F, N>(sums, &weights, &shared_value, lane, blueprint);
        } else {
            sync_cube();
            let rows = fetch::<F, N>(value, value_walk, &corner, unit, value_stage);
            let mut weights =
                scores::<F, N>(shared_query, held, &shared_key, first_row, lane, blueprint);
            if !is_whole {
                mask_windows(&mut weights, windows, &corner, first_row, lane, blueprint);
            }
            weigh(&mut weights, sums, state, factor, blueprint);
            put::<F, N>(&rows, &mut shared_value, unit, value_stage);
            sync_cube();
            // Behind the last step this reads its tile again, which is there in any case.
            let rows = fetch::<F, N>(key, key_walk, &next, unit, key_stage);
            accumulate::<F, N>(sums, &weights, &shared_value, lane, blueprint);
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
    let key_stage = comptime!(stage(&blueprint, [1, 1, columns], true));
    let value_stage = comptime!(stage(&blueprint, [1, 1, columns], false));
    let lane = unit % PLANE;
    let first_row = unit / PLANE * comptime!(ROWS * blueprint.blocks);
    for step in 0..(count + (columns - 1)) / columns {
        let first = step * columns;
        let corner = Position { z: 0usize, y: 0usize, x: first };
        let keys = fetch::<F, N>(key, key_walk, &corner, unit, key_stage);
        put::<F, N>(&keys, &mut shared_key, unit, key_stage);
        let values = fetch::<F, N>(value, value_walk, &corner, unit, value_stage);
        put::<F, N>(&values, &mut shared_value, unit, value_stage);
        sync_cube();
        let mut weights =
            scores::<F, N>(shared_query, held, &shared_key, first_row, lane, blueprint);
        if first + columns > count {
            let end = (count - first) as i32;
            #[unroll]
            for block in 0..comptime!(blueprint.blocks) {
                #[unroll]
                for half in 0..2usize {
                    mask_line(&mut weights, 0i32, end, lane, block, half, blueprint);
                }
            }
        }
        weigh(&mut weights, sums, state, factor, blueprint);
        accumulate::<F, N>(sums, &weights, &shared_value, lane, blueprint);
        sync_cube();
    }
}

/// A tile of keys, or of values, in memory.
fn stage(blueprint: &Blueprint, tile: [usize; crate::MAX_RANK], is_key: bool) -> Stage {
    let (dim, pitch) = match is_key {
        true => (blueprint.head_dim, blueprint.pitch()),
        false => (blueprint.head_dim_v, blueprint.pitch_v()),
    };
    let vector = blueprint.vector;
    Stage { tile, vector, vectors: dim / vector, pitch, units: blueprint.units() }
}

/// Where the tile of keys with these numbers begins.
#[cube]
fn corner_of(
    tile: &CubeTile,
    z: usize,
    y: usize,
    x: usize,
    #[comptime] blueprint: Blueprint,
) -> Position {
    Position {
        z: tile.z.key + z * comptime!(blueprint.kv_tile[0]),
        y: tile.y.key + y * comptime!(blueprint.kv_tile[1]),
        x: tile.x.key + x * comptime!(blueprint.kv_tile[2]),
    }
}

/// Whether every query of the cube sees every key of the tile with these numbers.
#[cube]
fn is_whole(
    tile: &CubeTile,
    z: usize,
    y: usize,
    x: usize,
    #[comptime] blueprint: Blueprint,
) -> bool {
    let mut is_whole = x >= tile.x.whole_start && x < tile.x.whole_end;
    if comptime!(blueprint.rank > 1) {
        is_whole = is_whole && y >= tile.y.whole_start && y < tile.y.whole_end;
    }
    if comptime!(blueprint.rank > 2) {
        is_whole = is_whole && z >= tile.z.whole_start && z < tile.z.whole_end;
    }
    is_whole
}
