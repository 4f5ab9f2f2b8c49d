//! Columns outside a row's window are kept out of it: their scores give way to a number.
//!
//! The windows of the cube's rows lie in shared memory: for each axis its start and its end, as
//! positions. Those of each plane's rows together say which tiles it skips and which need no mask. With one axis, columns are compared with both. With more, a row's window within the tile is
//! a few bits for each axis, and a column is visible where its bit is set along every axis. A column's
//! coordinates are in the bits of its number, of which the lowest three come from the unit.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs, clippy::too_many_arguments)]

use cubecl::prelude::*;

use super::blueprint::{Blueprint, COLUMNS, ROWS};
use super::geometry::{CubeTile, Position, Space};
use super::products::Fragments;
use crate::MAX_RANK;
use crate::tiles::{is_inside, write_row_windows, write_window};

/// Words of a row: start and end along each axis.
pub(super) const WORDS: usize = 2 * MAX_RANK;
/// Words of a plane: the start and the end of what any of its rows sees and of what all see, along each axis.
const PLANE_WORDS: usize = 4 * MAX_RANK;

/// Words that the windows of a cube's rows and planes take.
pub(super) fn words(blueprint: &Blueprint) -> usize {
    blueprint.rows() * WORDS + blueprint.groups() * PLANE_WORDS
}

/// How a plane sees a tile of columns.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Sight {
    /// Whether any row sees any column.
    pub is_any: bool,
    /// Whether every row sees every column.
    pub is_all: bool,
}
/// Longest tile of columns along an axis that is masked by bits.
const MOST_BITS: i32 = 31;

/// Writes the windows of the cube's rows; those behind the last row are like it.
#[cube]
pub(super) fn write_windows(
    windows: &mut [u32],
    space: &Space,
    tile: &CubeTile,
    unit: usize,
    #[comptime] blueprint: Blueprint,
) {
    let rows = comptime!(blueprint.rows());
    let (units, cut) = comptime!((blueprint.units(), blueprint.cut()));
    write_row_windows(windows, space, tile, unit, rows, units, WORDS, cut);
    if unit < comptime!(blueprint.groups()) {
        // Rows of a plane are a box, in which the first and the last row have the least and the greatest
        // position along every axis; starts and ends never decrease.
        let of_plane = comptime!(blueprint.plane_rows());
        let first = tile.position(unit * of_plane, comptime!(blueprint.cut()));
        let last = tile.position(unit * of_plane + (of_plane - 1), comptime!(blueprint.cut()));
        let words = rows * WORDS + unit * PLANE_WORDS;
        write_window(windows, words, words + 3, &space.x, &tile.x, first.x);
        write_window(windows, words + 2, words + 1, &space.x, &tile.x, last.x);
        if comptime!(blueprint.rank > 1) {
            write_window(windows, words + 4, words + 7, &space.y, &tile.y, first.y);
            write_window(windows, words + 6, words + 5, &space.y, &tile.y, last.y);
        }
        if comptime!(blueprint.rank > 2) {
            write_window(windows, words + 8, words + 11, &space.z, &tile.z, first.z);
            write_window(windows, words + 10, words + 9, &space.z, &tile.z, last.z);
        }
    }
}

/// How a plane, of those that own different rows number `plane`, sees the tile of columns at `corner`.
#[cube]
pub(super) fn sight(
    windows: &[u32],
    corner: &Position,
    plane: usize,
    #[comptime] blueprint: Blueprint,
) -> Sight {
    let words = comptime!(blueprint.rows() * WORDS) + plane * PLANE_WORDS;
    let tile = comptime!(blueprint.column_tile());
    let mut sight = sight_along(windows, words, corner.x, comptime!(tile[2]));
    if comptime!(blueprint.rank > 1) {
        let along_y = sight_along(windows, words + 4, corner.y, comptime!(tile[1]));
        sight.is_any = sight.is_any && along_y.is_any;
        sight.is_all = sight.is_all && along_y.is_all;
    }
    if comptime!(blueprint.rank > 2) {
        let along_z = sight_along(windows, words + 8, corner.z, comptime!(tile[0]));
        sight.is_any = sight.is_any && along_z.is_any;
        sight.is_all = sight.is_all && along_z.is_all;
    }
    sight
}

#[cube]
fn sight_along(windows: &[u32], word: usize, corner: usize, #[comptime] size: usize) -> Sight {
    let first = corner as u32;
    let end = (corner + size) as u32;
    Sight {
        is_any: first < windows[word + 1] && end > windows[word],
        is_all: first >= windows[word + 2] && end <= windows[word + 3],
    }
}

/// Puts `masked` in place of scores, of the tile of columns at `corner`, that rows do not see.
#[cube]
pub(super) fn mask_windows(
    scores: &mut Fragments<f32>,
    masked: f32,
    windows: &[u32],
    corner: &Position,
    first_row: usize,
    lane: usize,
    #[comptime] blueprint: Blueprint,
) {
    #[unroll]
    for block in 0..comptime!(blueprint.blocks) {
        #[unroll]
        for half in 0..2usize {
            let row = first_row + lane / 4 + comptime!(block * ROWS + half * 8);
            let word = row * WORDS;
            if comptime!(blueprint.rank == 1) {
                let start = windows[word] as i32 - corner.x as i32;
                let end = windows[word + 1] as i32 - corner.x as i32;
                mask_line(scores, masked, start, end, lane, block, half, blueprint);
            } else {
                mask_box(scores, masked, windows, word, corner, lane, block, half, blueprint);
            }
        }
    }
}

/// Whether the row with the window at `word` sees a column of the tile at `corner`.
#[cube]
pub(super) fn sees(
    windows: &[u32],
    word: usize,
    corner: &Position,
    column: usize,
    #[comptime] blueprint: Blueprint,
) -> bool {
    let [_, size_y, size_x] = comptime!(blueprint.column_tile());
    let mut is_visible = is_inside(windows, word, corner.x + column % size_x);
    if comptime!(blueprint.rank > 1) {
        is_visible =
            is_visible && is_inside(windows, word + 2, corner.y + column / size_x % size_y);
    }
    if comptime!(blueprint.rank > 2) {
        let z = corner.z + column / comptime!(size_x * size_y);
        is_visible = is_visible && is_inside(windows, word + 4, z);
    }
    is_visible
}

/// Masks columns outside `start..end` of one row.
#[cube]
pub(super) fn mask_line(
    scores: &mut Fragments<f32>,
    masked: f32,
    start: i32,
    end: i32,
    lane: usize,
    #[comptime] block: usize,
    #[comptime] half: usize,
    #[comptime] blueprint: Blueprint,
) {
    let matrices = comptime!(blueprint.columns() / COLUMNS);
    let first = (lane % 4 * 2) as i32;
    let start = start - first;
    let end = end - first;
    #[unroll]
    for matrix in 0..matrices {
        let fragment = scores.index_mut(comptime!(block * matrices + matrix));
        let mut pair = fragment[half];
        #[unroll]
        for element in 0..2usize {
            let column = comptime!((matrix * COLUMNS + element) as i32);
            let visible = column >= start && column < end;
            pair.insert(element, select(visible, pair.extract(element), masked));
        }
        fragment[half] = pair;
    }
}

#[cube]
fn mask_box(
    scores: &mut Fragments<f32>,
    masked: f32,
    windows: &[u32],
    word: usize,
    corner: &Position,
    lane: usize,
    #[comptime] block: usize,
    #[comptime] half: usize,
    #[comptime] blueprint: Blueprint,
) {
    let size_x = comptime!(blueprint.column_tile()[2]);
    let size_y = comptime!(blueprint.column_tile()[1]);
    let line = comptime!(size_x * size_y);
    let matrices = comptime!(blueprint.columns() / COLUMNS);
    // The unit's first column in every matrix.
    let first = lane % 4 * 2;
    let along_x = bits(windows, word, corner.x) >> (first % size_x) as u32;
    let along_y = bits(windows, word + 2, corner.y) >> (first / size_x % size_y) as u32;
    let mut along_z = 1u32;
    if comptime!(blueprint.rank > 2) {
        along_z = bits(windows, word + 4, corner.z) >> (first / line) as u32;
    }
    #[unroll]
    for matrix in 0..matrices {
        let column = comptime!(matrix * COLUMNS);
        let mut line_bit = along_y >> comptime!((column / size_x % size_y) as u32);
        if comptime!(blueprint.rank > 2) {
            line_bit &= along_z >> comptime!((column / line) as u32);
        }
        let visible = along_x >> comptime!((column % size_x) as u32);
        let visible = select(line_bit & 1 == 1, visible, 0u32);
        let fragment = scores.index_mut(comptime!(block * matrices + matrix));
        let mut pair = fragment[half];
        #[unroll]
        for element in 0..2usize {
            let is_visible = visible & comptime!(1u32 << element) != 0;
            pair.insert(element, select(is_visible, pair.extract(element), masked));
        }
        fragment[half] = pair;
    }
}

/// A bit for each position of a tile that begins at `corner`, set inside the window at `word`.
#[cube]
fn bits(windows: &[u32], word: usize, corner: usize) -> u32 {
    let start = (windows[word] as i32 - corner as i32).clamp(0, MOST_BITS);
    let end = (windows[word + 1] as i32 - corner as i32).clamp(0, MOST_BITS);
    (u32::MAX << start as u32) & !(u32::MAX << end as u32)
}
