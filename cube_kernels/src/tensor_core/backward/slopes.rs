//! The gradient of the position bias: gradients of scores, slopes, summed by the distance of query and key.
//!
//! Each plane writes the slopes of eight rows and a tile of columns to shared memory of its own, one row under the other by
//! distance, so that sums are those of columns, and adds these to sums of its own. In the end a cube adds up those of its
//! planes, and writes a row of them, `[batch, heads, tiles, entries]`. The rows are added up by
//! [`reduce`](crate::portable::reduce_tiles). All in a fixed order, without atomics.
//!
//! What a row does not see has been masked, so that its slopes are zeros.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::super::blueprint::{Blueprint, COLUMNS, PLANE, ROWS};
use super::super::fragments::Fragments;
use super::super::geometry::{Position, Space};
use super::super::near::{EIGHT, Near};
use super::super::work::Work;

/// Slopes and sums of all planes; nothing where the kernel sums none.
pub(super) type Slopes = Sequence<Shared<[f32]>>;

/// Zeros: some distances none of the rows ever has, and nothing is written there.
#[cube]
pub(super) fn slopes(work: &Work, #[comptime] blueprint: Blueprint) -> Slopes {
    let mut slopes = Sequence::new();
    if comptime!(blueprint.bias_sums > 0) {
        let (words, units) = comptime!((blueprint.sums_words(), blueprint.units()));
        let mut memory = Shared::<[f32]>::new_slice(words);
        for turn in 0..comptime!(words.div_ceil(units)) {
            let at = turn * units + work.unit;
            if at < words {
                memory[at] = 0.0f32;
            }
        }
        slopes.push(memory);
    }
    slopes
}

/// Adds the gradients of the scores of the plane's rows with the tile of columns at `corner` to the plane's sums.
#[cube]
pub(super) fn add_slopes(
    memory: &mut [f32],
    gradients: &Fragments<f32>,
    corner: &Position,
    work: &Work,
    #[comptime] blueprint: Blueprint,
) {
    let (near, cut) = comptime!((blueprint.near(), blueprint.cut()));
    let count = comptime!(near.count());
    let [of_slopes, of_sums] = comptime!(blueprint.slope_words());
    let matrices = comptime!(blueprint.columns() / COLUMNS);
    let first = work.group * comptime!(of_slopes + of_sums);
    let eighth = work.lane / 4;
    let to = first + eighth * count + comptime!(near.last_row()) + column_place(work.lane, near)
        - row_place(eighth, near);
    #[unroll]
    for row in 0..comptime!(2 * blueprint.blocks) {
        let (block, half) = comptime!((row / 2, row % 2));
        let number = work.first_row + comptime!(block * ROWS + half * EIGHT);
        let is_row = work.tile.is_row(&work.tile.position(number + eighth, cut));
        #[unroll]
        for matrix in 0..matrices {
            let pair = gradients.index(comptime!(block * matrices + matrix))[half];
            #[unroll]
            for element in 0..2usize {
                let column = comptime!(near.column(matrix * COLUMNS + element));
                memory[to + column] = select(is_row, pair.extract(element), 0.0f32);
            }
        }
        sync_plane();
        let corner_row = work.tile.position(number, cut);
        #[unroll]
        for turn in 0..comptime!(count.div_ceil(PLANE)) {
            let place = work.lane + comptime!(turn * PLANE);
            if place < count {
                let mut sum = 0.0f32;
                #[unroll]
                for row in 0..EIGHT {
                    sum += memory[first + comptime!(row * count) + place];
                }
                let entry = entry(&work.space, &corner_row, corner, place, near);
                if entry.exists {
                    memory[first + of_slopes + entry.place as usize] += sum;
                }
            }
        }
        sync_plane();
    }
}

/// Where a sum belongs. Where no row sees as far there is no entry.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Entry {
    place: u32,
    exists: bool,
}

/// That of distance number `number` between eight rows, the first of which is at `row`, and the columns at `column`. What is
/// below zero wraps.
#[cube]
fn entry(
    space: &Space,
    row: &Position,
    column: &Position,
    number: usize,
    #[comptime] near: Near,
) -> Entry {
    let [_, along_y, along_x] = comptime!(near.lengths());
    let [back_z, back_y, back_x] = comptime!(near.rows.map(|length| length as u32 - 1));
    let far_z = (column.z + number / comptime!(along_x * along_y)) as u32 - row.z as u32;
    let far_y = (column.y + number / along_x % along_y) as u32 - row.y as u32;
    let far_x = (column.x + number % along_x) as u32 - row.x as u32;
    let z = space.z.no_distance() + far_z - back_z;
    let y = space.y.no_distance() + far_y - back_y;
    let x = space.x.no_distance() + far_x - back_x;
    let (of_z, of_y, of_x) = (space.z.distances(), space.y.distances(), space.x.distances());
    Entry { place: (z * of_y + y) * of_x + x, exists: z < of_z && y < of_y && x < of_x }
}

/// Where the unit's first column stands among the distances.
#[cube]
fn column_place(lane: usize, #[comptime] near: Near) -> usize {
    let [_, y, x] = comptime!(near.columns);
    let [_, along_y, along_x] = comptime!(near.lengths());
    let column = lane % 4 * 2;
    (column / comptime!(x * y) * along_y + column / x % y) * along_x + column % x
}

/// The same of a row.
#[cube]
fn row_place(row: usize, #[comptime] near: Near) -> usize {
    let [_, y, x] = comptime!(near.rows);
    let [_, along_y, along_x] = comptime!(near.lengths());
    (row / comptime!(x * y) * along_y + row / x % y) * along_x + row % x
}

/// Entries of a head.
#[cube]
fn entries(space: &Space) -> usize {
    (space.z.distances() * space.y.distances() * space.x.distances()) as usize
}

/// Zeros in place of the cube's sums: those of one without rows.
#[cube]
pub(super) fn clear_sums(to: &mut [f32], space: &Space, #[comptime] blueprint: Blueprint) {
    let units = comptime!(blueprint.units());
    let entries = entries(space);
    if CUBE_POS < space.cubes {
        for turn in 0..comptime!(blueprint.bias_sums.div_ceil(units)) {
            let at = turn * units + UNIT_POS as usize;
            if at < entries {
                to[CUBE_POS * entries + at] = 0.0f32;
            }
        }
    }
}

/// Writes the sums of all planes, who have met behind the last step.
#[cube]
pub(super) fn store_sums(
    memory: &[f32],
    to: &mut [f32],
    work: &Work,
    #[comptime] blueprint: Blueprint,
) {
    let (planes, units) = comptime!((blueprint.planes, blueprint.units()));
    let [of_slopes, of_sums] = comptime!(blueprint.slope_words());
    let entries = entries(&work.space);
    for turn in 0..comptime!(of_sums.div_ceil(units)) {
        let at = turn * units + work.unit;
        if at < entries {
            let mut sum = 0.0f32;
            #[unroll]
            for plane in 0..planes {
                sum += memory[comptime!(plane * (of_slopes + of_sums) + of_slopes) + at];
            }
            to[CUBE_POS * entries + at] = sum;
        }
    }
}
