//! Columns outside a row's window are kept out of it: their scores give way to a number.
//!
//! The windows of the cube's rows lie in shared memory: for each axis its start and its end, as
//! positions. Those of each plane's rows together say which tiles it skips and which need no mask. With one axis, columns are compared with both. With more, a row's window within the tile is
//! a few bits for each axis, and a column is visible where its bit is set along every axis. A column's
//! coordinates are in the bits of its number, of which the lowest three come from the unit.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::blueprint::{Blueprint, COLUMNS, ROWS};
use super::fragments::Fragments;
use super::geometry::Position;
use super::work::Work;
use crate::MAX_RANK;
use crate::cube::{is_inside, write_row_windows, write_window};

/// Words of a row: start and end along each axis.
pub(super) const WORDS: usize = 2 * MAX_RANK;
/// Words of a plane: the start and the end of what any of its rows sees and of what all see, along each axis.
const PLANE_WORDS: usize = 4 * MAX_RANK;

/// Words that the windows of a cube's rows and planes take.
pub(super) fn words(blueprint: &Blueprint) -> usize {
    if blueprint.has_keys { blueprint.rows() * WORDS + blueprint.groups() * PLANE_WORDS } else { 1 }
}

/// One of the two rows of a block that a unit has a share of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Half {
    block: usize,
    half: usize,
}

/// How a plane sees a tile of columns.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Sight {
    /// Where the tile begins.
    pub corner: Position,
    /// Whether any row sees any column.
    pub is_any: bool,
    /// Whether every row sees every column.
    pub is_all: bool,
}
/// Longest tile of columns along an axis that is masked by bits.
const MOST_BITS: i32 = 31;

/// Writes the windows of the cube's rows; those behind the last row are like it.
#[cube]
pub(super) fn write_windows(windows: &mut [u32], work: &Work, #[comptime] blueprint: Blueprint) {
    let (rows, units) = comptime!((blueprint.rows(), blueprint.units()));
    let cut = comptime!(blueprint.cut());
    let (space, tile) = (&work.space, &work.tile);
    write_row_windows(windows, space, tile, work.unit, WORDS, units, cut);
    if work.unit < comptime!(blueprint.groups()) {
        // Rows of a plane are a box, in which the first and the last row have the least and the greatest
        // position along every axis; starts and ends never decrease.
        let of_plane = comptime!(blueprint.plane_rows());
        let first = tile.position(work.unit * of_plane, cut);
        let last = tile.position(work.unit * of_plane + (of_plane - 1), cut);
        let words = rows * WORDS + work.unit * PLANE_WORDS;
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

/// How this unit's plane sees the tile of columns at `corner`.
#[cube]
pub(super) fn sight(
    windows: &[u32],
    corner: &Position,
    work: &Work,
    #[comptime] blueprint: Blueprint,
) -> Sight {
    let words = comptime!(blueprint.rows() * WORDS) + work.group * PLANE_WORDS;
    let tile = comptime!(blueprint.column_tile());
    let mut sight = Sight {
        corner: Position { z: corner.z, y: corner.y, x: corner.x },
        is_any: is_any(windows, words, corner.x, comptime!(tile[2])),
        is_all: is_all(windows, words, corner.x, comptime!(tile[2])),
    };
    if comptime!(blueprint.rank > 1) {
        let size = comptime!(tile[1]);
        sight.is_any = sight.is_any && is_any(windows, words + 4, corner.y, size);
        sight.is_all = sight.is_all && is_all(windows, words + 4, corner.y, size);
    }
    if comptime!(blueprint.rank > 2) {
        let size = comptime!(tile[0]);
        sight.is_any = sight.is_any && is_any(windows, words + 8, corner.z, size);
        sight.is_all = sight.is_all && is_all(windows, words + 8, corner.z, size);
    }
    sight
}

/// Whether any row of the plane with the windows at `word` sees one of `size` columns from `corner` on.
#[cube]
fn is_any(windows: &[u32], word: usize, corner: usize, #[comptime] size: usize) -> bool {
    (corner as u32) < windows[word + 1] && (corner + size) as u32 > windows[word]
}

/// Whether every row sees all of them.
#[cube]
fn is_all(windows: &[u32], word: usize, corner: usize, #[comptime] size: usize) -> bool {
    corner as u32 >= windows[word + 2] && (corner + size) as u32 <= windows[word + 3]
}

/// Puts `masked` in place of scores, of a tile of columns, that rows do not see.
#[cube]
pub(super) fn mask_windows(
    scores: &mut Fragments<f32>,
    masked: f32,
    windows: &[u32],
    corner: &Position,
    work: &Work,
    #[comptime] blueprint: Blueprint,
) {
    #[unroll]
    for block in 0..comptime!(blueprint.blocks) {
        #[unroll]
        for half in 0..2usize {
            let place = comptime!(Half { block, half });
            let row = work.first_row + work.lane / 4 + comptime!(block * ROWS + half * 8);
            let word = row * WORDS;
            if comptime!(blueprint.rank == 1) {
                let line = line(windows, word, corner, work.lane);
                mask_line(scores, masked, &line, place, blueprint);
            } else {
                let bits = unit_bits(windows, word, corner, work.lane, blueprint);
                mask_box(scores, masked, &bits, place, blueprint);
            }
        }
    }
}

/// Puts `masked` in place of scores of columns that are not there: of the tile there are `count`.
#[cube]
pub(super) fn mask_behind(
    scores: &mut Fragments<f32>,
    masked: f32,
    count: usize,
    work: &Work,
    #[comptime] blueprint: Blueprint,
) {
    #[unroll]
    for block in 0..comptime!(blueprint.blocks) {
        #[unroll]
        for half in 0..2usize {
            let first = (work.lane % 4 * 2) as i32;
            let line = Line { start: 0i32 - first, end: count as i32 - first };
            mask_line(scores, masked, &line, comptime!(Half { block, half }), blueprint);
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

/// Columns of a tile that one row sees, from this unit's first one on.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Line {
    start: i32,
    end: i32,
}

/// The same with more than one axis: a bit for each coordinate, from this unit's first column on.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Bits {
    x: u32,
    y: u32,
    z: u32,
}

#[cube]
fn line(windows: &[u32], word: usize, corner: &Position, lane: usize) -> Line {
    let start = windows[word] as i32 - corner.x as i32;
    let end = windows[word + 1] as i32 - corner.x as i32;
    let first = (lane % 4 * 2) as i32;
    Line { start: start - first, end: end - first }
}

#[cube]
fn unit_bits(
    windows: &[u32],
    word: usize,
    corner: &Position,
    lane: usize,
    #[comptime] blueprint: Blueprint,
) -> Bits {
    let [_, size_y, size_x] = comptime!(blueprint.column_tile());
    // The unit's first column in every matrix.
    let first = lane % 4 * 2;
    let x = bits(windows, word, corner.x) >> (first % size_x) as u32;
    let y = bits(windows, word + 2, corner.y) >> (first / size_x % size_y) as u32;
    let mut z = 1u32;
    if comptime!(blueprint.rank > 2) {
        z = bits(windows, word + 4, corner.z) >> (first / comptime!(size_x * size_y)) as u32;
    }
    Bits { x, y, z }
}

#[cube]
fn mask_line(
    scores: &mut Fragments<f32>,
    masked: f32,
    line: &Line,
    #[comptime] place: Half,
    #[comptime] blueprint: Blueprint,
) {
    let matrices = comptime!(blueprint.columns() / COLUMNS);
    #[unroll]
    for matrix in 0..matrices {
        let fragment = scores.index_mut(comptime!(place.block * matrices + matrix));
        let mut pair = fragment[comptime!(place.half)];
        #[unroll]
        for element in 0..2usize {
            let column = comptime!((matrix * COLUMNS + element) as i32);
            let visible = column >= line.start && column < line.end;
            pair.insert(element, select(visible, pair.extract(element), masked));
        }
        fragment[comptime!(place.half)] = pair;
    }
}

#[cube]
fn mask_box(
    scores: &mut Fragments<f32>,
    masked: f32,
    bits: &Bits,
    #[comptime] place: Half,
    #[comptime] blueprint: Blueprint,
) {
    let size_x = comptime!(blueprint.column_tile()[2]);
    let size_y = comptime!(blueprint.column_tile()[1]);
    let line = comptime!(size_x * size_y);
    let matrices = comptime!(blueprint.columns() / COLUMNS);
    #[unroll]
    for matrix in 0..matrices {
        let column = comptime!(matrix * COLUMNS);
        let mut line_bit = bits.y >> comptime!((column / size_x % size_y) as u32);
        if comptime!(blueprint.rank > 2) {
            line_bit &= bits.z >> comptime!((column / line) as u32);
        }
        let visible = bits.x >> comptime!((column % size_x) as u32);
        let visible = select(line_bit & 1 == 1, visible, 0u32);
        let fragment = scores.index_mut(comptime!(place.block * matrices + matrix));
        let mut pair = fragment[comptime!(place.half)];
        #[unroll]
        for element in 0..2usize {
            let is_visible = visible & comptime!(1u32 << element) != 0;
            pair.insert(element, select(is_visible, pair.extract(element), masked));
        }
        fragment[comptime!(place.half)] = pair;
    }
}

/// A bit for each position of a tile that begins at `corner`, set inside the window at `word`.
#[cube]
fn bits(windows: &[u32], word: usize, corner: usize) -> u32 {
    let start = (windows[word] as i32 - corner as i32).clamp(0, MOST_BITS);
    let end = (windows[word + 1] as i32 - corner as i32).clamp(0, MOST_BITS);
    (u32::MAX << start as u32) & !(u32::MAX << end as u32)
}
