//! Rows that units of a cube share.

// `#[cube]` adds items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::RowTile;

/// Where a unit is in its cube.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Place {
    pub lane: usize,
    pub slot: usize,
}

#[cube]
pub(super) fn place(#[comptime] tile: RowTile) -> Place {
    let unit = UNIT_POS as usize;
    Place { lane: unit % comptime!(tile.lanes), slot: unit / comptime!(tile.lanes) }
}

/// The vectors of a row that a unit holds; zeros where there is none.
#[cube]
pub(super) fn load<F: Float, N: Size>(
    from: &[Vector<F, N>],
    first: usize,
    is_there: bool,
    lane: usize,
    #[comptime] tile: RowTile,
) -> Array<Vector<f32, N>> {
    let mut row = Array::<Vector<f32, N>>::new(comptime!(tile.held()));
    #[unroll]
    for i in 0..comptime!(tile.held()) {
        let line = lane + i * comptime!(tile.lanes);
        row[i] = Vector::new(0.0f32);
        if is_there && is_line(line, tile) {
            row[i] = Vector::cast_from(from[first + line]);
        }
    }
    row
}

#[cube]
pub(super) fn is_line(line: usize, #[comptime] tile: RowTile) -> bool {
    if comptime!(tile.is_ragged()) { line < comptime!(tile.lines) } else { true.runtime() }
}
