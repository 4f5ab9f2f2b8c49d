//! Where the tiles of a problem are: which queries a cube owns, which keys it visits, and where their
//! rows lie in memory.
//!
//! Positions are members of a dilation group, as in [`window`](crate::window). A row of a tile has its
//! coordinates in the bits of its number, for tiles are powers of two long.

// `#[cube]` and `CubeLaunch` add items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::blueprint::Blueprint;
use super::layout::Strided;
use crate::window::{group_length, window_end, window_start};
use crate::{Axis, MAX_RANK, Problem};

/// One axis: lengths and parameters at run time, so that they do not cost a compilation.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct AxisSpace {
    pub queries: usize,
    pub keys: usize,
    kernel_size: usize,
    stride: usize,
    pub dilation: usize,
    /// Tiles of queries of a dilation group; the last may be missing in some groups.
    tiles: usize,
    #[cube(comptime)]
    is_causal: bool,
}

/// Sizes of a problem, slowest axis first.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Space {
    pub z: AxisSpace,
    pub y: AxisSpace,
    pub x: AxisSpace,
    pub heads: usize,
    pub group_size: usize,
    pub additional: usize,
    /// Cubes that have work.
    pub cubes: usize,
}

/// Vectors between neighbors of a tensor.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Strides {
    batch: usize,
    z: usize,
    y: usize,
    x: usize,
    head: usize,
}

/// Positions along the axes.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Position {
    pub z: usize,
    pub y: usize,
    pub x: usize,
}

/// What a cube owns along one axis: some queries of one dilation group, and the keys that they see.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct AxisTile {
    pub group: usize,
    /// Position of the first query.
    pub query: usize,
    /// Queries of the group.
    pub queries: usize,
    /// Keys of the group.
    pub keys: usize,
    /// Position of the first key that any query sees.
    pub key: usize,
    /// Tiles of keys from there on; none where the tile of queries lies behind the group's end.
    pub count: usize,
    /// The first of those tiles that all queries see whole.
    pub whole_start: usize,
    /// One past the last of them.
    pub whole_end: usize,
}

/// What a cube owns.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct CubeTile {
    pub z: AxisTile,
    pub y: AxisTile,
    pub x: AxisTile,
    pub batch: usize,
    pub head: usize,
}

/// How to get from a position to the vector that its row begins with.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Walk {
    base: usize,
    z: usize,
    y: usize,
    x: usize,
    /// Last positions, slowest axis first: rows behind them are read from there.
    last: Position,
}

#[cube]
impl AxisSpace {
    /// The tile of queries number `index`, groups first, and its keys.
    fn tile(&self, index: usize, #[comptime] q_tile: usize, #[comptime] kv_tile: usize) -> AxisTile {
        let group = index / self.tiles;
        let query = (index % self.tiles) * q_tile;
        let queries = group_length(self.queries, self.dilation, group);
        let keys = group_length(self.keys, self.dilation, group);
        let mut tile = AxisTile {
            group,
            query,
            queries,
            keys,
            key: 0usize,
            count: 0usize,
            whole_start: 0usize,
            whole_end: 0usize,
        };
        if query < queries && keys > 0 {
            let mut last = query + (q_tile - 1);
            if last > queries - 1 {
                last = queries - 1;
            }
            let first_start = self.start(query, keys);
            let last_start = self.start(last, keys);
            let first_end = self.end(query, first_start, keys);
            let last_end = self.end(last, last_start, keys);
            tile.key = first_start;
            tile.count = (last_end - first_start + (kv_tile - 1)) / kv_tile;
            tile.whole_start = (last_start - first_start + (kv_tile - 1)) / kv_tile;
            tile.whole_end = (first_end - first_start) / kv_tile;
        }
        tile
    }

    /// First key that the query at `position` sees, of `keys`.
    pub fn start(&self, position: usize, keys: usize) -> usize {
        window_start(position, keys, self.kernel_size, self.stride, comptime!(self.is_causal))
    }

    /// One past the last key that it sees.
    pub fn end(&self, position: usize, start: usize, keys: usize) -> usize {
        window_end(position, start, keys, self.kernel_size, comptime!(self.is_causal))
    }
}

#[cube]
impl Space {
    /// What cube number `index` owns: tiles of one head first, then heads, then samples. Causal
    /// problems begin with the last tiles, which see most.
    pub fn tile(&self, index: usize, #[comptime] blueprint: Blueprint) -> CubeTile {
        let mut rest = index;
        let along_x = self.x.tiles * self.x.dilation;
        let mut x = rest % along_x;
        rest /= along_x;
        let mut y = 0usize;
        let mut z = 0usize;
        if comptime!(blueprint.rank > 1) {
            let along_y = self.y.tiles * self.y.dilation;
            y = rest % along_y;
            rest /= along_y;
        }
        if comptime!(blueprint.rank > 2) {
            let along_z = self.z.tiles * self.z.dilation;
            z = rest % along_z;
            rest /= along_z;
        }
        let [q_z, q_y, q_x] = comptime!(blueprint.q_tile);
        let [kv_z, kv_y, kv_x] = comptime!(blueprint.kv_tile);
        if comptime!(blueprint.is_causal[2]) {
            x = along_x - 1 - x;
        }
        CubeTile {
            z: self.z.tile(z, q_z, kv_z),
            y: self.y.tile(y, q_y, kv_y),
            x: self.x.tile(x, q_x, kv_x),
            batch: rest / self.heads,
            head: rest % self.heads,
        }
    }

    /// Queries of a sample.
    pub fn queries(&self) -> usize {
        self.z.queries * self.y.queries * self.x.queries
    }

    /// Number of the token at a position of the tile's groups.
    pub fn query_token(&self, tile: &CubeTile, at: &Position) -> usize {
        let z = at.z * self.z.dilation + tile.z.group;
        let y = at.y * self.y.dilation + tile.y.group;
        let x = at.x * self.x.dilation + tile.x.group;
        (z * self.y.queries + y) * self.x.queries + x
    }

    /// From positions of queries to rows of `strides`.
    pub fn query_walk(&self, tile: &CubeTile, strides: &Strides) -> Walk {
        let last =
            Position { z: tile.z.queries - 1, y: tile.y.queries - 1, x: tile.x.queries - 1 };
        self.walk(tile, strides, tile.head, last)
    }

    /// From positions of keys to rows of `strides`.
    pub fn key_walk(&self, tile: &CubeTile, strides: &Strides) -> Walk {
        let last = Position { z: tile.z.keys - 1, y: tile.y.keys - 1, x: tile.x.keys - 1 };
        self.walk(tile, strides, tile.head / self.group_size, last)
    }

    /// From numbers of additional tokens to rows of `strides`.
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
        let groups =
            tile.z.group * strides.z + tile.y.group * strides.y + tile.x.group * strides.x;
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
pub(super) fn row_position(
    corner: &Position,
    row: usize,
    #[comptime] shape: [usize; MAX_RANK],
) -> Position {
    let [_, y_size, x_size] = comptime!(shape);
    Position {
        z: corner.z + row / comptime!(x_size * y_size),
        y: corner.y + row / x_size % y_size,
        x: corner.x + row % x_size,
    }
}

/// Tiles of queries along an axis: of all groups, and of one.
fn axis_tiles(axis: &Axis, q_tile: usize) -> (usize, usize) {
    let longest = axis.queries.div_ceil(axis.dilation);
    let tiles = longest.div_ceil(q_tile);
    (tiles * axis.dilation, tiles)
}

/// Cubes that a problem takes.
pub(super) fn cubes(problem: &Problem, blueprint: &Blueprint) -> usize {
    let axes = problem.axes.iter().zip(blueprint.q_tile);
    let tiles: usize = axes.map(|(axis, q_tile)| axis_tiles(axis, q_tile).0).product();
    tiles * problem.batch * problem.heads
}

/// Launch argument for a problem.
pub(super) fn space(problem: &Problem, blueprint: &Blueprint) -> SpaceLaunch {
    let mut index = 0;
    let [z, y, x] = problem.axes.map(|axis| {
        let (_, tiles) = axis_tiles(&axis, blueprint.q_tile[index]);
        index += 1;
        AxisSpaceLaunch::new(
            axis.queries,
            axis.keys,
            axis.kernel_size,
            axis.stride,
            axis.dilation,
            tiles,
            axis.is_causal,
        )
    });
    let cubes = cubes(problem, blueprint);
    SpaceLaunch::new(z, y, x, problem.heads, problem.group_size(), problem.additional, cubes)
}

/// Launch argument for a tensor that is read in vectors of `vector` elements.
pub(super) fn strides(tensor: &Strided, vector: usize) -> StridesLaunch {
    let [batch, z, y, x, head] = tensor.strides.map(|stride| stride / vector);
    StridesLaunch::new(batch, z, y, x, head)
}

/// What a kernel is compiled for in place of [`space`].
#[cfg(feature = "cuda")]
pub(super) fn space_compilation(blueprint: &Blueprint) -> SpaceCompilationArg {
    let [z, y, x] = blueprint.is_causal.map(|is_causal| AxisSpaceCompilationArg {
        queries: (),
        keys: (),
        kernel_size: (),
        stride: (),
        dilation: (),
        tiles: (),
        is_causal,
    });
    SpaceCompilationArg { z, y, x, heads: (), group_size: (), additional: (), cubes: () }
}

/// What a kernel is compiled for in place of [`strides`].
#[cfg(feature = "cuda")]
pub(super) fn strides_compilation() -> StridesCompilationArg {
    StridesCompilationArg { batch: (), z: (), y: (), x: (), head: () }
}
