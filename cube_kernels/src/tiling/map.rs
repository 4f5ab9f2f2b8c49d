//! The tiles of a problem as a matrix, to be drawn.

use crate::{Axis, MAX_RANK, Problem, window};

use super::Tiling;

/// What happens to the scores of a tile of queries and a tile of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TileKind {
    /// No query sees any key: nothing is computed.
    Skipped,
    /// Computed, and masked.
    Mixed,
    /// Every query sees every key: computed without a mask.
    Unmasked,
}

/// What happens to every pair of a tile of queries and a tile of keys.
///
/// Tiles are numbered row-major over the axes, and along an axis by dilation group and then by
/// position. Tiles of keys begin where the keys of a tile of queries begin; here they are moved
/// back to the grid that begins at position 0, so that they have numbers.
///
/// ```rust
/// use burn_natten_kernels::{Axis, Problem, tiling::{TileKind, Tiling}};
///
/// let problem = Problem::new([Axis::dense(256, 256, true)], 1, 64);
/// let map = Tiling::square([1, 1, 128]).tile_map(&problem);
/// assert_eq!(map.kind(0, 0), TileKind::Mixed);
/// assert_eq!(map.kind(0, 1), TileKind::Skipped);
/// assert_eq!(map.kind(1, 0), TileKind::Unmasked);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TileMap {
    /// Tiles of queries.
    pub q_tiles: usize,
    /// Tiles of keys.
    pub kv_tiles: usize,
    kinds: Vec<TileKind>,
}

impl TileMap {
    /// What happens to the scores of a tile of queries and a tile of keys, both by number.
    ///
    /// # Panics
    ///
    /// If there is no such tile.
    pub fn kind(&self, q_tile: usize, kv_tile: usize) -> TileKind {
        assert!(q_tile < self.q_tiles && kv_tile < self.kv_tiles, "{q_tile}, {kv_tile}");
        self.kinds[q_tile * self.kv_tiles + kv_tile]
    }

    /// All kinds, tile of queries by tile of queries.
    pub fn kinds(&self) -> impl Iterator<Item = TileKind> + '_ {
        self.kinds.iter().copied()
    }
}

impl Tiling {
    /// What happens to each tile, additional tokens left out. Takes memory for every possible pair
    /// of tiles.
    ///
    /// # Panics
    ///
    /// If a tile has no extent along some axis.
    pub fn tile_map(&self, problem: &Problem) -> TileMap {
        let axes: [AxisMap; MAX_RANK] =
            std::array::from_fn(|index| AxisMap::new(self, &problem.axes[index], index));
        let [z, y, x] = &axes;
        let kinds = z.rows().flat_map(|z| {
            y.rows().flat_map(move |y| x.rows().flat_map(move |x| product([z, y, x])))
        });
        TileMap {
            kinds: kinds.collect(),
            q_tiles: axes.iter().map(|axis| axis.q_tiles).product(),
            kv_tiles: axes.iter().map(|axis| axis.kv_tiles).product(),
        }
    }
}

/// The kinds of a tile of queries with all tiles of keys, from those along each axis.
fn product([z, y, x]: [&[TileKind]; MAX_RANK]) -> impl Iterator<Item = TileKind> {
    z.iter().flat_map(move |z| {
        y.iter().flat_map(move |y| x.iter().map(move |x| both(both(*z, *y), *x)))
    })
}

fn both(one: TileKind, other: TileKind) -> TileKind {
    match (one, other) {
        (TileKind::Skipped, _) | (_, TileKind::Skipped) => TileKind::Skipped,
        (TileKind::Unmasked, TileKind::Unmasked) => TileKind::Unmasked,
        _ => TileKind::Mixed,
    }
}

/// The map along one axis.
struct AxisMap {
    q_tiles: usize,
    kv_tiles: usize,
    kinds: Vec<TileKind>,
}

impl AxisMap {
    fn new(tiling: &Tiling, axis: &Axis, index: usize) -> Self {
        let size = tiling.kv_tile[index];
        // Where the tiles of keys of each dilation group begin, and where the last ones end.
        let mut offsets = vec![0];
        for group in 0..axis.dilation {
            let keys = window::group_length(axis.keys, axis.dilation, group);
            offsets.push(offsets[group] + keys.div_ceil(size));
        }
        let kv_tiles = offsets[axis.dilation];
        let (mut q_tiles, mut kinds) = (0, Vec::new());
        for tile in tiling.axis_tiles(axis, index) {
            let row = kinds.len();
            q_tiles += 1;
            kinds.resize(row + kv_tiles, TileKind::Skipped);
            let first = row + offsets[tile.group] + tile.keys.start / size;
            for number in 0..tile.kv_tiles {
                let is_unmasked = tile.unmasked.contains(&number);
                kinds[first + number] =
                    if is_unmasked { TileKind::Unmasked } else { TileKind::Mixed };
            }
        }
        Self { q_tiles, kv_tiles, kinds }
    }

    fn rows(&self) -> impl Iterator<Item = &[TileKind]> {
        (0..self.q_tiles).map(|row| &self.kinds[row * self.kv_tiles..][..self.kv_tiles])
    }
}
