//! The kernel for matrix units whose fragments are the runtime's: which unit holds what is not known, so that what
//! scores and weights are passes through shared memory, and sums cannot be rescaled.
//!
//! Hence a cube goes through its keys twice. The first time it finds the logsumexp of each query; the second
//! time weights are final when they are computed, and sums stay in fragments from the first key to the last.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs, clippy::too_many_arguments)]

use cubecl::cmma::{self, Matrix, MatrixIdent, MatrixLayout};
use cubecl::ir::ElemType;
use cubecl::prelude::*;

use super::super::blueprint::{Blueprint, Operand, PLANE};
use super::super::geometry::{CubeTile, Position, Space, Walk};
use super::super::mask::{WORDS, sees, sight, words, write_windows};
use super::super::results::{SMALL, is_finite};
use super::super::staging::{Stage, clear, fetch, put};
use super::kernel::AllStrides;
use super::repair::repair;

/// Sums of a plane's rows, in the order of their columns.
type Sums = Sequence<Matrix<f32>>;

/// What a plane finds of its rows in the first sweep, and uses in the second: this unit's row, and which of
/// its columns are this unit's.
#[derive(CubeType)]
struct Share {
    /// Number of the row in the cube.
    row: usize,
    /// First column; the next ones are `stripes` apart.
    stripe: usize,
    /// Where the row's scores and weights begin.
    scores: usize,
    weights: usize,
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
    let tile = space.tile(CUBE_POS, blueprint);
    if !tile.has_rows() {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let lane = unit % PLANE;
    let plane = unit / PLANE;
    let per_plane = comptime!(blueprint.plane_rows());
    let first_row = plane * per_plane;
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

    let row = first_row + lane % per_plane;
    let mut share = Share {
        row,
        stripe: lane / per_plane,
        scores: row * comptime!(blueprint.score_pitch()),
        weights: row * comptime!(blueprint.weight_pitch()),
        maximum: f32::min_value(),
        sum: 0.0f32,
    };
    let mut sums = no_sums(blueprint);
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

#[cube]
fn no_sums(#[comptime] blueprint: Blueprint) -> Sums {
    let [m, n, k] = comptime!(blueprint.shape());
    let mut sums = Sequence::new();
    #[unroll]
    for _ in 0..comptime!(blueprint.dim_v() / n) {
        sums.push(Matrix::<f32>::from_value(
            MatrixIdent::Accumulator,
            m,
            n,
            k,
            MatrixLayout::Undefined,
            0.0f32,
        ));
    }
    sums
}

/// Takes all keys of the cube's windows, tile by tile.
#[cube]
fn sweep_windows<F: Float, N: Size>(
    key: &[Vector<F, N>],
    value: &[Vector<F, N>],
    key_walk: &Walk,
    value_walk: &Walk,
    tile: &CubeTile,
    tiles: &mut Tiles<F, N>,
    share: &mut Share,
    sums: &mut Sums,
    factor: f32,
    unit: usize,
    #[comptime] sweep: Sweep,
    #[comptime] blueprint: Blueprint,
) {
    let mut at_z = 0usize;
    let mut at_y = 0usize;
    let mut at_x = 0usize;
    for _ in 0..tile.steps(blueprint) {
        let corner = tile.corner(at_z, at_y, at_x, blueprint);
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
        begin_step::<F, N>(
            key,
            value,
            key_walk,
            value_walk,
            &corner,
            tiles,
            unit,
            sight.is_any,
            sweep,
            blueprint.kv_tile,
            blueprint,
        );
        let word = share.row * WORDS;
        let stripes = comptime!(blueprint.stripes());
        // Scores that the row does not see give way to the lowest number.
        if sight.is_any && !sight.is_all {
            for turn in 0..comptime!(blueprint.columns() / stripes) {
                let column = share.stripe + turn * stripes;
                if !sees(&tiles.windows, word, &corner, column, blueprint) {
                    tiles.scores[share.scores + column] = f32::min_value();
                }
            }
        }
        take_step::<F, N>(tiles, share, sums, factor, unit, sight.is_any, sweep, blueprint);
    }
}

/// Takes the additional keys, tile by tile.
#[cube]
fn sweep_additional<F: Float, N: Size>(
    key: &[Vector<F, N>],
    value: &[Vector<F, N>],
    key_walk: &Walk,
    value_walk: &Walk,
    count: usize,
    tiles: &mut Tiles<F, N>,
    share: &mut Share,
    sums: &mut Sums,
    factor: f32,
    unit: usize,
    #[comptime] sweep: Sweep,
    #[comptime] blueprint: Blueprint,
) {
    let columns = comptime!(blueprint.columns());
    let stripes = comptime!(blueprint.stripes());
    for step in 0..count.div_ceil(columns) {
        let first = step * columns;
        let corner = Position { z: 0usize, y: 0usize, x: first };
        begin_step::<F, N>(
            key,
            value,
            key_walk,
            value_walk,
            &corner,
            tiles,
            unit,
            true,
            sweep,
            [1, 1, columns],
            blueprint,
        );
        if first + columns > count {
            for turn in 0..comptime!(columns / stripes) {
                let column = share.stripe + turn * stripes;
                if first + column >= count {
                    tiles.scores[share.scores + column] = f32::min_value();
                }
            }
        }
        take_step::<F, N>(tiles, share, sums, factor, unit, true, sweep, blueprint);
    }
}

/// Brings a tile of keys, and of values where they are needed, and multiplies the keys with the rows, if any of
/// the plane's sees one.
#[cube]
fn begin_step<F: Float, N: Size>(
    key: &[Vector<F, N>],
    value: &[Vector<F, N>],
    key_walk: &Walk,
    value_walk: &Walk,
    corner: &Position,
    tiles: &mut Tiles<F, N>,
    unit: usize,
    is_seen: bool,
    #[comptime] sweep: Sweep,
    #[comptime] shape: [usize; crate::MAX_RANK],
    #[comptime] blueprint: Blueprint,
) {
    let first = comptime!(blueprint.first());
    let second = comptime!(blueprint.second());
    let key_stage = comptime!(Stage::new(&blueprint, first, blueprint.head_dim, shape));
    let fetched = fetch::<F, N>(key, key_walk, corner, unit, key_stage);
    put::<F, N>(&fetched, &mut tiles.key, unit, key_stage);
    if comptime!(sweep == Sweep::Output) {
        let value_stage = comptime!(Stage::new(&blueprint, second, blueprint.head_dim_v, shape));
        let fetched = fetch::<F, N>(value, value_walk, corner, unit, value_stage);
        put::<F, N>(&fetched, &mut tiles.value, unit, value_stage);
    }
    sync_cube();
    if is_seen {
        score::<F, N>(tiles, unit / PLANE, blueprint);
    }
    sync_cube();
}

/// What a sweep does with masked scores. Those are told by being equal to the lowest number, never by not being so:
/// comparisons with NaN may say either.
#[cube]
fn take_step<F: Float, N: Size>(
    tiles: &mut Tiles<F, N>,
    share: &mut Share,
    sums: &mut Sums,
    factor: f32,
    unit: usize,
    is_seen: bool,
    #[comptime] sweep: Sweep,
    #[comptime] blueprint: Blueprint,
) {
    if comptime!(sweep == Sweep::Statistics) {
        if is_seen {
            take_statistics(&tiles.scores, share, factor, blueprint);
        }
    } else {
        if is_seen {
            weigh::<F, N>(tiles, share, factor, blueprint);
        }
        sync_cube();
        if is_seen {
            accumulate::<F, N>(tiles, sums, unit / PLANE, blueprint);
        }
    }
    sync_cube();
}

/// Takes this unit's scores into the largest score and the sum of exponentials.
#[cube]
fn take_statistics(
    scores: &[f32],
    share: &mut Share,
    factor: f32,
    #[comptime] blueprint: Blueprint,
) {
    let stripes = comptime!(blueprint.stripes());
    let turns = comptime!(blueprint.columns() / stripes);
    let first = share.scores + share.stripe;
    let mut maximum = share.maximum;
    for turn in 0..turns {
        maximum = max(maximum, scores[first + turn * stripes]);
    }
    let mut sum = share.sum * ((share.maximum - maximum) * factor).exp();
    let offset = -maximum * factor;
    for turn in 0..turns {
        let score = scores[first + turn * stripes];
        let weight = fma(score, factor, offset).exp();
        sum += select(score == f32::min_value(), 0.0f32, weight);
    }
    share.maximum = maximum;
    share.sum = sum;
}

/// Makes weights of this unit's scores.
#[cube]
fn weigh<F: Float, N: Size>(
    tiles: &mut Tiles<F, N>,
    share: &mut Share,
    factor: f32,
    #[comptime] blueprint: Blueprint,
) {
    let stripes = comptime!(blueprint.stripes());
    let offset = -share.maximum * factor;
    let inverse = 1.0 / share.sum;
    for turn in 0..comptime!(blueprint.columns() / stripes) {
        let column = share.stripe + turn * stripes;
        let score = tiles.scores[share.scores + column];
        let weight = fma(score, factor, offset).exp() * inverse;
        let weight = select(score == f32::min_value(), 0.0f32, weight);
        tiles.weights[share.weights + column] = F::cast_from(weight);
    }
}

/// `scores = rows columns^T`, of the plane's rows.
#[cube]
fn score<F: Float, N: Size>(
    tiles: &mut Tiles<F, N>,
    plane: usize,
    #[comptime] blueprint: Blueprint,
) {
    let [m, n, k] = comptime!(blueprint.shape());
    let operand: comptime_type!(Operand) = comptime!(blueprint.first());
    let pitch = comptime!(operand.pitch);
    let stride = comptime!((operand.pitch * operand.vector) as u32);
    let score_pitch = comptime!(blueprint.score_pitch());
    #[unroll]
    for block in 0..comptime!(blueprint.columns() / n) {
        let sum = Matrix::<f32>::from_value(
            MatrixIdent::Accumulator,
            m,
            n,
            k,
            MatrixLayout::Undefined,
            0.0f32,
        );
        #[unroll]
        for piece in 0..comptime!(operand.dim / k) {
            let along = comptime!(piece * k / operand.vector);
            let from = plane * comptime!(m * pitch) + along;
            let left = Matrix::<Vector<F, N>>::from_slice(
                MatrixIdent::A,
                m,
                n,
                k,
                MatrixLayout::RowMajor,
                &tiles.query[from..tiles.query.len()],
                stride,
            );
            let from = comptime!(block * n * pitch + along);
            let right = Matrix::<Vector<F, N>>::from_slice(
                MatrixIdent::B,
                m,
                n,
                k,
                MatrixLayout::ColMajor,
                &tiles.key[from..tiles.key.len()],
                stride,
            );
            cmma::execute(&left, &right, &sum, &sum);
        }
        let to = plane * comptime!(m * score_pitch) + comptime!(block * n);
        let end = tiles.scores.len();
        cmma::store(
            &mut tiles.scores[to..end],
            &sum,
            comptime!(score_pitch as u32),
            MatrixLayout::RowMajor,
        );
    }
}

/// `sums += weights values`, of the plane's rows.
#[cube]
fn accumulate<F: Float, N: Size>(
    tiles: &mut Tiles<F, N>,
    sums: &mut Sums,
    plane: usize,
    #[comptime] blueprint: Blueprint,
) {
    let [m, n, k] = comptime!(blueprint.shape());
    let operand: comptime_type!(Operand) = comptime!(blueprint.second());
    let pitch = comptime!(operand.pitch);
    let weight_pitch = comptime!(blueprint.weight_pitch());
    #[unroll]
    for piece in 0..comptime!(blueprint.columns() / k) {
        let from = plane * comptime!(m * weight_pitch) + comptime!(piece * k);
        let left = Matrix::<F>::from_slice(
            MatrixIdent::A,
            m,
            n,
            k,
            MatrixLayout::RowMajor,
            &tiles.weights[from..tiles.weights.len()],
            comptime!(weight_pitch as u32),
        );
        #[unroll]
        for block in 0..comptime!(operand.dim / n) {
            let from = comptime!(piece * k * pitch + block * n / operand.vector);
            let right = Matrix::<Vector<F, N>>::from_slice(
                MatrixIdent::B,
                m,
                n,
                k,
                MatrixLayout::RowMajor,
                &tiles.value[from..tiles.value.len()],
                comptime!((operand.pitch * operand.vector) as u32),
            );
            let sum = sums.index(block);
            cmma::execute(&left, &right, sum, sum);
        }
    }
}

/// Puts together what the units of a row have found.
#[cube]
fn finish_statistics(
    scores: &mut [f32],
    share: &mut Share,
    factor: f32,
    #[comptime] blueprint: Blueprint,
) {
    let stripes = comptime!(blueprint.stripes());
    scores[share.scores + 2 * share.stripe] = share.maximum;
    scores[share.scores + 2 * share.stripe + 1] = share.sum;
    sync_cube();
    let mut maximum = f32::min_value();
    #[unroll]
    for stripe in 0..stripes {
        maximum = max(maximum, scores[share.scores + comptime!(2 * stripe)]);
    }
    let mut sum = 0.0f32;
    #[unroll]
    for stripe in 0..stripes {
        let part = scores[share.scores + comptime!(2 * stripe + 1)];
        let below = scores[share.scores + comptime!(2 * stripe)] - maximum;
        sum += part * (below * factor).exp();
    }
    share.maximum = maximum;
    share.sum = sum;
    sync_cube();
}

/// Writes the rows that came out finite, and gives what [`repair`] takes of the others.
#[cube]
fn store<F: Float, N: Size, NO: Size>(
    tiles: &mut Tiles<F, N>,
    sums: &Sums,
    share: &Share,
    out: &mut [Vector<F, NO>],
    lse: &mut [f32],
    space: &Space,
    tile: &CubeTile,
    scale: f32,
    first_row: usize,
    lane: usize,
    #[comptime] blueprint: Blueprint,
) -> u32 {
    let columns = comptime!(blueprint.columns());
    let stripes = comptime!(blueprint.stripes());
    let per_plane = comptime!(blueprint.plane_rows());
    let pitch = comptime!(blueprint.score_pitch());
    let size = comptime!(blueprint.vector_out());
    let vectors = comptime!(blueprint.head_dim_v / size);
    let row_lse = share.maximum * scale + share.sum.ln();
    // Finite if every number of the row is.
    let mut residue = row_lse * f32::new(SMALL);
    #[unroll]
    for part in 0..comptime!(blueprint.dim_v().div_ceil(columns)) {
        show::<F, N>(tiles, sums, first_row / per_plane, part, blueprint);
        for turn in 0..comptime!(columns / stripes) {
            let column = share.stripe + turn * stripes;
            if column + comptime!(part * columns) < comptime!(blueprint.head_dim_v) {
                residue += tiles.scores[share.scores + column] * f32::new(SMALL);
            }
        }
        sync_cube();
    }
    // Of the row, by all of its units.
    tiles.scores[share.scores + share.stripe] = residue;
    sync_cube();
    let mut residue = 0.0f32;
    #[unroll]
    for stripe in 0..stripes {
        residue += tiles.scores[share.scores + stripe];
    }
    let is_fine = is_finite(residue);
    let at = tile.position(share.row, blueprint);
    if tile.is_row(&at) && is_fine && share.stripe == 0 {
        lse[space.row_place(tile, &at)] = row_lse;
    }
    // As `repair` takes them: a unit has bits for two rows.
    let mine = select(tile.is_row(&at) && !is_fine, 1u32, 0u32);
    let row = (lane / 4) as u32;
    let mut spoiled = plane_shuffle(mine, row);
    if comptime!(per_plane > 8) {
        spoiled |= plane_shuffle(mine, row + 8) << 1u32;
    }
    sync_cube();
    #[unroll]
    for part in 0..comptime!(blueprint.dim_v().div_ceil(columns)) {
        show::<F, N>(tiles, sums, first_row / per_plane, part, blueprint);
        for turn in 0..comptime!((per_plane * columns / size).div_ceil(PLANE)) {
            let number = lane + turn * PLANE;
            let local = number / comptime!(columns / size);
            let pair = number % comptime!(columns / size);
            let vector = pair + comptime!(part * columns / size);
            let row = first_row + local;
            let at = tile.position(row, blueprint);
            let is_fine = (plane_shuffle(mine, local as u32)) == 0;
            if local < per_plane && vector < vectors && is_fine && tile.is_row(&at) {
                let mut elements = Vector::<f32, NO>::new(0.0f32);
                #[unroll]
                for element in 0..size {
                    elements.insert(element, tiles.scores[row * pitch + pair * size + element]);
                }
                let place = space.row_place(tile, &at);
                out[place * vectors + vector] = Vector::cast_from(elements);
            }
        }
        sync_cube();
    }
    spoiled
}

/// Puts as many columns of the sums as a step has where scores are.
#[cube]
fn show<F: Float, N: Size>(
    tiles: &mut Tiles<F, N>,
    sums: &Sums,
    plane: usize,
    #[comptime] part: usize,
    #[comptime] blueprint: Blueprint,
) {
    let [m, n, _] = comptime!(blueprint.shape());
    let pitch = comptime!(blueprint.score_pitch());
    let blocks = comptime!(blueprint.columns() / n);
    #[unroll]
    for block in 0..blocks {
        if comptime!(part * blocks + block < blueprint.dim_v() / n) {
            let to = plane * comptime!(m * pitch) + comptime!(block * n);
            let end = tiles.scores.len();
            cmma::store(
                &mut tiles.scores[to..end],
                sums.index(comptime!(part * blocks + block)),
                comptime!(pitch as u32),
                MatrixLayout::RowMajor,
            );
        }
    }
    sync_cube();
}
