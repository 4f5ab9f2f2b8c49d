//! How a problem is cut into N-D tiles of queries and keys, and what work that makes.
//!
//! Kernels on matrix units compute whole tiles of scores. A tile of queries meets the tiles of keys
//! that any of its queries sees, and computes every score in them; those outside a query's own
//! window are masked. So the shape of the tiles decides how much more than the windows is computed.
//!
//! Every axis is cut inside its dilation groups, whose members count as neighbors (see
//! [`window`]). The queries of a group are cut from position 0. The
//! keys that a tile of queries sees are one interval, the union of its windows, and the tiles of
//! keys are laid from the first of them, not on a grid that all tiles of queries share:
//!
//! ```text
//! group of 12, kernel_size 5, q_tile 4, kv_tile 4; a and b: first and second tile of keys
//! queries 0..4     aaaabb......
//! queries 4..8     ..aaaabbbb..
//! queries 8..12    ......aaaabb
//! ```
//!
//! Axes are independent, so that tiles are counted axis by axis and the counts are multiplied.

use std::ops::Range;

use crate::{Axis, MAX_RANK, Problem, window};

mod map;
#[cfg(test)]
mod tests;
mod visitors;

pub use map::{TileKind, TileMap};

/// The shape of the tiles of queries and of keys, slowest axis first, as [`Problem::axes`].
///
/// Sizes are in members of a dilation group and at least 1; they need not divide anything.
///
/// ```rust
/// use burn_natten_kernels::{Axis, Problem, tiling::Tiling};
///
/// let axis = Axis::neighborhood;
/// let problem = Problem::new([axis(30, 18), axis(48, 24), axis(80, 24)], 24, 128);
/// let tiling = Tiling { q_tile: [4, 4, 4], kv_tile: [4, 4, 4] };
/// let count = tiling.count(&problem);
/// assert_eq!(count.q_tiles, 8 * 12 * 20);
/// assert!(count.unmasked < count.visited && count.visited < count.possible);
/// // Half as much again as the windows hold.
/// assert!((tiling.work_ratio(&problem) - 1.5).abs() < 0.01);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tiling {
    /// Queries of a tile along each axis.
    pub q_tile: [usize; MAX_RANK],
    /// Keys of a tile along each axis.
    pub kv_tile: [usize; MAX_RANK],
}

/// Numbers of (query tile, key tile) pairs of one sample and one head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TileCount {
    /// Tiles of queries.
    pub q_tiles: u64,
    /// Pairs that are computed.
    pub visited: u64,
    /// Those of them that need no mask: every query sees every key, and all keys exist.
    pub unmasked: u64,
    /// Pairs that there would be if every query saw all keys of its dilation group.
    pub possible: u64,
}

impl TileCount {
    /// Pairs that are computed and masked.
    pub fn mixed(&self) -> u64 {
        self.visited - self.unmasked
    }

    /// Pairs that are not computed.
    pub fn skipped(&self) -> u64 {
        self.possible - self.visited
    }

    /// Axes are independent: a tile is visited, or unmasked, when it is along each of them.
    fn times(self, other: Self) -> Self {
        Self {
            q_tiles: self.q_tiles * other.q_tiles,
            visited: self.visited * other.visited,
            unmasked: self.unmasked * other.unmasked,
            possible: self.possible * other.possible,
        }
    }
}

/// A tile of queries along one axis, and the tiles of keys it meets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AxisTile {
    /// Dilation group.
    pub group: usize,
    /// Number of the tile in its group.
    pub q_tile: usize,
    /// Positions of its queries in the group; the last tile of a group may have fewer than others.
    pub queries: Range<usize>,
    /// Positions of the keys that some of its queries see. Tiles of keys begin at their start.
    pub keys: Range<usize>,
    /// Number of tiles of keys.
    pub kv_tiles: usize,
    /// Those of them, by number, that are whole and seen by every query.
    pub unmasked: Range<usize>,
}

impl Tiling {
    /// The same tile for queries and keys.
    pub const fn square(tile: [usize; MAX_RANK]) -> Self {
        Self { q_tile: tile, kv_tile: tile }
    }

    /// Queries of a whole tile.
    pub fn q_volume(&self) -> usize {
        self.q_tile.iter().product()
    }

    /// Keys of a whole tile.
    pub fn kv_volume(&self) -> usize {
        self.kv_tile.iter().product()
    }

    /// The tiles of queries along `axis`, which is number `index` of the problem's axes: groups in
    /// order, tiles of a group in order.
    ///
    /// # Panics
    ///
    /// If a tile has no extent along the axis.
    pub fn axis_tiles(&self, axis: &Axis, index: usize) -> impl Iterator<Item = AxisTile> + use<> {
        let (axis, q_tile, kv_tile) = (*axis, self.q_tile[index], self.kv_tile[index]);
        assert!(q_tile > 0 && kv_tile > 0, "tiles along axis {index} must hold 1 or more");
        (0..axis.dilation).flat_map(move |group| {
            let queries = window::group_length(axis.queries, axis.dilation, group);
            let starts = (0..queries).step_by(q_tile).enumerate();
            starts.map(move |(number, start)| {
                let queries = start..queries.min(start + q_tile);
                axis_tile(&axis, group, number, queries, kv_tile)
            })
        })
    }

    /// Counts the tiles of one sample and head.
    ///
    /// Additional tokens lie in tiles of their own, which every tile of queries visits.
    ///
    /// # Panics
    ///
    /// If a tile has no extent along some axis.
    pub fn count(&self, problem: &Problem) -> TileCount {
        let mut count = self.count_windows(problem);
        let (additional, volume) = (problem.additional, self.kv_volume());
        let (tiles, whole) = (additional.div_ceil(volume) as u64, (additional / volume) as u64);
        count.visited += count.q_tiles * tiles;
        count.possible += count.q_tiles * tiles;
        count.unmasked += count.q_tiles * whole;
        count
    }

    /// Counts the other way round, for kernels that keep a tile of keys and sweep over the queries that see
    /// it: tiles of queries are laid from the first of those. [`TileCount::q_tiles`] is then the number of
    /// tiles of keys. Additional tokens are left out.
    ///
    /// # Panics
    ///
    /// If a tile has no extent along some axis.
    pub fn count_visitors(&self, problem: &Problem) -> TileCount {
        visitors::count(self, problem)
    }

    /// How many tiles of queries each tile of keys meets along an axis, in the same count.
    pub(crate) fn axis_visitors(&self, axis: &Axis, index: usize) -> Vec<u64> {
        visitors::of_axis(self, axis, index)
    }

    /// Along an axis without dilation, the boxes of queries at multiples of their extent that see each one of keys; `None` if nobody
    /// sees some.
    pub(crate) fn box_visitors(&self, axis: &Axis, index: usize) -> Option<Vec<Range<usize>>> {
        visitors::boxes(self, axis, index)
    }

    /// Scores that the visited tiles hold, for one sample and head, additional tokens included.
    ///
    /// # Panics
    ///
    /// If a tile has no extent along some axis.
    pub fn executed_pairs(&self, problem: &Problem) -> u64 {
        self.scores(self.count(problem))
    }

    /// Scores computed for one that a window holds; additional tokens are left out on both sides.
    /// 1 at best, and for a problem without pairs.
    ///
    /// # Panics
    ///
    /// If a tile has no extent along some axis.
    pub fn work_ratio(&self, problem: &Problem) -> f64 {
        let windows = problem.with_additional(0);
        match windows.pairs() {
            0 => 1.0,
            useful => self.scores(self.count_windows(problem)) as f64 / useful as f64,
        }
    }

    fn scores(&self, count: TileCount) -> u64 {
        count.visited * (self.q_volume() * self.kv_volume()) as u64
    }

    fn count_windows(&self, problem: &Problem) -> TileCount {
        let axes = problem.axes.iter().enumerate();
        let counts = axes.map(|(index, axis)| self.count_axis(axis, index));
        counts.reduce(TileCount::times).unwrap_or_default()
    }

    fn count_axis(&self, axis: &Axis, index: usize) -> TileCount {
        let mut count = TileCount::default();
        for tile in self.axis_tiles(axis, index) {
            let keys = window::group_length(axis.keys, axis.dilation, tile.group);
            count.q_tiles += 1;
            count.visited += tile.kv_tiles as u64;
            count.unmasked += tile.unmasked.len() as u64;
            count.possible += keys.div_ceil(self.kv_tile[index]) as u64;
        }
        count
    }
}

fn axis_tile(
    axis: &Axis,
    group: usize,
    q_tile: usize,
    queries: Range<usize>,
    kv_tile: usize,
) -> AxisTile {
    if axis.group(group).1 == 0 {
        return AxisTile { group, q_tile, queries, keys: 0..0, kv_tiles: 0, unmasked: 0..0 };
    }
    // Starts and ends never decrease, so the first and the last query bound all others.
    let [first, last] =
        [queries.start, queries.end - 1].map(|position| axis.keys_seen(group, position));
    let kv_tiles = (last.end - first.start).div_ceil(kv_tile);
    // What all queries see, from the first key of the tile's: `last.start..first.end`.
    let begin = (last.start - first.start).div_ceil(kv_tile);
    let end = first.len() / kv_tile;
    AxisTile {
        group,
        q_tile,
        queries,
        keys: first.start..last.end,
        kv_tiles,
        unmasked: begin..end.max(begin),
    }
}

/// Boxes of as many members, sides powers of two. With several axes, sides are 2 to 16 long.
pub(crate) fn boxes(volume: usize, rank: usize) -> Vec<[usize; MAX_RANK]> {
    let sides = || [2, 4, 8, 16].into_iter();
    match rank {
        1 => vec![[1, 1, volume]],
        2 => sides()
            .flat_map(|y| sides().map(move |x| [1, y, x]))
            .filter(|[_, y, x]| y * x == volume && *x >= 4)
            .collect(),
        _ => [1, 2, 4, 8]
            .into_iter()
            .flat_map(|z| sides().flat_map(move |y| sides().map(move |x| [z, y, x])))
            .filter(|[z, y, x]| z * y * x == volume && *x >= 4)
            .collect(),
    }
}
