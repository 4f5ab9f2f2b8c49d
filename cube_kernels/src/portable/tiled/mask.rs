//! Which columns a row sees, as bits.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::super::blueprint::Blueprint;
use super::source::Work;
use crate::MAX_RANK;
use crate::cube::{Interval, Position, is_inside, write_row_windows};

/// What keeps columns of a step out of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Mask {
    /// The rows' windows.
    Windows,
    /// The number of additional tokens, which every row sees.
    Count,
}

impl Mask {
    /// Columns of a step along each axis.
    pub fn column_tile(self, blueprint: &Blueprint) -> [usize; MAX_RANK] {
        match self {
            Mask::Windows => blueprint.column_tile(),
            Mask::Count => [1, 1, blueprint.columns()],
        }
    }
}

/// What rows see of a step's columns.
#[derive(CubeType)]
pub(super) struct Sight {
    /// Where the columns begin.
    pub corner: Position,
    /// Whether every row sees every column.
    pub is_all: bool,
    #[cube(comptime)]
    pub mask: Mask,
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
pub(super) fn write_windows(windows: &mut [u32], work: &Work, #[comptime] blueprint: Blueprint) {
    let (words, units) = comptime!((blueprint.window_words(), blueprint.units()));
    let cut = comptime!(blueprint.cut());
    write_row_windows(windows, &work.space, &work.tile, work.unit, words, units, cut);
}

#[cube]
pub(super) fn common(work: &Work, #[comptime] blueprint: Blueprint) -> Common {
    let [size_z, size_y, size_x] = comptime!(blueprint.row_tile());
    Common {
        z: work.space.z.common(&work.tile.z, size_z),
        y: work.space.y.common(&work.tile.y, size_y),
        x: work.space.x.common(&work.tile.x, size_x),
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

/// A bit for each of this unit's columns, the first one lowest, set if row number `row` sees it.
#[cube]
pub(super) fn seen(
    windows: &[u32],
    sight: &Sight,
    row: usize,
    work: &Work,
    #[comptime] blueprint: Blueprint,
) -> u32 {
    let corner = &sight.corner;
    let first = work.unit % comptime!(blueprint.across) * comptime!(blueprint.columns_each);
    if comptime!(sight.mask == Mask::Count) {
        bits(0usize, work.space.additional, corner.x + first, blueprint)
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

/// Whether row number `row` sees no column, but for additional tokens.
#[cube]
pub(super) fn sees_nothing(windows: &[u32], row: usize, #[comptime] blueprint: Blueprint) -> bool {
    let word = row * comptime!(blueprint.window_words());
    let mut is_empty = windows[word] >= windows[word + 1];
    if comptime!(blueprint.rank > 1) {
        is_empty = is_empty || windows[word + 2] >= windows[word + 3];
    }
    if comptime!(blueprint.rank > 2) {
        is_empty = is_empty || windows[word + 4] >= windows[word + 5];
    }
    is_empty
}

/// A bit for each of a unit's columns from position `first` on, set inside `start..end`.
#[cube]
fn bits(start: usize, end: usize, first: usize, #[comptime] blueprint: Blueprint) -> u32 {
    let most = comptime!(blueprint.columns_each as i32);
    let start = (start as i32 - first as i32).clamp(0, most);
    let end = (end as i32 - first as i32).clamp(0, most);
    (u32::MAX << start as u32) & !(u32::MAX << end as u32)
}
