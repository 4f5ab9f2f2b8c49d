//! The kernel for matrix units whose fragments are the runtime's.
//!
//! A plane owns as many rows as a matrix has. A tile of columns gives it scores, which become weights, and then, in the same
//! place, the gradients of the weights, which become those of the scores. Sums need no rescaling and stay in
//! fragments from the first column to the last.
//!
//! Between products everything passes through shared memory, of which such devices have as little as 32 KB. So there is one buffer
//! for columns, and one for scores; what a unit needs of its scores later it keeps in registers.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs, clippy::too_many_arguments)]

mod output;
mod step;
mod sweep;

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::blueprint::{Blueprint, PLANE, Pass};
use super::super::cooperative::{Place, no_sums, place};
use super::super::geometry::{Position, Space};
use super::super::mask::{words, write_windows};
use super::super::staging::{Stage, clear, fetch, put};
use super::kernel::PairStrides;
use super::pair::Role;
use super::repair::repair;
use super::statistics::STATISTICS;
use output::store;
use sweep::{sweep_additional, sweep_windows};

/// This unit's part of a row, with the row's scaled logsumexp and delta where it is a query.
#[derive(CubeType)]
struct Share {
    place: Place,
    lse: f32,
    delta: f32,
}

/// Sums of the gradients of the rows' first and second vectors.
#[derive(CubeType)]
struct Sums {
    first: super::super::cooperative::Sums,
    second: super::super::cooperative::Sums,
}

/// Tiles in shared memory.
#[derive(CubeType)]
struct Tiles<F: Float, N: Size> {
    row_first: Shared<[Vector<F, N>]>,
    row_second: Shared<[Vector<F, N>]>,
    column_first: Shared<[Vector<F, N>]>,
    column_second: Shared<[Vector<F, N>]>,
    scores: Shared<[f32]>,
    weights: Shared<[F]>,
    windows: Shared<[u32]>,
    /// Of columns that are queries: their logsumexps, then their deltas.
    statistics: Shared<[f32]>,
}

/// Takes what [`backward_kernel`](super::kernel::backward_kernel) takes.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn cooperative_kernel<F: Float, N: Size, NO: Size>(
    row_first: &[Vector<F, N>],
    row_second: &[Vector<F, N>],
    column_first: &[Vector<F, N>],
    column_second: &[Vector<F, N>],
    additional_first: &[Vector<F, N>],
    additional_second: &[Vector<F, N>],
    statistics: &[f32],
    out_first: &mut [Vector<F, NO>],
    out_second: &mut [Vector<F, NO>],
    space: Space,
    strides: PairStrides,
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

    let first = comptime!(blueprint.first());
    let second = comptime!(blueprint.second());
    let (rows, columns) = comptime!((blueprint.rows(), blueprint.columns()));
    let size = comptime!(if blueprint.has_keys { words(&blueprint) } else { 1 });
    // The rows' second vectors give the gradients of weights, which gradients of values do not need.
    let row_size = comptime!(if blueprint.has_first { rows * second.pitch } else { 1 });
    let numbers = comptime!(if blueprint.pass == Pass::Keys { STATISTICS * columns } else { 1 });
    let mut tiles = Tiles::<F, N> {
        row_first: Shared::new_aligned_slice(comptime!(rows * first.pitch), 32usize),
        row_second: Shared::new_aligned_slice(row_size, 32usize),
        column_first: Shared::new_aligned_slice(comptime!(columns * first.pitch), 32usize),
        column_second: Shared::new_aligned_slice(comptime!(columns * second.pitch), 32usize),
        scores: Shared::new_aligned_slice(comptime!(rows * blueprint.score_pitch()), 32usize),
        weights: Shared::new_aligned_slice(comptime!(rows * blueprint.weight_pitch()), 32usize),
        windows: Shared::new_slice(size),
        statistics: Shared::new_slice(numbers),
    };
    let row_tile = comptime!(blueprint.row_tile());
    let column_tile = comptime!(blueprint.column_tile());
    let first_stage = comptime!(Stage::new(&blueprint, first, blueprint.head_dim, row_tile));
    let second_stage = comptime!(Stage::new(&blueprint, second, blueprint.head_dim_v, row_tile));
    let cleared = comptime!(Stage { tile: column_tile, ..first_stage });
    clear::<F, N>(&mut tiles.column_first, unit, 1usize, cleared);
    let cleared = comptime!(Stage { tile: column_tile, ..second_stage });
    clear::<F, N>(&mut tiles.column_second, unit, 1usize, cleared);
    let corner = Position { z: tile.z.row, y: tile.y.row, x: tile.x.row };
    clear::<F, N>(&mut tiles.row_first, unit, 1usize, first_stage);
    let walk = space.row_walk(&tile, &strides.row_first);
    let fetched = fetch::<F, N>(row_first, &walk, &corner, unit, first_stage);
    put::<F, N>(&fetched, &mut tiles.row_first, unit, first_stage);
    if comptime!(blueprint.has_first) {
        clear::<F, N>(&mut tiles.row_second, unit, 1usize, second_stage);
        let walk = space.row_walk(&tile, &strides.row_second);
        let fetched = fetch::<F, N>(row_second, &walk, &corner, unit, second_stage);
        put::<F, N>(&fetched, &mut tiles.row_second, unit, second_stage);
    }
    if comptime!(blueprint.has_keys) {
        write_windows(&mut tiles.windows, &space, &tile, unit, blueprint);
    }
    let mut share = Share { place: place(first_row, lane, blueprint), lse: 0.0f32, delta: 0.0f32 };
    if comptime!(blueprint.pass != Pass::Keys) {
        let at = tile.position(share.place.row, comptime!(blueprint.cut()));
        if tile.is_row(&at) {
            let query = STATISTICS * space.row_place(&tile, &at);
            share.lse = statistics[query];
            share.delta = statistics[query + 1];
        }
    }
    sync_cube();

    let dim = comptime!(if blueprint.has_first { blueprint.dim() } else { 0 });
    let dim_second = comptime!(if blueprint.has_second { blueprint.dim_v() } else { 0 });
    let mut sums = Sums { first: no_sums(dim, blueprint), second: no_sums(dim_second, blueprint) };
    if comptime!(blueprint.has_keys) {
        sweep_windows::<F, N>(
            column_first,
            column_second,
            statistics,
            &space,
            &strides,
            &tile,
            &mut tiles,
            &share,
            &mut sums,
            factor,
            unit,
            blueprint,
        );
    }
    if comptime!(blueprint.has_additional) {
        sweep_additional::<F, N>(
            additional_first,
            additional_second,
            &space,
            &strides,
            &tile,
            &mut tiles,
            &share,
            &mut sums,
            factor,
            unit,
            blueprint,
        );
    }
    let spoiled = store::<F, N, NO>(
        &mut tiles, &sums, &share, out_first, out_second, &space, &tile, scale, first_row, lane,
        blueprint,
    );
    repair::<F, N, NO>(
        row_first,
        row_second,
        column_first,
        column_second,
        additional_first,
        additional_second,
        statistics,
        out_first,
        out_second,
        &space,
        &strides,
        &tile,
        spoiled,
        factor,
        scale,
        first_row,
        lane,
        blueprint,
        Role::Both,
    );
}
