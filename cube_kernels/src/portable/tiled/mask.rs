//! Which columns a row sees, as bits.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs, clippy::too_many_arguments)]

use cubecl::prelude::*;

use super::super::blueprint::Blueprint;
use crate::tiles::{CubeTile, Interval, Position, Space, is_inside, write_row_windows};

/// What keeps columns of a step out of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Mask {
    /// The rows' windows.
    Windows,
    /// The number of additional tokens, which every row sees.
    Count,
}

/// The columns that every row of the cube sees: an interval along each axis.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Common {
    z: Interval,
    y: Interval,
    x: Interval,
}

/// Writes the windows of the cube's rows; those behind the last row are like it.
#[cube]
pub(super) fn write_windows(
    windows: &mut [u32],
    space: &Space,
    tile: &CubeTile,
    unit: usize,
    #[comptime] blueprint: Blueprint,
) {
    let (rows, units) = comptime!((blueprint.rows(), blueprint.units()));
    let (words, cut) = comptime!((blueprint.window_words(), blueprint.cut()));
    write_row_windows(windows, space, tile, unit, rows, units, words, cut);
}

#[cube]
pub(super) fn common(space: &Space, tile: &CubeTile, #[comptime] blueprint: Blueprint) -> Common {
    let [size_z, size_y, size_x] = comptime!(blueprint.row_tile());
    Common {
        z: space.z.common(&tile.z, size_z),
        y: space.y.common(&tile.y, size_y),
        x: space.x.common(&tile.x, size_x),
    }
}

/// Whether every row sees every column of the tile at `corner`.
#[cube]
pub(super) fn is_common(
    common: &Common,
    corner: &Position,
    #[comptime] blueprint: Blueprint,
) -> bool {
    let [size_z, size_y, size_x] = comptime!(blueprint.column_tile());
    let mut is_common = corner.x >= common.x.start && corner.x + size_x <= common.x.end;
    if comptime!(blueprint.rank > 1) {
        is_common = is_common && corner.y >= common.y.start && corner.y + size_y <= common.y.end;
    }
    if comptime!(blueprint.rank > 2) {
        is_common = is_common && corner.z >= common.z.start && corner.z + size_z <= common.z.end;
    }
    is_common
}

/// A bit for each of this unit's columns of the tile at `corner`, the first one lowest, set if row number
/// `row` sees it. Additional tokens are seen as far as there are `count`.
#[cube]
pub(super) fn seen(
    windows: &[u32],
    corner: &Position,
    count: usize,
    row: usize,
    unit: usize,
    #[comptime] mask: Mask,
    #[comptime] blueprint: Blueprint,
) -> u32 {
    let first = unit % comptime!(blueprint.across) * comptime!(blueprint.columns_each);
    if comptime!(mask == Mask::Count) {
        bits(0usize, count, corner.x + first, blueprint)
    } else {
        // A unit's columns are neighbors along the fastest axis.
        let [_, size_y, size_x] = comptime!(blueprint.column_tile());
        let word = row * comptime!(blueprint.window_words());
        let start = windows[word] as usize;
        let mut seen =
            bits(start, windows[word + 1] as usize, corner.x + first % size_x, blueprint);
        if comptime!(blueprint.rank > 1) {
            let y = corner.y + first / size_x % size_y;
            seen = select(is_inside(windows, word + 2, y), seen, 0u32);
        }
        if comptime!(blueprint.rank > 2) {
            let z = corner.z + first / comptime!(size_x * size_y);
            seen = select(is_inside(windows, word + 4, z), seen, 0u32);
        }
        seen
    }
}

/// A bit for each of a unit's columns from position `first` on, set inside `start..end`.
#[cube]
fn bits(start: usize, end: usize, first: usize, #[comptime] blueprint: Blueprint) -> u32 {
    let most = comptime!(blueprint.columns_each as i32);
    let start = (start as i32 - first as i32).clamp(0, most);
    let end = (end as i32 - first as i32).clamp(0, most);
    (u32::MAX << start as u32) & !(u32::MAX << end as u32)
}
