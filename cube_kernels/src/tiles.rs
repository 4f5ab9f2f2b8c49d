//! Where the tiles of a problem are: which rows a cube owns, which columns it visits, and where their
//! vectors lie in memory.
//!
//! Rows are queries and columns are keys, but in the pass that gives keys their gradients it is the other
//! way round: a row then sees its visitors, an interval along every axis as well.
//!
//! Positions are members of a dilation group, as in [`window`](crate::window). A row of a tile has its
//! coordinates in the bits of its number, for tiles are powers of two long.

// `#[cube]` and `CubeLaunch` add items beside each definition, without docs.
#![allow(missing_docs, clippy::too_many_arguments)]

use cubecl::prelude::*;

use crate::window::{group_length, visitor_end, visitor_start, window_end, window_start};
use crate::{Axis, MAX_RANK, Problem};

/// How a problem is cut into tiles; part of what a kernel is specialised by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Cut {
    /// Number of axes, 1 to 3.
    pub rank: usize,
    /// Which axes are causal, slowest first.
    pub is_causal: [bool; MAX_RANK],
    /// Rows of a cube along each axis.
    pub row_tile: [usize; MAX_RANK],
    /// Columns of a step along each axis.
    pub column_tile: [usize; MAX_RANK],
    /// Whether rows are keys.
    pub is_inverse: bool,
}

/// One axis: lengths and parameters at run time, so that they do not cost a compilation.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct AxisSpace {
    rows: usize,
    columns: usize,
    kernel_size: usize,
    stride: usize,
    dilation: usize,
    /// Tiles of rows of a dilation group; the last may be missing in some groups.
    tiles: usize,
    #[cube(comptime)]
    is_causal: bool,
    /// Whether rows are keys.
    #[cube(comptime)]
    is_inverse: bool,
}

/// Sizes of a problem, slowest axis first.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct Space {
    pub z: AxisSpace,
    pub y: AxisSpace,
    pub x: AxisSpace,
    /// Heads of the rows.
    pub heads: usize,
    /// Heads of queries that share one of keys.
    pub group_size: usize,
    pub additional: usize,
    /// Cubes that have work.
    pub cubes: usize,
}

/// Vectors between neighbors of a tensor.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct Strides {
    batch: usize,
    z: usize,
    y: usize,
    x: usize,
    head: usize,
}

/// Positions along the axes.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct Position {
    pub z: usize,
    pub y: usize,
    pub x: usize,
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

/// What a cube owns.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct CubeTile {
    pub z: AxisTile,
    pub y: AxisTile,
    pub x: AxisTile,
    pub batch: usize,
    pub head: usize,
}

/// How to get from a position to the vector that its row begins with.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct Walk {
    base: usize,
    z: usize,
    y: usize,
    x: usize,
    /// Last positions, slowest axis first: rows behind them are read from there.
    last: Position,
}

#[cube]
impl AxisSpace {
    /// The tile of rows number `index`, groups first, and its columns.
    fn tile(
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

#[cube]
impl Space {
    /// What cube number `index` owns: tiles of one head first, then heads, then samples. Causal
    /// problems begin with the tiles that see most: the last queries, or the first keys.
    pub fn tile(&self, index: usize, #[comptime] cut: Cut) -> CubeTile {
        let mut rest = index;
        let along_x = self.x.tiles * self.x.dilation;
        let mut x = rest % along_x;
        rest /= along_x;
        let mut y = 0usize;
        let mut z = 0usize;
        if comptime!(cut.rank > 1) {
            let along_y = self.y.tiles * self.y.dilation;
            y = rest % along_y;
            rest /= along_y;
        }
        if comptime!(cut.rank > 2) {
            let along_z = self.z.tiles * self.z.dilation;
            z = rest % along_z;
            rest /= along_z;
        }
        if comptime!(cut.is_causal[2] && !cut.is_inverse) {
            x = along_x - 1 - x;
        }
        let rows = comptime!(cut.row_tile);
        let columns = comptime!(cut.column_tile);
        CubeTile {
            z: self.z.tile(z, comptime!(rows[0]), comptime!(columns[0])),
            y: self.y.tile(y, comptime!(rows[1]), comptime!(columns[1])),
            x: self.x.tile(x, comptime!(rows[2]), comptime!(columns[2])),
            batch: rest / self.heads,
            head: rest % self.heads,
        }
    }

    /// Number, as it lies in a contiguous tensor, of the row vector at a position of the tile's groups.
    pub fn row_place(&self, tile: &CubeTile, at: &Position) -> usize {
        let z = at.z * self.z.dilation + tile.z.group;
        let y = at.y * self.y.dilation + tile.y.group;
        let x = at.x * self.x.dilation + tile.x.group;
        let token = ((tile.batch * self.z.rows + z) * self.y.rows + y) * self.x.rows + x;
        token * self.heads + tile.head
    }

    /// The same of the column vector at a position, of head `head` of `heads`.
    pub fn column_place(&self, tile: &CubeTile, at: &Position, head: usize, heads: usize) -> usize {
        let z = at.z * self.z.dilation + tile.z.group;
        let y = at.y * self.y.dilation + tile.y.group;
        let x = at.x * self.x.dilation + tile.x.group;
        let token = ((tile.batch * self.z.columns + z) * self.y.columns + y) * self.x.columns + x;
        token * heads + head
    }

    /// Position of row number `row` of the cube, or of the nearest one there is.
    pub fn nearest_row(&self, tile: &CubeTile, row: usize, #[comptime] cut: Cut) -> Position {
        let at = tile.position(row, cut);
        Position {
            z: nearest(at.z, tile.z.rows - 1),
            y: nearest(at.y, tile.y.rows - 1),
            x: nearest(at.x, tile.x.rows - 1),
        }
    }

    /// Position of column number `column` of the tile that begins at `corner`, or of the nearest one there
    /// is.
    pub fn nearest_column(
        &self,
        tile: &CubeTile,
        corner: &Position,
        column: usize,
        #[comptime] column_tile: [usize; MAX_RANK],
    ) -> Position {
        let at = row_position(corner, column, column_tile);
        Position {
            z: nearest(at.z, tile.z.columns - 1),
            y: nearest(at.y, tile.y.columns - 1),
            x: nearest(at.x, tile.x.columns - 1),
        }
    }

    /// From positions of rows to their vectors in a tensor with `strides`.
    pub fn row_walk(&self, tile: &CubeTile, strides: &Strides) -> Walk {
        let last = Position { z: tile.z.rows - 1, y: tile.y.rows - 1, x: tile.x.rows - 1 };
        self.walk(tile, strides, tile.head, last)
    }

    /// From positions of columns to their vectors, of head `head`.
    pub fn column_walk(&self, tile: &CubeTile, strides: &Strides, head: usize) -> Walk {
        let last = Position { z: tile.z.columns - 1, y: tile.y.columns - 1, x: tile.x.columns - 1 };
        self.walk(tile, strides, head, last)
    }

    /// From numbers of additional tokens to their vectors.
    pub fn additional_walk(&self, tile: &CubeTile, strides: &Strides) -> Walk {
        Walk {
            base: tile.batch * strides.batch + tile.head / self.group_size * strides.head,
            z: 0usize,
            y: 0usize,
            x: strides.x,
            last: Position { z: 0usize, y: 0usize, x: self.additional - 1 },
        }
    }

    fn walk(&self, tile: &CubeTile, strides: &Strides, head: usize, last: Position) -> Walk {
        let sample = tile.batch * strides.batch + head * strides.head;
        let groups = tile.z.group * strides.z + tile.y.group * strides.y + tile.x.group * strides.x;
        Walk {
            base: sample + groups,
            z: strides.z * self.z.dilation,
            y: strides.y * self.y.dilation,
            x: strides.x * self.x.dilation,
            last,
        }
    }
}

#[cube]
impl CubeTile {
    /// Whether the tile has any row: some dilation groups have a tile less than others.
    pub fn has_rows(&self) -> bool {
        self.z.row < self.z.rows && self.y.row < self.y.rows && self.x.row < self.x.rows
    }

    /// Whether a position of the tile's groups is a row's.
    pub fn is_row(&self, at: &Position) -> bool {
        at.z < self.z.rows && at.y < self.y.rows && at.x < self.x.rows
    }

    /// Position of row `row` of the cube.
    pub fn position(&self, row: usize, #[comptime] cut: Cut) -> Position {
        let corner = Position { z: self.z.row, y: self.y.row, x: self.x.row };
        row_position(&corner, row, comptime!(cut.row_tile))
    }

    /// Where the tile of columns with these numbers begins.
    pub fn corner(&self, z: usize, y: usize, x: usize, #[comptime] cut: Cut) -> Position {
        let columns = comptime!(cut.column_tile);
        Position {
            z: self.z.column + z * comptime!(columns[0]),
            y: self.y.column + y * comptime!(columns[1]),
            x: self.x.column + x * comptime!(columns[2]),
        }
    }

    /// Number of tiles of columns.
    pub fn steps(&self, #[comptime] cut: Cut) -> usize {
        let mut steps = self.x.count;
        if comptime!(cut.rank > 1) {
            steps *= self.y.count;
        }
        if comptime!(cut.rank > 2) {
            steps *= self.z.count;
        }
        steps
    }
}

#[cube]
impl Strides {
    /// First vector of a token's head.
    pub fn vector(&self, batch: usize, z: usize, y: usize, x: usize, head: usize) -> usize {
        batch * self.batch + z * self.z + y * self.y + x * self.x + head * self.head
    }
}

#[cube]
impl Walk {
    /// First vector of row number `row` of the tile `shape` that begins at `corner`, or of the nearest
    /// row there is.
    pub fn vector(
        &self,
        corner: &Position,
        row: usize,
        #[comptime] shape: [usize; MAX_RANK],
    ) -> usize {
        let [z_size, y_size, x_size] = comptime!(shape);
        let x = nearest(corner.x + row % x_size, self.last.x);
        let mut vector = self.base + x * self.x;
        if comptime!(y_size * z_size > 1) {
            let y = nearest(corner.y + row / x_size % y_size, self.last.y);
            vector += y * self.y;
        } else {
            vector += corner.y * self.y;
        }
        if comptime!(z_size > 1) {
            let z = nearest(corner.z + row / comptime!(x_size * y_size), self.last.z);
            vector += z * self.z;
        } else {
            vector += corner.z * self.z;
        }
        vector
    }
}

#[cube]
fn nearest(position: usize, last: usize) -> usize {
    let mut position = position;
    if position > last {
        position = last;
    }
    position
}

/// Position of row number `row` of the tile `shape` that begins at `corner`.
#[cube]
fn row_position(corner: &Position, row: usize, #[comptime] shape: [usize; MAX_RANK]) -> Position {
    let [_, y_size, x_size] = comptime!(shape);
    Position {
        z: corner.z + row / comptime!(x_size * y_size),
        y: corner.y + row / x_size % y_size,
        x: corner.x + row % x_size,
    }
}

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
    let mut position = position;
    if position > tile.rows - 1 {
        position = tile.rows - 1;
    }
    let start = axis.start(position, tile.columns);
    windows[start_word] = start as u32;
    windows[end_word] = axis.end(position, start, tile.rows, tile.columns) as u32;
}

/// Writes the windows of a cube's rows, of each its start and its end along the axes, the fastest first, in `words` words; those
/// behind the last row are like it.
#[cube]
pub(crate) fn write_row_windows(
    windows: &mut [u32],
    space: &Space,
    tile: &CubeTile,
    unit: usize,
    #[comptime] rows: usize,
    #[comptime] units: usize,
    #[comptime] words: usize,
    #[comptime] cut: Cut,
) {
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

/// Rows and columns of an axis.
fn sides(axis: &Axis, is_inverse: bool) -> [usize; 2] {
    if is_inverse { [axis.keys, axis.queries] } else { [axis.queries, axis.keys] }
}

/// Tiles of rows of a dilation group.
fn tiles(axis: &Axis, row_tile: usize, is_inverse: bool) -> usize {
    sides(axis, is_inverse)[0].div_ceil(axis.dilation).div_ceil(row_tile)
}

/// Heads of the rows.
fn heads(problem: &Problem, is_inverse: bool) -> usize {
    if is_inverse { problem.heads_kv } else { problem.heads }
}

/// Cubes that a problem takes.
pub(crate) fn cubes(problem: &Problem, cut: &Cut) -> usize {
    let is_inverse = cut.is_inverse;
    let axes = problem.axes.iter().zip(cut.row_tile);
    let tiles: usize =
        axes.map(|(axis, tile)| axis.dilation * tiles(axis, tile, is_inverse)).product();
    tiles * problem.batch * heads(problem, is_inverse)
}

/// Launch argument for a problem.
pub(crate) fn space(problem: &Problem, cut: &Cut) -> SpaceLaunch {
    let is_inverse = cut.is_inverse;
    let [z, y, x] = std::array::from_fn(|index| {
        let axis = &problem.axes[index];
        let [rows, columns] = sides(axis, is_inverse);
        AxisSpaceLaunch::new(
            rows,
            columns,
            axis.kernel_size,
            axis.stride,
            axis.dilation,
            tiles(axis, cut.row_tile[index], is_inverse),
            axis.is_causal,
            is_inverse,
        )
    });
    let (heads, cubes) = (heads(problem, is_inverse), cubes(problem, cut));
    SpaceLaunch::new(z, y, x, heads, problem.group_size(), problem.additional, cubes)
}

/// Launch argument for a tensor with these elements between neighbors (batch, z, y, x, heads), that is
/// read in vectors of `vector` elements.
pub(crate) fn strides(strides: [usize; 5], vector: usize) -> StridesLaunch {
    let [batch, z, y, x, head] = strides.map(|stride| stride / vector);
    StridesLaunch::new(batch, z, y, x, head)
}

/// What a kernel is compiled for in place of [`space`].
#[cfg(feature = "cuda")]
pub(crate) fn space_compilation(cut: &Cut) -> SpaceCompilationArg {
    let [z, y, x] = cut.is_causal.map(|is_causal| AxisSpaceCompilationArg {
        rows: (),
        columns: (),
        kernel_size: (),
        stride: (),
        dilation: (),
        tiles: (),
        is_causal,
        is_inverse: cut.is_inverse,
    });
    SpaceCompilationArg { z, y, x, heads: (), group_size: (), additional: (), cubes: () }
}

/// What a kernel is compiled for in place of [`strides`].
#[cfg(feature = "cuda")]
pub(crate) fn strides_compilation() -> StridesCompilationArg {
    StridesCompilationArg { batch: (), z: (), y: (), x: (), head: () }
}
