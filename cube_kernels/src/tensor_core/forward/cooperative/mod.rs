//! The kernel for matrix units whose fragments are the runtime's: which unit holds what is not known, so that what
//! scores and weights are passes through shared memory, and sums cannot be rescaled.
//!
//! Hence a cube goes through its keys twice. The first time it finds the logsumexp of each query; the second
//! time weights are final when they are computed, and sums stay in fragments from the first key to the last.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs, clippy::too_many_arguments)]

mod output;
mod softmax;
mod sweep;

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::blueprint::{Blueprint, PLANE};
use super::super::cooperative::{Place, no_sums, place};
use super::super::geometry::{Position, Space};
use super::super::mask::{words, write_windows};
use super::super::staging::{Stage, clear, fetch, put};
use super::kernel::AllStrides;
use super::repair::repair;
use output::store;
use softmax::finish_statistics;
use sweep::{sweep_additional, sweep_windows};

/// This unit's part of a row, and what it finds of it in the first sweep and uses in the second.
#[derive(CubeType)]
struct Share {
    place: Place,
    /// Largest score.
    maximum: f32,
    /// Of the exponentials relative to it.
    sum: f32,
}

/// A sweep over the keys.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Sweep {
    /// For the largest scores and the sums of exponentials.
    Statistics,
    /// For the output.
    Output,
}

/// Tiles in shared memory.
#[derive(CubeType)]
struct Tiles<F: Float, N: Size> {
    query: Shared<[Vector<F, N>]>,
    key: Shared<[Vector<F, N>]>,
    value: Shared<[Vector<F, N>]>,
    scores: Shared<[f32]>,
    weights: Shared<[F]>,
    windows: Shared<[u32]>,
}

#[cube(launch_unchecked, address_type = "dynamic")]
pub(in super::super) fn cooperative_kernel<F: Float, N: Size, NO: Size>(
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
    let plane = unit / PLANE;
    let first_row = plane * comptime!(blueprint.plane_rows());
    let head_kv = tile.head / space.group_size;

    let first = comptime!(blueprint.first());
    let second = comptime!(blueprint.second());
    let (rows, columns) = comptime!((blueprint.rows(), blueprint.columns()));
    let size = comptime!(if blueprint.has_keys { words(&blueprint) } else { 1 });
    let mut tiles = Tiles::<F, N> {
        query: Shared::new_aligned_slice(comptime!(rows * first.pitch), 32usize),
        key: Shared::new_aligned_slice(comptime!(columns * first.pitch), 32usize),
        value: Shared::new_aligned_slice(comptime!(columns * second.pitch), 32usize),
        scores: Shared::new_aligned_slice(comptime!(rows * blueprint.score_pitch()), 32usize),
        weights: Shared::new_aligned_slice(comptime!(rows * blueprint.weight_pitch()), 32usize),
        windows: Shared::new_slice(size),
    };
    let query_stage =
        comptime!(Stage::new(&blueprint, first, blueprint.head_dim, blueprint.q_tile));
    let key_stage = comptime!(Stage { tile: blueprint.kv_tile, ..query_stage });
    clear::<F, N>(&mut tiles.query, unit, 1usize, query_stage);
    clear::<F, N>(&mut tiles.key, unit, 1usize, key_stage);
    let corner = Position { z: tile.z.row, y: tile.y.row, x: tile.x.row };
    let walk = space.row_walk(&tile, &strides.query);
    let fetched = fetch::<F, N>(query, &walk, &corner, unit, query_stage);
    put::<F, N>(&fetched, &mut tiles.query, unit, query_stage);
    if comptime!(blueprint.has_keys) {
        write_windows(&mut tiles.windows, &space, &tile, unit, blueprint);
    }
    sync_cube();

    let mut share =
        Share { place: place(first_row, lane, blueprint), maximum: f32::min_value(), sum: 0.0f32 };
    let mut sums = no_sums(comptime!(blueprint.dim_v()), blueprint);
    #[unroll]
    for number in 0..2usize {
        let sweep = comptime!(if number == 0 { Sweep::Statistics } else { Sweep::Output });
        if comptime!(blueprint.has_keys) {
            let key_walk = space.column_walk(&tile, &strides.key, head_kv);
            let value_walk = space.column_walk(&tile, &strides.value, head_kv);
            sweep_windows::<F, N>(
                key,
                value,
                &key_walk,
                &value_walk,
                &tile,
                &mut tiles,
                &mut share,
                &mut sums,
                factor,
                unit,
                sweep,
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
                &mut tiles,
                &mut share,
                &mut sums,
                factor,
                unit,
                sweep,
                blueprint,
            );
        }
        if comptime!(sweep == Sweep::Statistics) {
            finish_statistics(&mut tiles.scores, &mut share, factor, blueprint);
        }
    }
    let spoiled = store::<F, N, NO>(
        &mut tiles, &sums, &share, out, lse, &space, &tile, scale, first_row, lane, blueprint,
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
