//! One axis: the tile of rows that a cube owns along it, and the columns that they see.

// `#[cube]` and `CubeLaunch` add items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::cut::Cut;
use super::walk::nearest;
use crate::Axis;
use crate::window::{group_length, visitor_end, visitor_start, window_end, window_start};

/// One axis: lengths and parameters at run time, so that they do not cost a compilation.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct AxisSpace {
    pub rows: usize,
    pub columns: usize,
    kernel_size: usize,
    stride: usize,
    pub dilation: usize,
    /// Tiles of rows of a dilation group; the last may be missing in some groups.
    pub tiles: usize,
    #[cube(comptime)]
    is_causal: bool,
    /// Whether rows are keys.
    #[cube(comptime)]
    is_inverse: bool,
}

/// What a cube owns along one axis: some rows of one dilation group, and the columns that they see.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct AxisTile {
    pub group: usize,
    /// Position of the first row.
    pub row: usize,
    /// Rows of the group.
    pub rows: usize,
    /// Columns of the group.
    pub columns: usize,
    /// Position of the first column that any row sees.
    pub column: usize,
    /// Tiles of columns from there on.
    pub count: usize,
}

/// Positions along one axis.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct Interval {
    pub start: usize,
    pub end: usize,
}

#[cube]
impl AxisSpace {
    /// The tile of rows number `index`, groups first, and its columns.
    pub fn tile(
        &self,
        index: usize,
        #[comptime] row_tile: usize,
        #[comptime] column_tile: usize,
    ) -> AxisTile {
        let group = index / self.tiles;
        let row = (index % self.tiles) * row_tile;
        let rows = group_length(self.rows, self.dilation, group);
        let columns = group_length(self.columns, self.dilation, group);
        let mut tile = AxisTile { group, row, rows, columns, column: 0usize, count: 0usize };
        if row < rows && columns > 0 {
            let mut last = row + (row_tile - 1);
            if last > rows - 1 {
                last = rows - 1;
            }
            // Starts and ends never decrease, so that the first and the last row bound all others.
            let first_start = self.start(row, columns);
            let last_start = self.start(last, columns);
            let last_end = self.end(last, last_start, rows, columns);
            tile.column = first_start;
            if last_end > first_start {
                tile.count = (last_end - first_start).div_ceil(column_tile);
            }
        }
        tile
    }

    /// The columns that every row of the tile sees; none where the end is not behind the start.
    pub fn common(&self, tile: &AxisTile, #[comptime] row_tile: usize) -> Interval {
        let last = nearest(tile.row + (row_tile - 1), tile.rows - 1);
        let start = self.start(tile.row, tile.columns);
        Interval {
            start: self.start(last, tile.columns),
            end: self.end(tile.row, start, tile.rows, tile.columns),
        }
    }

    /// The columns that the row at `position` sees.
    pub fn sees(&self, tile: &AxisTile, position: usize) -> Interval {
        let start = self.start(position, tile.columns);
        Interval { start, end: self.end(position, start, tile.rows, tile.columns) }
    }

    /// First column that the row at `position` sees, of `columns`.
    pub fn start(&self, position: usize, columns: usize) -> usize {
        let (kernel_size, stride) = (self.kernel_size, self.stride);
        let is_causal = comptime!(self.is_causal);
        if comptime!(self.is_inverse) {
            visitor_start(position, columns, kernel_size, stride, is_causal)
        } else {
            window_start(position, columns, kernel_size, stride, is_causal)
        }
    }

    /// One past the last column that it sees.
    pub fn end(&self, position: usize, start: usize, rows: usize, columns: usize) -> usize {
        let (kernel_size, stride) = (self.kernel_size, self.stride);
        let is_causal = comptime!(self.is_causal);
        if comptime!(self.is_inverse) {
            visitor_end(position, columns, rows, kernel_size, stride, is_causal)
        } else {
            window_end(position + 1, start, columns, kernel_size, is_causal)
        }
    }
}

impl AxisSpace {
    /// Launch argument for axis number `index`.
    pub fn argument(axis: &Axis, index: usize, cut: &Cut) -> AxisSpaceLaunch {
        let [rows, columns] = cut.sides(axis);
        let Axis { kernel_size, stride, dilation, is_causal, .. } = *axis;
        let tiles = cut.tiles(axis, index);
        AxisSpaceLaunch::new(
            rows,
            columns,
            kernel_size,
            stride,
            dilation,
            tiles,
            is_causal,
            cut.is_inverse,
        )
    }

    /// What a kernel is compiled for in its place.
    #[cfg(feature = "cuda")]
    pub fn compilation(is_causal: bool, is_inverse: bool) -> AxisSpaceCompilationArg {
        AxisSpaceCompilationArg {
            rows: (),
            columns: (),
            kernel_size: (),
            stride: (),
            dilation: (),
            tiles: (),
            is_causal,
            is_inverse,
        }
    }
}
