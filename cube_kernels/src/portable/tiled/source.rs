//! Where tiles come from, and what a unit works on.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::super::blueprint::Blueprint;
use crate::cube::{CubeTile, Feed, FeedPair, Input, InputPair, Position, Space, Walk, own};

/// A tile of rows or of columns in global memory.
#[derive(CubeType)]
pub(super) struct Source<'a, F: Float, N: Size> {
    pub vectors: &'a [Vector<F, N>],
    pub walk: Walk,
    pub corner: Position,
}

/// Tiles of first and of second vectors.
#[derive(CubeType)]
pub(super) struct SourcePair<'a, F: Float, N: Size> {
    pub first: Source<'a, F, N>,
    pub second: Source<'a, F, N>,
}

/// The problem, and the cube's tile of it.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct Work {
    pub space: Space,
    pub tile: CubeTile,
    pub scale: f32,
    pub unit: usize,
}

/// What this unit works on, of a problem or of a packed batch's sequence; units of cubes that have no rows end here.
#[cube]
pub(super) fn work(
    space: Space,
    sequences: ComptimeOption<&[u32]>,
    scale: f32,
    #[comptime] blueprint: Blueprint,
) -> Work {
    if CUBE_POS >= space.cubes {
        terminate!();
    }
    let own = own(space, sequences, CUBE_POS, comptime!(blueprint.cut()));
    let tile = own.tile;
    if !tile.has_rows() {
        terminate!();
    }
    Work { space: own.space, tile, scale, unit: UNIT_POS as usize }
}

#[cube]
impl Work {
    /// Number in the cube of row number `i` of this unit.
    pub fn row(&self, #[comptime] i: usize, #[comptime] blueprint: Blueprint) -> usize {
        self.unit / comptime!(blueprint.across) + comptime!(i * blueprint.down)
    }
}

/// The tile of a feed at `corner`.
#[cube]
pub(super) fn source<'a, F: Float, N: Size>(
    feed: &Feed<'a, F, N>,
    corner: Position,
) -> Source<'a, F, N> {
    Source::<'a, F, N> { vectors: feed.vectors, walk: feed.walk, corner }
}

/// The tiles of two feeds at `corner`.
#[cube]
pub(super) fn sources<'a, F: Float, N: Size>(
    feed: &FeedPair<'a, F, N>,
    corner: Position,
) -> SourcePair<'a, F, N> {
    SourcePair::<'a, F, N> {
        first: source::<F, N>(&feed.first, corner),
        second: source::<F, N>(&feed.second, corner),
    }
}

/// The cube's rows of a tensor.
#[cube]
pub(super) fn rows<'a, F: Float, N: Size>(
    input: &Input<'a, F, N>,
    work: &Work,
) -> Source<'a, F, N> {
    source::<F, N>(&input.rows(&work.space, &work.tile), work.tile.row_corner())
}

/// The cube's rows of two tensors.
#[cube]
pub(super) fn row_pair<'a, F: Float, N: Size>(
    input: &InputPair<'a, F, N>,
    work: &Work,
) -> SourcePair<'a, F, N> {
    SourcePair::<'a, F, N> {
        first: rows::<F, N>(&input.first, work),
        second: rows::<F, N>(&input.second, work),
    }
}
