//! The kernel for matrix units whose fragments are the runtime's.
//!
//! A plane owns as many rows as a matrix has. A tile of columns gives it scores, which become weights, and then, in the same
//! place, the gradients of the weights, which become those of the scores. Sums need no rescaling and stay in
//! fragments from the first column to the last.
//!
//! Between products everything passes through shared memory, of which such devices have as little as 32 KB. So there is one buffer
//! for columns, and one for scores; what a unit needs of its scores later it keeps in registers.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

mod output;
mod step;
mod sweep;

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::blueprint::{Blueprint, Pass};
use super::super::cooperative::{Place, no_sums, place};
use super::super::geometry::Space;
use super::super::mask::{words, write_windows};
use super::super::staging::{Stage, bring, clear};
use super::super::work::work;
use super::arguments::{Inputs, Outputs};
use super::part::{Part, Role};
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
    let (rows, columns) = comptime!((blueprint.rows(), blueprint.columns()));
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
        windows: Shared::new_slice(comptime!(words(&blueprint))),
        statistics: Shared::new_slice(numbers),
    };
    let row_tile = comptime!(blueprint.row_tile());
    let column_tile = comptime!(blueprint.column_tile());
    let first_stage = comptime!(Stage::new(&blueprint, first, blueprint.head_dim, row_tile));
    let second_stage = comptime!(Stage::new(&blueprint, second, blueprint.head_dim_v, row_tile));
    let cleared = comptime!(Stage { tile: column_tile, ..first_stage });
    clear::<F, N>(&mut tiles.column_first, work.unit, 1usize, cleared);
    let cleared = comptime!(Stage { tile: column_tile, ..second_stage });
    clear::<F, N>(&mut tiles.column_second, work.unit, 1usize, cleared);
    let corner = work.tile.row_corner();
    clear::<F, N>(&mut tiles.row_first, work.unit, 1usize, first_stage);
    let feed = inputs.rows.first.rows(&work.space, &work.tile);
    bring::<F, N>(&feed, &mut tiles.row_first, &corner, work.unit, first_stage);
    if comptime!(blueprint.has_first) {
        clear::<F, N>(&mut tiles.row_second, work.unit, 1usize, second_stage);
        let feed = inputs.rows.second.rows(&work.space, &work.tile);
        bring::<F, N>(&feed, &mut tiles.row_second, &corner, work.unit, second_stage);
    }
    if comptime!(blueprint.has_keys) {
        write_windows(&mut tiles.windows, &work, blueprint);
    }
    let mut share = Share { place: place(&work, blueprint), lse: 0.0f32, delta: 0.0f32 };
    if comptime!(blueprint.pass != Pass::Keys) {
        let at = work.tile.position(share.place.row, comptime!(blueprint.cut()));
        if work.tile.is_row(&at) {
            let query = STATISTICS * work.space.row_place(&work.tile, &at);
            share.lse = inputs.statistics[query];
            share.delta = inputs.statistics[query + 1];
        }
    }
    sync_cube();

    let dim = comptime!(if blueprint.has_first { blueprint.dim() } else { 0 });
    let dim_second = comptime!(if blueprint.has_second { blueprint.dim_v() } else { 0 });
    let mut sums = Sums { first: no_sums(dim, blueprint), second: no_sums(dim_second, blueprint) };
    if comptime!(blueprint.has_keys) {
        sweep_windows::<F, N>(inputs, &mut tiles, &share, &mut sums, &work, blueprint);
    }
    if comptime!(blueprint.has_additional) {
        let feed = inputs.additional.additional(&work.space, &work.tile);
        sweep_additional::<F, N>(&feed, &mut tiles, &share, &mut sums, &work, blueprint);
    }
    let spoiled = store::<F, N, NO>(&mut tiles, &sums, &share, outputs, &work, blueprint);
    let part = comptime!(Part { blueprint, role: Role::Both });
    repair::<F, N, NO>(inputs, outputs, &work, spoiled, part);
}
