//! The windows of a cube's rows, in shared memory.

// `#[cube]` and `CubeLaunch` add items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::axis::{AxisSpace, AxisTile};
use super::cut::Cut;
use super::space::{CubeTile, Space};
use super::walk::nearest;

/// Writes the start and the end of the window of the row at a position.
#[cube]
pub(crate) fn write_window(
    windows: &mut [u32],
    start_word: usize,
    end_word: usize,
    axis: &AxisSpace,
    tile: &AxisTile,
    position: usize,
) {
    let seen = axis.sees(tile, nearest(position, tile.rows - 1));
    windows[start_word] = seen.start as u32;
    windows[end_word] = seen.end as u32;
}

/// Writes the windows of a cube's rows, of each its start and its end along the axes, the fastest first, in `words` words; those
/// behind the last row are like it.
#[cube]
pub(crate) fn write_row_windows(
    windows: &mut [u32],
    space: &Space,
    tile: &CubeTile,
    unit: usize,
    #[comptime] words: usize,
    #[comptime] units: usize,
    #[comptime] cut: Cut,
) {
    let rows = comptime!(cut.row_tile.iter().product::<usize>());
    for turn in 0..comptime!(rows.div_ceil(units)) {
        let row = unit + turn * units;
        if row < rows {
            let at = tile.position(row, cut);
            let word = row * words;
            write_window(windows, word, word + 1, &space.x, &tile.x, at.x);
            if comptime!(cut.rank > 1) {
                write_window(windows, word + 2, word + 3, &space.y, &tile.y, at.y);
            }
            if comptime!(cut.rank > 2) {
                write_window(windows, word + 4, word + 5, &space.z, &tile.z, at.z);
            }
        }
    }
}

/// Whether a position is in the window that begins at `word`.
#[cube]
pub(crate) fn is_inside(windows: &[u32], word: usize, position: usize) -> bool {
    position >= windows[word] as usize && position < windows[word + 1] as usize
}
