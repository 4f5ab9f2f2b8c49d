//! The kernel: how a cube goes through the columns of its rows.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs, clippy::too_many_arguments)]

use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::blueprint::{Blueprint, COLUMNS, PLANE, Pass, ROWS, Staging};
use super::super::geometry::{CubeTile, Position, Space, Strides};
use super::super::mask::{Sight, mask_line, sight, words, write_windows};
use super::super::products::{Fragments, Pair, accumulate, add_scores, held, no_scores, zeros};
use super::super::staging::{Stage, begin, clear, fetch, finish, put};
use super::pair::{Role, take_keys, take_values};
use super::repair::repair;
use super::statistics::STATISTICS;
use super::step::{RowStatistics, Sums, differentiate, row_statistics, take};
use super::store::store;

/// Strides of all inputs.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(in super::super) struct PairStrides {
    pub row_first: Strides,
    pub row_second: Strides,
    pub column_first: Strides,
    pub column_second: Strides,
    pub additional_first: Strides,
    pub additional_second: Strides,
}

/// First vectors are queries and keys, second ones the output's gradient and values; those of the rows
/// stay in shared memory, those of the columns pass through it.
#[cube(launch_unchecked, address_type = "dynamic")]
pub(in super::super) fn backward_kernel<F: Float, N: Size, NO: Size>(
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
    let first_row = first_row(unit, blueprint);

    let first = comptime!(blueprint.first());
    let second = comptime!(blueprint.second());
    let (rows, columns) = comptime!((blueprint.rows(), blueprint.columns()));
    let mut shared_rows_first =
        Shared::<[Vector<F, N>]>::new_aligned_slice(comptime!(rows * first.pitch), 16usize);
    let mut shared_rows_second =
        Shared::<[Vector<F, N>]>::new_aligned_slice(comptime!(rows * second.pitch), 16usize);
    let mut shared_first =
        Shared::<[Vector<F, N>]>::new_aligned_slice(comptime!(2 * columns * first.pitch), 16usize);
    let mut shared_second =
        Shared::<[Vector<F, N>]>::new_aligned_slice(comptime!(2 * columns * second.pitch), 16usize);
    let size = comptime!(if blueprint.has_keys { words(&blueprint) } else { 1 });
    let mut windows = Shared::<[u32]>::new_slice(size);
    let numbers =
        comptime!(if blueprint.pass == Pass::Keys { 2 * STATISTICS * columns } else { 1 });
    let shared_statistics = Shared::<[f32]>::new_slice(numbers);

    let row_tile = comptime!(blueprint.row_tile());
    let first_stage = comptime!(Stage::new(&blueprint, first, blueprint.head_dim, row_tile));
    let second_stage = comptime!(Stage::new(&blueprint, second, blueprint.head_dim_v, row_tile));
    clear::<F, N>(&mut shared_rows_first, unit, 1usize, first_stage);
    clear::<F, N>(&mut shared_rows_second, unit, 1usize, second_stage);
    let column_tile = comptime!(blueprint.column_tile());
    let cleared = comptime!(Stage { tile: column_tile, ..first_stage });
    clear::<F, N>(&mut shared_first, unit, 2usize, cleared);
    let cleared = comptime!(Stage { tile: column_tile, ..second_stage });
    clear::<F, N>(&mut shared_second, unit, 2usize, cleared);
    let corner = Position { z: tile.z.row, y: tile.y.row, x: tile.x.row };
    let walk = space.row_walk(&tile, &strides.row_first);
    let fetched = fetch::<F, N>(row_first, &walk, &corner, unit, first_stage);
    put::<F, N>(&fetched, &mut shared_rows_first, unit, first_stage);
    let walk = space.row_walk(&tile, &strides.row_second);
    let fetched = fetch::<F, N>(row_second, &walk, &corner, unit, second_stage);
    put::<F, N>(&fetched, &mut shared_rows_second, unit, second_stage);
    if comptime!(blueprint.has_keys) {
        write_windows(&mut windows, &space, &tile, unit, blueprint);
    }
    let own = row_statistics(statistics, &space, &tile, first_row, lane, blueprint);
    sync_cube();
    let handed = Shared::<[Pair<f32>]>::new_slice(comptime!(blueprint.handed()));
    if comptime!(!blueprint.is_paired) {
        part::<F, N, NO>(
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
            &shared_rows_first,
            &shared_rows_second,
            shared_first.clone(),
            shared_second.clone(),
            shared_statistics.clone(),
            handed.clone(),
            &windows,
            &own,
            factor,
            scale,
            unit,
            blueprint,
            Role::Both,
        );
    } else if unit < comptime!(blueprint.units() / 2) {
        part::<F, N, NO>(
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
            &shared_rows_first,
            &shared_rows_second,
            shared_first.clone(),
            shared_second.clone(),
            shared_statistics.clone(),
            handed.clone(),
            &windows,
            &own,
            factor,
            scale,
            unit,
            blueprint,
            Role::Values,
        );
    } else {
        part::<F, N, NO>(
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
            &shared_rows_first,
            &shared_rows_second,
            shared_first.clone(),
            shared_second.clone(),
            shared_statistics.clone(),
            handed.clone(),
            &windows,
            &own,
            factor,
            scale,
            unit,
            blueprint,
            Role::Keys,
        );
    }
}

/// What a plane does once the rows are in shared memory, be it alone or one of a pair.
#[cube]
fn part<F: Float, N: Size, NO: Size>(
    row_first: &[Vector<F, N>],
    row_second: &[Vector<F, N>],
    column_first: &[Vector<F, N>],
    column_second: &[Vector<F, N>],
    additional_first: &[Vector<F, N>],
    additional_second: &[Vector<F, N>],
    statistics: &[f32],
    out_first: &mut [Vector<F, NO>],
    out_second: &mut [Vector<F, NO>],
    space: &Space,
    strides: &PairStrides,
    tile: &CubeTile,
    shared_rows_first: &[Vector<F, N>],
    shared_rows_second: &[Vector<F, N>],
    shared_first: Shared<[Vector<F, N>]>,
    shared_second: Shared<[Vector<F, N>]>,
    shared_statistics: Shared<[f32]>,
    handed: Shared<[Pair<f32>]>,
    windows: &[u32],
    own: &RowStatistics,
    factor: f32,
    scale: f32,
    unit: usize,
    #[comptime] blueprint: Blueprint,
    #[comptime] role: Role,
) {
    let lane = unit % PLANE;
    let first_row = first_row(unit, blueprint);
    let first = comptime!(blueprint.first());
    let second = comptime!(blueprint.second());
    let held_first =
        held::<F, N>(shared_rows_first, first_row, lane, comptime!(role.rows_first(first)));
    let held_second =
        held::<F, N>(shared_rows_second, first_row, lane, comptime!(role.rows_second(second)));

    let pieces = comptime!(match blueprint.has_first && role != Role::Values {
        true => blueprint.blocks * blueprint.dim() / COLUMNS,
        false => 0,
    });
    let pieces_second = comptime!(match blueprint.has_second && role != Role::Keys {
        true => blueprint.blocks * blueprint.dim_v() / COLUMNS,
        false => 0,
    });
    let mut sums = Sums { first: zeros(pieces), second: zeros(pieces_second) };
    if comptime!(blueprint.has_keys) {
        sweep::<F, N>(
            column_first,
            column_second,
            statistics,
            space,
            strides,
            tile,
            shared_rows_first,
            shared_rows_second,
            &held_first,
            &held_second,
            shared_first.clone(),
            shared_second.clone(),
            shared_statistics.clone(),
            handed,
            windows,
            own,
            &mut sums,
            factor,
            unit,
            blueprint,
            role,
        );
    }
    if comptime!(blueprint.has_additional) {
        sweep_additional::<F, N>(
            additional_first,
            additional_second,
            space,
            strides,
            tile,
            shared_rows_first,
            shared_rows_second,
            &held_first,
            &held_second,
            shared_first.clone(),
            shared_second.clone(),
            &shared_statistics,
            own,
            &mut sums,
            factor,
            unit,
            blueprint,
        );
    }
    let spoiled = store::<F, NO>(
        &sums, out_first, out_second, space, tile, scale, first_row, lane, blueprint, role,
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
        space,
        strides,
        tile,
        spoiled,
        factor,
        scale,
        first_row,
        lane,
        blueprint,
        role,
    );
}

/// Takes all columns that the cube's rows see into the sums, tile by tile; where rows are keys, those of
/// one head of the queries after the other.
#[cube]
fn sweep<F: Float, N: Size>(
    column_first: &[Vector<F, N>],
    column_second: &[Vector<F, N>],
    statistics: &[f32],
    space: &Space,
    strides: &PairStrides,
    tile: &CubeTile,
    shared_rows_first: &[Vector<F, N>],
    shared_rows_second: &[Vector<F, N>],
    held_first: &Fragments<F>,
    held_second: &Fragments<F>,
    mut shared_first: Shared<[Vector<F, N>]>,
    mut shared_second: Shared<[Vector<F, N>]>,
    mut shared_statistics: Shared<[f32]>,
    handed: Shared<[Pair<f32>]>,
    windows: &[u32],
    own: &RowStatistics,
    sums: &mut Sums,
    factor: f32,
    unit: usize,
    #[comptime] blueprint: Blueprint,
    #[comptime] role: Role,
) {
    let (first, second) = comptime!((blueprint.first(), blueprint.second()));
    let columns = comptime!(blueprint.columns());
    let column_tile = comptime!(blueprint.column_tile());
    let first_stage = comptime!(Stage::new(&blueprint, first, blueprint.head_dim, column_tile));
    let second_stage = comptime!(Stage::new(&blueprint, second, blueprint.head_dim_v, column_tile));
    let is_async = comptime!(blueprint.staging != Staging::Registers);
    let is_keys = comptime!(blueprint.pass == Pass::Keys);
    let first_size = comptime!(columns * first.pitch);
    let second_size = comptime!(columns * second.pitch);
    let numbers = comptime!(STATISTICS * columns);
    let lane = unit % PLANE;
    let first_row = first_row(unit, blueprint);

    let mut head = tile.head / space.group_size;
    let mut heads = 1usize;
    let mut steps = tile.steps(comptime!(blueprint.cut()));
    if comptime!(is_keys) {
        head = tile.head * space.group_size;
        heads = space.heads * space.group_size;
        steps *= space.group_size;
    }
    let mut at_z = 0usize;
    let mut at_y = 0usize;
    let mut at_x = 0usize;
    if steps > 0 {
        let corner = tile.corner(at_z, at_y, at_x, comptime!(blueprint.cut()));
        let walk = space.column_walk(tile, &strides.column_first, head);
        let walk_second = space.column_walk(tile, &strides.column_second, head);
        if comptime!(is_async) {
            let to = &mut shared_first[0..first_size];
            begin::<F, N>(column_first, to, &walk, &corner, unit, first_stage);
            let to = &mut shared_second[0..second_size];
            begin::<F, N>(column_second, to, &walk_second, &corner, unit, second_stage);
        } else {
            let fetched = fetch::<F, N>(column_first, &walk, &corner, unit, first_stage);
            put::<F, N>(&fetched, &mut shared_first[0..first_size], unit, first_stage);
            let fetched = fetch::<F, N>(column_second, &walk_second, &corner, unit, second_stage);
            put::<F, N>(&fetched, &mut shared_second[0..second_size], unit, second_stage);
        }
        if comptime!(is_keys) && unit < columns {
            let at = space.nearest_column(tile, &corner, unit, column_tile);
            let place = STATISTICS * space.column_place(tile, &at, head, heads);
            shared_statistics[unit] = statistics[place];
            shared_statistics[unit + columns] = statistics[place + 1];
        }
    }
    for number in 0..steps {
        let corner = tile.corner(at_z, at_y, at_x, comptime!(blueprint.cut()));
        let sight = sight(windows, &corner, group(unit, blueprint), blueprint);
        let now = number % 2;
        let then = 1 - now;
        // The next tile.
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
            if comptime!(is_keys) && at_x + at_y + at_z == 0 && number + 1 < steps {
                head += 1;
            }
        }
        let next = tile.corner(at_z, at_y, at_x, comptime!(blueprint.cut()));
        let walk = space.column_walk(tile, &strides.column_first, head);
        let walk_second = space.column_walk(tile, &strides.column_second, head);
        let mut next_lse = 0.0f32;
        let mut next_delta = 0.0f32;
        if comptime!(is_async) {
            finish(comptime!(blueprint.staging));
        }
        sync_cube();
        if comptime!(is_keys) && unit < columns {
            let at = space.nearest_column(tile, &next, unit, column_tile);
            let place = STATISTICS * space.column_place(tile, &at, head, heads);
            next_lse = statistics[place];
            next_delta = statistics[place + 1];
        }
        let now_first = now * first_size;
        let now_second = now * second_size;
        let then_first = then * first_size;
        let then_second = then * second_size;
        if comptime!(is_async) {
            if number + 1 < steps {
                let to = &mut shared_first[then_first..then_first + first_size];
                begin::<F, N>(column_first, to, &walk, &next, unit, first_stage);
                let to = &mut shared_second[then_second..then_second + second_size];
                begin::<F, N>(column_second, to, &walk_second, &next, unit, second_stage);
            }
            step::<F, N>(
                shared_rows_first,
                shared_rows_second,
                held_first,
                held_second,
                &shared_first[now_first..now_first + first_size],
                &shared_second[now_second..now_second + second_size],
                &shared_statistics[now * numbers..now * numbers + numbers],
                handed.clone(),
                windows,
                own,
                sums,
                &corner,
                &sight,
                factor,
                first_row,
                lane,
                blueprint,
                role,
            );
        } else {
            // Behind the last step these are read in vain.
            let fetched = fetch::<F, N>(column_first, &walk, &next, unit, first_stage);
            let fetched_second =
                fetch::<F, N>(column_second, &walk_second, &next, unit, second_stage);
            step::<F, N>(
                shared_rows_first,
                shared_rows_second,
                held_first,
                held_second,
                &shared_first[now_first..now_first + first_size],
                &shared_second[now_second..now_second + second_size],
                &shared_statistics[now * numbers..now * numbers + numbers],
                handed.clone(),
                windows,
                own,
                sums,
                &corner,
                &sight,
                factor,
                first_row,
                lane,
                blueprint,
                role,
            );
            let to = &mut shared_first[then_first..then_first + first_size];
            put::<F, N>(&fetched, to, unit, first_stage);
            let to = &mut shared_second[then_second..then_second + second_size];
            put::<F, N>(&fetched_second, to, unit, second_stage);
        }
        if comptime!(is_keys) && unit < columns {
            shared_statistics[then * numbers + unit] = next_lse;
            shared_statistics[then * numbers + columns + unit] = next_delta;
        }
    }
    sync_cube();
}

/// Takes the additional columns, which every row sees, into the sums.
#[cube]
fn sweep_additional<F: Float, N: Size>(
    additional_first: &[Vector<F, N>],
    additional_second: &[Vector<F, N>],
    space: &Space,
    strides: &PairStrides,
    tile: &CubeTile,
    shared_rows_first: &[Vector<F, N>],
    shared_rows_second: &[Vector<F, N>],
    held_first: &Fragments<F>,
    held_second: &Fragments<F>,
    mut shared_first: Shared<[Vector<F, N>]>,
    mut shared_second: Shared<[Vector<F, N>]>,
    shared_statistics: &[f32],
    own: &RowStatistics,
    sums: &mut Sums,
    factor: f32,
    unit: usize,
    #[comptime] blueprint: Blueprint,
) {
    let (first, second) = comptime!((blueprint.first(), blueprint.second()));
    let columns = comptime!(blueprint.columns());
    let line = comptime!([1, 1, columns]);
    let first_stage = comptime!(Stage::new(&blueprint, first, blueprint.head_dim, line));
    let second_stage = comptime!(Stage::new(&blueprint, second, blueprint.head_dim_v, line));
    let lane = unit % PLANE;
    let first_row = first_row(unit, blueprint);
    let count = space.additional;
    let walk = space.additional_walk(tile, &strides.additional_first);
    let walk_second = space.additional_walk(tile, &strides.additional_second);
    for step in 0..count.div_ceil(columns) {
        let token = step * columns;
        let corner = Position { z: 0usize, y: 0usize, x: token };
        let fetched = fetch::<F, N>(additional_first, &walk, &corner, unit, first_stage);
        put::<F, N>(&fetched, &mut shared_first, unit, first_stage);
        let fetched = fetch::<F, N>(additional_second, &walk_second, &corner, unit, second_stage);
        put::<F, N>(&fetched, &mut shared_second, unit, second_stage);
        sync_cube();
        let mut weights = no_scores(first);
        add_scores::<F, N>(
            &mut weights,
            shared_rows_first,
            held_first,
            &shared_first,
            first_row,
            lane,
            first,
        );
        let mut gradients = no_scores(second);
        add_scores::<F, N>(
            &mut gradients,
            shared_rows_second,
            held_second,
            &shared_second,
            first_row,
            lane,
            second,
        );
        differentiate(
            &mut weights,
            &mut gradients,
            shared_statistics,
            own,
            factor,
            lane,
            blueprint,
        );
        if token + columns > count {
            let end = (count - token) as i32;
            #[unroll]
            for block in 0..comptime!(blueprint.blocks) {
                #[unroll]
                for half in 0..2usize {
                    mask_line(&mut gradients, 0.0, 0i32, end, lane, block, half, blueprint);
                }
            }
        }
        accumulate::<F, N>(&mut sums.first, &gradients, &shared_first, lane, first);
        sync_cube();
    }
}

/// Number of this unit's plane, or of the pair it belongs to: the second half of the planes are partners of the first,
/// so that each of a multiprocessor's schedulers has planes of both kinds where there are eight.
#[cube]
fn group(unit: usize, #[comptime] blueprint: Blueprint) -> usize {
    if comptime!(blueprint.is_paired) {
        unit / PLANE % comptime!(blueprint.groups())
    } else {
        unit / PLANE
    }
}

/// The first row of this unit's plane.
#[cube]
fn first_row(unit: usize, #[comptime] blueprint: Blueprint) -> usize {
    group(unit, blueprint) * comptime!(ROWS * blueprint.blocks)
}

/// A step of a plane that works alone, or of one of a pair, which has barriers for all planes.
#[cube]
fn step<F: Float, N: Size>(
    shared_rows_first: &[Vector<F, N>],
    shared_rows_second: &[Vector<F, N>],
    held_first: &Fragments<F>,
    held_second: &Fragments<F>,
    shared_first: &[Vector<F, N>],
    shared_second: &[Vector<F, N>],
    shared_statistics: &[f32],
    mut handed: Shared<[Pair<f32>]>,
    windows: &[u32],
    own: &RowStatistics,
    sums: &mut Sums,
    corner: &Position,
    sight: &Sight,
    factor: f32,
    first_row: usize,
    lane: usize,
    #[comptime] blueprint: Blueprint,
    #[comptime] role: Role,
) {
    match comptime!(role) {
        Role::Both => {
            if sight.is_any {
                take::<F, N>(
                    shared_rows_first,
                    shared_rows_second,
                    held_first,
                    held_second,
                    shared_first,
                    shared_second,
                    shared_statistics,
                    windows,
                    own,
                    sums,
                    corner,
                    !sight.is_all,
                    factor,
                    first_row,
                    lane,
                    blueprint,
                );
            }
        }
        Role::Values => {
            take_values::<F, N>(
                shared_rows_first,
                held_first,
                shared_first,
                shared_second,
                shared_statistics,
                &mut handed,
                windows,
                sums,
                corner,
                sight,
                factor,
                first_row,
                lane,
                blueprint,
            );
        }
        Role::Keys => {
            take_keys::<F, N>(
                shared_rows_second,
                held_second,
                shared_first,
                shared_second,
                shared_statistics,
                &handed,
                windows,
                sums,
                corner,
                sight,
                first_row,
                lane,
                blueprint,
            );
        }
    }
}
