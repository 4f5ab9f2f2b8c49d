//! The kernel: how a cube goes through the keys of its queries.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::bias::{Bias, add_bias};
use super::super::blueprint::Blueprint;
use super::super::geometry::{FeedPair, Position, Space};
use super::super::mask::{mask_behind, mask_windows, sight, words, write_windows};
use super::super::products::{Rows, accumulate, add_scores, no_scores, rows};
use super::super::staging::{Stage, bring, clear, receive, send, settle};
use super::super::work::{Work, work};
use super::repair::repair;
use super::softmax::{Softmax, softmax, weigh};
use super::store::store;
use crate::cube::forward::{Inputs, Outputs};

/// A step's keys and values in shared memory, and the windows of the cube's queries.
#[derive(CubeType)]
struct Tiles<F: Float, N: Size> {
    key: Shared<[Vector<F, N>]>,
    value: Shared<[Vector<F, N>]>,
    windows: Shared<[u32]>,
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn forward_kernel<F: Float, N: Size, NO: Size>(
    space: Space,
    inputs: &Inputs<'_, F, N>,
    outputs: &mut Outputs<F, NO>,
    factor: f32,
    scale: f32,
    #[comptime] blueprint: Blueprint,
    #[define(F)] _dtype: ElemType,
) {
    let work = work(space, inputs.sequences, factor, scale, blueprint);
    let (first, second) = comptime!((blueprint.first(), blueprint.second()));
    let (of_rows, of_columns) = comptime!((blueprint.rows(), blueprint.columns()));
    let mut query =
        Shared::<[Vector<F, N>]>::new_aligned_slice(comptime!(of_rows * first.pitch), 16usize);
    let mut tiles = Tiles::<F, N> {
        key: Shared::new_aligned_slice(comptime!(of_columns * first.pitch), 16usize),
        value: Shared::new_aligned_slice(comptime!(of_columns * second.pitch), 16usize),
        windows: Shared::new_slice(comptime!(words(&blueprint))),
    };
    let row_stage = comptime!(Stage::new(&blueprint, first, blueprint.head_dim, blueprint.q_tile));
    let key_stage = comptime!(Stage { tile: blueprint.kv_tile, ..row_stage });
    clear::<F, N>(&mut query, work.unit, 1usize, row_stage);
    clear::<F, N>(&mut tiles.key, work.unit, 1usize, key_stage);
    let feed = inputs.query.rows(&work.space, &work.tile);
    bring::<F, N>(&feed, &mut query, &work.tile.row_corner(), work.unit, row_stage);
    if comptime!(blueprint.has_keys) {
        write_windows(&mut tiles.windows, &work, blueprint);
    }
    sync_cube();
    let rows = rows::<F, N>(query, &work, first);

    let mut state = softmax(blueprint);
    if comptime!(blueprint.has_keys) {
        let head = work.tile.head / work.space.group_size;
        let feed = inputs.columns.columns(&work.space, &work.tile, head);
        let bias = inputs.bias.map(|values| Bias::of_head(values, work.tile.head, &work.space));
        sweep_windows::<F, N>(&feed, &rows, &mut tiles, &mut state, bias, &work, blueprint);
    }
    if comptime!(blueprint.has_additional) {
        let feed = inputs.additional.additional(&work.space, &work.tile);
        sweep_additional::<F, N>(&feed, &rows, &mut tiles, &mut state, &work, blueprint);
    }
    let spoiled = store::<F, NO>(&state, outputs, &work, blueprint);
    repair::<F, N, NO>(inputs, outputs, &work, spoiled, blueprint);
}

/// Takes all keys of the cube's windows into the softmax, tile by tile. The next keys are on their way during the second
/// product of a step, its values during the first.
#[cube]
fn sweep_windows<F: Float, N: Size>(
    feed: &FeedPair<'_, F, N>,
    rows: &Rows<F, N>,
    tiles: &mut Tiles<F, N>,
    state: &mut Softmax,
    bias: ComptimeOption<Bias<'_, F>>,
    work: &Work,
    #[comptime] blueprint: Blueprint,
) {
    let (first, second) = comptime!((blueprint.first(), blueprint.second()));
    let (staging, cut) = comptime!((blueprint.staging, blueprint.cut()));
    let key_stage = comptime!(Stage::new(&blueprint, first, blueprint.head_dim, blueprint.kv_tile));
    let value_stage =
        comptime!(Stage::new(&blueprint, second, blueprint.head_dim_v, blueprint.kv_tile));
    let (unit, lane) = (work.unit, work.lane);
    let steps = work.tile.steps(cut);
    let mut number = Position { z: 0usize, y: 0usize, x: 0usize };
    let corner = work.tile.corner(&number, cut);
    let mut is_any = true.runtime();
    if comptime!(blueprint.has_origin) {
        // Where no row sees anything, nothing waits for a copy.
        is_any = steps > 0;
    }
    let keys = send::<F, N>(&feed.first, &mut tiles.key, &corner, is_any, unit, key_stage);
    receive::<F, N>(&keys, &mut tiles.key, unit, key_stage);
    for step in 0..steps {
        let corner = work.tile.corner(&number, cut);
        let sight = sight(&tiles.windows, &corner, work, blueprint);
        work.tile.advance(&mut number, cut);
        let next = work.tile.corner(&number, cut);

        settle(staging);
        sync_cube();
        let values = send::<F, N>(&feed.second, &mut tiles.value, &corner, true, unit, value_stage);
        let mut weights = no_scores(first);
        if sight.is_any {
            add_scores::<F, N>(&mut weights, rows, &tiles.key, work, first);
            add_bias::<F>(&mut weights, bias, &corner, work, blueprint);
            if !sight.is_all {
                let masked = f32::min_value();
                mask_windows(&mut weights, masked, &tiles.windows, &corner, work, blueprint);
            }
            weigh(&mut weights, state, work, blueprint);
        }
        receive::<F, N>(&values, &mut tiles.value, unit, value_stage);
        settle(staging);
        sync_cube();
        let is_more = step + 1 < steps;
        let keys = send::<F, N>(&feed.first, &mut tiles.key, &next, is_more, unit, key_stage);
        if sight.is_any {
            accumulate::<F, N>(&mut state.sums, &weights, &tiles.value, lane, second);
        }
        receive::<F, N>(&keys, &mut tiles.key, unit, key_stage);
    }
    sync_cube();
}

/// Takes the additional keys into the softmax, tile by tile.
#[cube]
fn sweep_additional<F: Float, N: Size>(
    feed: &FeedPair<'_, F, N>,
    rows: &Rows<F, N>,
    tiles: &mut Tiles<F, N>,
    state: &mut Softmax,
    work: &Work,
    #[comptime] blueprint: Blueprint,
) {
    let columns = comptime!(blueprint.columns());
    let line = comptime!([1, 1, columns]);
    let (first, second) = comptime!((blueprint.first(), blueprint.second()));
    let key_stage = comptime!(Stage::new(&blueprint, first, blueprint.head_dim, line));
    let value_stage = comptime!(Stage::new(&blueprint, second, blueprint.head_dim_v, line));
    let count = work.space.additional;
    for step in 0..count.div_ceil(columns) {
        let token = step * columns;
        let corner = Position { z: 0usize, y: 0usize, x: token };
        bring::<F, N>(&feed.first, &mut tiles.key, &corner, work.unit, key_stage);
        bring::<F, N>(&feed.second, &mut tiles.value, &corner, work.unit, value_stage);
        sync_cube();
        let mut weights = no_scores(first);
        add_scores::<F, N>(&mut weights, rows, &tiles.key, work, first);
        if token + columns > count {
            mask_behind(&mut weights, f32::min_value(), count - token, work, blueprint);
        }
        weigh(&mut weights, state, work, blueprint);
        accumulate::<F, N>(&mut state.sums, &weights, &tiles.value, work.lane, second);
        sync_cube();
    }
}
