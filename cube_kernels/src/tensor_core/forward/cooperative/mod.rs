//! The kernel for matrix units whose fragments are the runtime's: which unit holds what is not known, so that what
//! scores and weights are passes through shared memory, and sums cannot be rescaled.
//!
//! Hence a cube goes through its keys twice. The first time it finds the logsumexp of each query; the second
//! time weights are final when they are computed, and sums stay in fragments from the first key to the last.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

mod output;
mod softmax;
mod sweep;

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::bias::Bias;
use super::super::blueprint::Blueprint;
use super::super::cooperative::{Place, Sums, no_sums, place};
use super::super::geometry::Space;
use super::super::mask::{words, write_windows};
use super::super::staging::{Stage, bring, clear};
use super::super::work::work;
use super::repair::repair;
use crate::cube::forward::{Inputs, Outputs};
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
    /// Weighted values of the plane's rows.
    sums: Sums,
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
    let mut tiles = Tiles::<F, N> {
        query: Shared::new_aligned_slice(comptime!(rows * first.pitch), 32usize),
        key: Shared::new_aligned_slice(comptime!(columns * first.pitch), 32usize),
        value: Shared::new_aligned_slice(comptime!(columns * second.pitch), 32usize),
        scores: Shared::new_aligned_slice(comptime!(rows * blueprint.score_pitch()), 32usize),
        weights: Shared::new_aligned_slice(comptime!(rows * blueprint.weight_pitch()), 32usize),
        windows: Shared::new_slice(comptime!(words(&blueprint))),
    };
    let row_stage = comptime!(Stage::new(&blueprint, first, blueprint.head_dim, blueprint.q_tile));
    let key_stage = comptime!(Stage { tile: blueprint.kv_tile, ..row_stage });
    clear::<F, N>(&mut tiles.query, work.unit, 1usize, row_stage);
    clear::<F, N>(&mut tiles.key, work.unit, 1usize, key_stage);
    let feed = inputs.query.rows(&work.space, &work.tile);
    bring::<F, N>(&feed, &mut tiles.query, &work.tile.row_corner(), work.unit, row_stage);
    if comptime!(blueprint.has_keys) {
        write_windows(&mut tiles.windows, &work, blueprint);
    }
    sync_cube();

    let mut share = Share {
        place: place(&work, blueprint),
        maximum: f32::min_value(),
        sum: 0.0f32,
        sums: no_sums(comptime!(blueprint.dim_v()), blueprint),
    };
    #[unroll]
    for number in 0..2usize {
        let sweep = comptime!(if number == 0 { Sweep::Statistics } else { Sweep::Output });
        if comptime!(blueprint.has_keys) {
            let head = work.tile.head / work.space.group_size;
            let feed = inputs.columns.columns(&work.space, &work.tile, head);
            let bias = inputs.bias.map(|values| Bias::of_head(values, work.tile.head, &work.space));
            sweep_windows::<F, N>(&feed, &mut tiles, &mut share, bias, &work, sweep, blueprint);
        }
        if comptime!(blueprint.has_additional) {
            let feed = inputs.additional.additional(&work.space, &work.tile);
            sweep_additional::<F, N>(&feed, &mut tiles, &mut share, &work, sweep, blueprint);
        }
        if comptime!(sweep == Sweep::Statistics) {
            finish_statistics(&mut tiles.scores, &mut share, &work, blueprint);
        }
    }
    let spoiled = store::<F, N, NO>(&mut tiles, &share, outputs, &work, blueprint);
    repair::<F, N, NO>(inputs, outputs, &work, spoiled, blueprint);
}
