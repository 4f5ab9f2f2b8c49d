//! The kernel: what a cube keeps of its rows, and what its planes do with them.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::blueprint::{Blueprint, COLUMNS, Pass};
use super::super::fragments::{Pair, zeros};
use super::super::geometry::Space;
use super::super::mask::{words, write_windows};
use super::super::products::rows;
use super::super::staging::{Stage, bring, clear};
use super::super::work::{Work, work};
use super::arguments::{Inputs, Outputs};
use super::part::{Part, Role};
use super::repair::repair;
use super::slopes::{Slopes, clear_sums, slopes, store_sums};
use super::statistics::STATISTICS;
use super::step::{RowStatistics, Rows, Sums, row_statistics};
use super::store::store;
use super::sweep::{sweep_additional, sweep_windows};

/// Vectors of the cube's rows in shared memory, and their windows.
#[derive(CubeType)]
struct RowTiles<F: Float, N: Size> {
    first: Shared<[Vector<F, N>]>,
    second: Shared<[Vector<F, N>]>,
    windows: Shared<[u32]>,
}

/// Columns of two steps in shared memory.
#[derive(CubeType)]
pub(super) struct Tiles<F: Float, N: Size> {
    pub first: Shared<[Vector<F, N>]>,
    pub second: Shared<[Vector<F, N>]>,
    /// Of columns that are queries: of each step their logsumexps, then their deltas.
    pub statistics: Shared<[f32]>,
    /// Weights that one plane of a pair hands to the other.
    pub handed: Shared<[Pair<f32>]>,
    /// What the gradient of the bias is summed in.
    pub slopes: Slopes,
}

/// First vectors are queries and keys, second ones the output's gradient and values.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(super) fn backward_kernel<F: Float, N: Size, NO: Size>(
    space: Space,
    inputs: &Inputs<'_, F, N>,
    outputs: &mut Outputs<F, NO>,
    factor: f32,
    scale: f32,
    #[comptime] blueprint: Blueprint,
    #[define(F)] _dtype: ElemType,
) {
    if comptime!(blueprint.bias_sums > 0) {
        clear_sums(outputs.sums.as_mut().unwrap(), &space, blueprint);
    }
    let work = work(space, inputs.sequences, factor, scale, blueprint);
    let (first, second) = comptime!((blueprint.first(), blueprint.second()));
    let (of_rows, columns) = comptime!((blueprint.rows(), blueprint.columns()));
    let first_rows =
        Shared::<[Vector<F, N>]>::new_aligned_slice(comptime!(of_rows * first.pitch), 16usize);
    let second_rows =
        Shared::<[Vector<F, N>]>::new_aligned_slice(comptime!(of_rows * second.pitch), 16usize);
    let first_columns =
        Shared::<[Vector<F, N>]>::new_aligned_slice(comptime!(2 * columns * first.pitch), 16usize);
    let second_columns =
        Shared::<[Vector<F, N>]>::new_aligned_slice(comptime!(2 * columns * second.pitch), 16usize);
    let mut kept = RowTiles::<F, N> {
        first: first_rows,
        second: second_rows,
        windows: Shared::new_slice(comptime!(words(&blueprint))),
    };
    let numbers =
        comptime!(if blueprint.pass == Pass::Keys { 2 * STATISTICS * columns } else { 1 });
    let statistics = Shared::<[f32]>::new_slice(numbers);

    let row_tile = comptime!(blueprint.row_tile());
    let first_stage = comptime!(Stage::new(&blueprint, first, blueprint.head_dim, row_tile));
    let second_stage = comptime!(Stage::new(&blueprint, second, blueprint.head_dim_v, row_tile));
    clear::<F, N>(&mut kept.first, work.unit, 1usize, first_stage);
    clear::<F, N>(&mut kept.second, work.unit, 1usize, second_stage);
    let mut tiles = Tiles::<F, N> {
        first: first_columns,
        second: second_columns,
        statistics,
        handed: Shared::new_slice(comptime!(blueprint.handed())),
        slopes: slopes(&work, blueprint),
    };
    let column_tile = comptime!(blueprint.column_tile());
    let cleared = comptime!(Stage { tile: column_tile, ..first_stage });
    clear::<F, N>(&mut tiles.first, work.unit, 2usize, cleared);
    let cleared = comptime!(Stage { tile: column_tile, ..second_stage });
    clear::<F, N>(&mut tiles.second, work.unit, 2usize, cleared);
    let corner = work.tile.row_corner();
    let feed = inputs.rows.first.rows(&work.space, &work.tile);
    bring::<F, N>(&feed, &mut kept.first, &corner, work.unit, first_stage);
    let feed = inputs.rows.second.rows(&work.space, &work.tile);
    bring::<F, N>(&feed, &mut kept.second, &corner, work.unit, second_stage);
    if comptime!(blueprint.has_keys) {
        write_windows(&mut kept.windows, &work, blueprint);
    }
    let own = row_statistics(inputs.statistics, &work, blueprint);
    sync_cube();
    if comptime!(!blueprint.is_paired) {
        let part = comptime!(Part { blueprint, role: Role::Both });
        run::<F, N, NO>(inputs, outputs, &kept, &own, &mut tiles, &work, part);
    } else if work.unit < comptime!(blueprint.units() / 2) {
        let part = comptime!(Part { blueprint, role: Role::Values });
        run::<F, N, NO>(inputs, outputs, &kept, &own, &mut tiles, &work, part);
    } else {
        let part = comptime!(Part { blueprint, role: Role::Keys });
        run::<F, N, NO>(inputs, outputs, &kept, &own, &mut tiles, &work, part);
    }
}

/// What a plane does once the rows are in shared memory, be it alone or one of a pair.
#[cube]
fn run<'a, F: Float, N: Size, NO: Size>(
    inputs: &Inputs<'_, F, N>,
    outputs: &mut Outputs<F, NO>,
    kept: &RowTiles<F, N>,
    own: &'a RowStatistics,
    tiles: &mut Tiles<F, N>,
    work: &Work,
    #[comptime] part: Part,
) {
    let Part { blueprint, role } = comptime!(part);
    let first = comptime!(role.rows_first(blueprint.first()));
    let second = comptime!(role.rows_second(blueprint.second()));
    let rows = Rows::<'a, F, N> {
        first: rows::<F, N>(kept.first.clone(), work, first),
        second: rows::<F, N>(kept.second.clone(), work, second),
        windows: kept.windows.clone(),
        statistics: own,
    };
    let pieces = comptime!(match part.has_first() {
        true => blueprint.blocks * blueprint.dim() / COLUMNS,
        false => 0,
    });
    let pieces_second = comptime!(match part.has_second() {
        true => blueprint.blocks * blueprint.dim_v() / COLUMNS,
        false => 0,
    });
    let mut sums = Sums { first: zeros(pieces), second: zeros(pieces_second) };
    if comptime!(blueprint.has_keys) {
        sweep_windows::<F, N>(inputs, &rows, tiles, &mut sums, work, part);
    }
    if comptime!(blueprint.bias_sums > 0) {
        store_sums(tiles.slopes.index(0), outputs.sums.as_mut().unwrap(), work, blueprint);
    }
    if comptime!(blueprint.has_additional) {
        let feed = inputs.additional.additional(&work.space, &work.tile);
        sweep_additional::<F, N>(&feed, &rows, tiles, &mut sums, work, blueprint);
    }
    let spoiled = store::<F, NO>(&sums, outputs, work, part);
    repair::<F, N, NO>(inputs, outputs, work, spoiled, part);
}
