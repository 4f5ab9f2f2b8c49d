//! What a cube owns of a problem.

// `#[cube]` and `CubeLaunch` add items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::axis::{AxisSpace, AxisTile};
use super::cut::Cut;
use super::walk::{Position, Strides, Walk, nearest, row_position};
use crate::{MAX_RANK, Problem};

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
    /// Whether it is that of a sequence, which is a part of tensors that have one axis of tokens.
    #[cube(comptime)]
    pub is_packed: bool,
}

/// Numbers of the first row and of the first column of a sequence, among those of the packed batch.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct Firsts {
    pub row: usize,
    pub column: usize,
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
    /// Where its sequence begins.
    pub firsts: Firsts,
}

#[cube]
impl Space {
    /// What cube number `index` owns: tiles of one head first, then heads, then samples. Causal
    /// problems begin with the tiles that see most: the last queries, or the first keys.
    pub fn tile(&self, index: usize, firsts: Firsts, #[comptime] cut: Cut) -> CubeTile {
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
            firsts,
        }
    }

    /// A place in what belongs to the problem, or, of a sequence that begins at `first`, in what belongs to all.
    fn among_all(&self, place: usize, first: usize) -> usize {
        if comptime!(self.is_packed) { first + place } else { place }
    }

    /// Number, as it lies in a contiguous tensor, of the row vector at a position of the tile's groups.
    pub fn row_place(&self, tile: &CubeTile, at: &Position) -> usize {
        let z = at.z * self.z.dilation + tile.z.group;
        let y = at.y * self.y.dilation + tile.y.group;
        let x = at.x * self.x.dilation + tile.x.group;
        let token = ((tile.batch * self.z.rows + z) * self.y.rows + y) * self.x.rows + x;
        self.among_all(token, tile.firsts.row) * self.heads + tile.head
    }

    /// The same of the column vector at a position, of head `head` of `heads`.
    pub fn column_place(&self, tile: &CubeTile, at: &Position, head: usize, heads: usize) -> usize {
        let z = at.z * self.z.dilation + tile.z.group;
        let y = at.y * self.y.dilation + tile.y.group;
        let x = at.x * self.x.dilation + tile.x.group;
        let token = ((tile.batch * self.z.columns + z) * self.y.columns + y) * self.x.columns + x;
        self.among_all(token, tile.firsts.column) * heads + head
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
        let strides = self.own(strides, self.y.rows, self.x.rows);
        self.walk(tile, &strides, tile.firsts.row, tile.head, last)
    }

    /// From positions of columns to their vectors, of head `head`.
    pub fn column_walk(&self, tile: &CubeTile, strides: &Strides, head: usize) -> Walk {
        let last = Position { z: tile.z.columns - 1, y: tile.y.columns - 1, x: tile.x.columns - 1 };
        let strides = self.own(strides, self.y.columns, self.x.columns);
        self.walk(tile, &strides, tile.firsts.column, head, last)
    }

    /// The strides of a tensor, or of a sequence of so many tokens along the two fastest axes in a packed one.
    fn own(&self, strides: &Strides, y: usize, x: usize) -> Strides {
        let (batch, head) = (strides.batch, strides.head);
        if comptime!(self.is_packed) {
            let line = x * strides.x;
            Strides { batch, z: y * line, y: line, x: strides.x, head }
        } else {
            Strides { batch, z: strides.z, y: strides.y, x: strides.x, head }
        }
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

    fn walk(
        &self,
        tile: &CubeTile,
        strides: &Strides,
        first: usize,
        head: usize,
        last: Position,
    ) -> Walk {
        let sample = tile.batch * strides.batch + head * strides.head;
        let groups = tile.z.group * strides.z + tile.y.group * strides.y + tile.x.group * strides.x;
        Walk {
            base: self.among_all(sample + groups, first * strides.x),
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
        row_position(&self.row_corner(), row, comptime!(cut.row_tile))
    }

    /// Where the cube's rows begin.
    pub fn row_corner(&self) -> Position {
        Position { z: self.z.row, y: self.y.row, x: self.x.row }
    }

    /// Where the tile of columns with these numbers begins.
    pub fn corner(&self, number: &Position, #[comptime] cut: Cut) -> Position {
        let columns = comptime!(cut.column_tile);
        Position {
            z: self.z.column + number.z * comptime!(columns[0]),
            y: self.y.column + number.y * comptime!(columns[1]),
            x: self.x.column + number.x * comptime!(columns[2]),
        }
    }

    /// Goes to the next tile of columns; behind the last one to the first, which is there in any case.
    pub fn advance(&self, number: &mut Position, #[comptime] cut: Cut) {
        number.x += 1;
        if number.x == self.x.count {
            number.x = 0;
            if comptime!(cut.rank > 1) {
                number.y += 1;
                if number.y == self.y.count {
                    number.y = 0;
                    if comptime!(cut.rank > 2) {
                        number.z += 1;
                        if number.z == self.z.count {
                            number.z = 0;
                        }
                    }
                }
            }
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

impl Space {
    /// Launch argument for a problem, of so many cubes. That of a sequence is made of a [table](super::packed) by the cube.
    pub fn argument(problem: &Problem, cubes: usize, cut: &Cut) -> SpaceLaunch {
        let [z, y, x] = std::array::from_fn(|i| AxisSpace::argument(problem, i, cut));
        let (heads, group_size) = (cut.heads(problem), problem.group_size());
        SpaceLaunch::new(z, y, x, heads, group_size, problem.additional, cubes, false)
    }

    /// What a kernel is compiled for in its place.
    #[cfg(feature = "cuda")]
    pub fn compilation(cut: &Cut) -> SpaceCompilationArg {
        let [z, y, x] = cut.is_causal.map(|bit| AxisSpace::compilation(bit, cut));
        SpaceCompilationArg {
            z,
            y,
            x,
            heads: (),
            group_size: (),
            additional: (),
            cubes: (),
            is_packed: false,
        }
    }
}
