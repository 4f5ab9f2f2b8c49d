//! One axis: the tile of rows that a cube owns along it, and the columns that they see.

// `#[cube]` and `CubeLaunch` add items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::cut::Cut;
use super::walk::nearest;
use crate::window::{group_length, shifted, visitor_end, visitor_start, window_end, window_start};
use crate::{Axis, MAX_RANK, Problem};

/// Words of an axis in the [table](super::packed) of a packed batch.
pub(crate) const AXIS_WORDS: usize = 8;

/// One axis: lengths and parameters at run time, so that they do not cost a compilation.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct AxisSpace {
    pub rows: usize,
    pub columns: usize,
    kernel_size: usize,
    stride: usize,
    pub dilation: usize,
    /// By how many positions queries stand ahead of keys of the same number. Read where there is an origin, or a bias, only.
    ahead: usize,
    /// By how many they stand behind them; one of both is 0.
    behind: usize,
    /// Tiles of rows of a dilation group; the last may be missing in some groups.
    pub tiles: usize,
    #[cube(comptime)]
    is_causal: bool,
    /// Whether queries may stand elsewhere than keys of the same number.
    #[cube(comptime)]
    has_origin: bool,
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
impl Interval {
    /// How many positions there are.
    pub fn length(&self) -> usize {
        self.end - self.start
    }
}

#[cube]
impl AxisSpace {
    /// Axis number `index` of a sequence, the axes of which begin at a word of the table.
    pub fn of_sequence(
        table: &[u32],
        axes: usize,
        #[comptime] index: usize,
        #[comptime] cut: Cut,
    ) -> AxisSpace {
        let is_causal = comptime!(cut.is_causal[index]);
        let Cut { has_origin, is_inverse, .. } = comptime!(cut);
        if comptime!(index + cut.rank < MAX_RANK) {
            // All sequences have one member along it.
            AxisSpace {
                rows: 1usize,
                columns: 1usize,
                kernel_size: 1usize,
                stride: 1usize,
                dilation: 1usize,
                ahead: 0usize,
                behind: 0usize,
                tiles: 1usize,
                is_causal,
                has_origin,
                is_inverse,
            }
        } else {
            let at = axes + comptime!((index + cut.rank - MAX_RANK) * AXIS_WORDS);
            AxisSpace {
                rows: table[at] as usize,
                columns: table[at + 1] as usize,
                kernel_size: table[at + 2] as usize,
                stride: table[at + 3] as usize,
                dilation: table[at + 4] as usize,
                ahead: table[at + 5] as usize,
                behind: table[at + 6] as usize,
                tiles: table[at + 7] as usize,
                is_causal,
                has_origin,
                is_inverse,
            }
        }
    }

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
            // Starts and ends never decrease, so that the first and the last row bound all others.
            let first = self.sees(&tile, row);
            let last = self.sees(&tile, nearest(row + (row_tile - 1), rows - 1));
            tile.column = first.start;
            if last.end > first.start {
                tile.count = (last.end - first.start).div_ceil(column_tile);
            }
        }
        tile
    }

    /// The columns that every row of the tile sees; none where the end is not behind the start.
    pub fn common(&self, tile: &AxisTile, #[comptime] row_tile: usize) -> Interval {
        let last = nearest(tile.row + (row_tile - 1), tile.rows - 1);
        Interval { start: self.sees(tile, last).start, end: self.sees(tile, tile.row).end }
    }

    /// Entries of a relative position bias.
    pub fn distances(&self) -> u32 {
        (2 * self.kernel_size - 1) as u32
    }

    /// Which of them a query and a key at the same position have; of a query that stands far ahead it is below zero, and
    /// wraps.
    pub fn no_distance(&self) -> u32 {
        (self.kernel_size - 1) as u32 - self.ahead as u32
    }

    /// The columns that the row at `position` sees. There may be none.
    pub fn sees(&self, tile: &AxisTile, position: usize) -> Interval {
        if comptime!(self.is_inverse) {
            self.visitors(tile, position)
        } else {
            self.window(tile, position)
        }
    }

    /// The keys that the query at `position` sees.
    fn window(&self, tile: &AxisTile, position: usize) -> Interval {
        let (kernel_size, stride) = (self.kernel_size, self.stride);
        let is_causal = comptime!(self.is_causal);
        let (at, next) = (self.key_at(position), self.key_at(position + 1));
        let start = window_start(at, tile.columns, kernel_size, stride, is_causal);
        Interval { start, end: window_end(next, start, tile.columns, kernel_size, is_causal) }
    }

    /// The queries that see the key at `position`.
    fn visitors(&self, tile: &AxisTile, position: usize) -> Interval {
        let (kernel_size, stride) = (self.kernel_size, self.stride);
        let is_causal = comptime!(self.is_causal);
        let past = self.key_at(tile.columns);
        let start = visitor_start(position, past, kernel_size, stride, is_causal);
        let end = visitor_end(position, past, tile.rows, kernel_size, stride, is_causal);
        Interval {
            start: self.query_at(start, tile.columns),
            end: self.query_at(end, tile.columns),
        }
    }

    /// Where a query stands among the keys.
    fn key_at(&self, query: usize) -> usize {
        if comptime!(self.has_origin) { shifted(query, self.ahead, self.behind) } else { query }
    }

    /// The query that stands at a position among the keys, or the nearest of `queries`.
    fn query_at(&self, key: usize, queries: usize) -> usize {
        if comptime!(self.has_origin) {
            nearest(shifted(key, self.behind, self.ahead), queries)
        } else {
            key
        }
    }
}

impl AxisSpace {
    /// Launch argument for axis number `index` of a problem.
    pub fn argument(problem: &Problem, index: usize, cut: &Cut) -> AxisSpaceLaunch {
        let axis = &problem.axes[index];
        let [rows, columns] = cut.sides(axis);
        let Axis { kernel_size, stride, dilation, is_causal, .. } = *axis;
        let (ahead, behind) = problem.shifts()[index];
        let tiles = cut.tiles(axis, index);
        AxisSpaceLaunch::new(
            rows,
            columns,
            kernel_size,
            stride,
            dilation,
            ahead,
            behind,
            tiles,
            is_causal,
            cut.has_origin,
            cut.is_inverse,
        )
    }

    /// Adds the words of an axis to a table, with tiles of rows of a dilation group.
    pub fn write(table: &mut Vec<u32>, axis: &Axis, tiles: usize, cut: &Cut) {
        let [rows, columns] = cut.sides(axis);
        let (ahead, behind) = axis.shift();
        let Axis { kernel_size, stride, dilation, .. } = *axis;
        let words: [usize; AXIS_WORDS] =
            [rows, columns, kernel_size, stride, dilation, ahead, behind, tiles];
        table.extend(words.map(|word| word as u32));
    }

    /// What a kernel is compiled for in its place.
    #[cfg(feature = "cuda")]
    pub fn compilation(is_causal: bool, cut: &Cut) -> AxisSpaceCompilationArg {
        AxisSpaceCompilationArg {
            rows: (),
            columns: (),
            kernel_size: (),
            stride: (),
            dilation: (),
            ahead: (),
            behind: (),
            tiles: (),
            is_causal,
            has_origin: cut.has_origin,
            is_inverse: cut.is_inverse,
        }
    }
}
