//! Tiles from global into shared memory.
//!
//! Units take vectors in turn, so that neighbors read neighboring vectors of a row.

// `#[cube]` adds a module beside each function, without docs.
// Of equal branches one is chosen at compile time, so that the other costs no comparison.
#![allow(missing_docs, clippy::if_same_then_else)]

use cubecl::prelude::barrier::copy_async;
use cubecl::prelude::*;

use super::blueprint::{Blueprint, Compiler, Operand, Staging};
use super::geometry::Position;
use super::intrinsics::{begin_copy, wait_copies};
use super::tf32;
use crate::MAX_RANK;
use crate::cube::Feed;

/// A tile's shape in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stage {
    /// Rows along each axis.
    pub tile: [usize; MAX_RANK],
    /// Elements of a vector.
    pub vector: usize,
    /// Vectors of a row.
    pub vectors: usize,
    /// The same in whole matrices.
    pub padded: usize,
    /// Vectors between rows in shared memory.
    pub pitch: usize,
    /// Units that share the work.
    pub units: usize,
    /// How the tile gets here.
    pub staging: Staging,
    /// Whether elements are f32 and rounded to tf32, on the way through registers where that is the way.
    pub is_tf32: bool,
}

impl Stage {
    /// A tile of vectors of `dim` elements.
    pub fn new(
        blueprint: &Blueprint,
        operand: Operand,
        dim: usize,
        tile: [usize; MAX_RANK],
    ) -> Self {
        let vector = blueprint.vector;
        Self {
            tile,
            vector,
            vectors: dim / vector,
            padded: operand.dim / vector,
            pitch: operand.pitch,
            units: blueprint.units(),
            staging: blueprint.staging,
            is_tf32: operand.is_tf32,
        }
    }

    /// Whether units copy, and do not carry the tile through registers.
    fn is_async(&self) -> bool {
        self.staging != Staging::Registers
    }

    fn rows(&self) -> usize {
        self.tile.iter().product()
    }

    /// Vectors of the tile.
    fn total(&self) -> usize {
        self.rows() * self.vectors
    }

    fn vector_bytes(&self) -> u32 {
        let size = if self.is_tf32 { size_of::<f32>() } else { size_of::<u16>() };
        (self.vector * size) as u32
    }

    /// Vectors that a unit takes.
    pub fn turns(&self) -> usize {
        self.total().div_ceil(self.units)
    }

    /// Whether every unit has a vector in turn number `turn`.
    fn is_whole(&self, turn: usize) -> bool {
        (turn + 1) * self.units <= self.total()
    }
}

/// Brings this unit's share of the tile at `corner` through registers.
#[cube]
pub(super) fn bring<F: Float, N: Size>(
    feed: &Feed<'_, F, N>,
    shared: &mut [Vector<F, N>],
    corner: &Position,
    unit: usize,
    #[comptime] stage: Stage,
) {
    let fetched = fetch::<F, N>(feed, corner, unit, stage);
    put::<F, N>(&fetched, shared, unit, stage);
}

/// Sends for this unit's share of the tile at `corner`: begins to copy it into `shared`, if it `is_there`, or reads it
/// into registers, from which [`receive`] takes it.
#[cube]
pub(super) fn send<F: Float, N: Size>(
    feed: &Feed<'_, F, N>,
    shared: &mut [Vector<F, N>],
    corner: &Position,
    is_there: bool,
    unit: usize,
    #[comptime] stage: Stage,
) -> Array<Vector<F, N>> {
    if comptime!(stage.is_async()) {
        if is_there {
            begin::<F, N>(feed, shared, corner, unit, stage);
        }
        Array::new(1usize)
    } else {
        // A tile that is not there is read in vain.
        fetch::<F, N>(feed, corner, unit, stage)
    }
}

/// Puts what [`send`] left in registers into shared memory, where that is the way.
#[cube]
pub(super) fn receive<F: Float, N: Size>(
    sent: &Array<Vector<F, N>>,
    shared: &mut [Vector<F, N>],
    unit: usize,
    #[comptime] stage: Stage,
) {
    if comptime!(!stage.is_async()) {
        put::<F, N>(sent, shared, unit, stage);
    }
}

/// Waits until all that this unit has sent for is there; other units' is behind a barrier.
#[cube]
pub(super) fn settle(#[comptime] staging: Staging) {
    if comptime!(staging == Staging::Async(Compiler::Llvm)) {
        wait_copies();
    } else if comptime!(staging == Staging::Async(Compiler::Cpp)) {
        gpu_asm!("cp.async.wait_group 0;");
    }
}

/// Reads this unit's share of the tile at `corner`.
#[cube]
fn fetch<F: Float, N: Size>(
    feed: &Feed<'_, F, N>,
    corner: &Position,
    unit: usize,
    #[comptime] stage: Stage,
) -> Array<Vector<F, N>> {
    let vectors = comptime!(stage.vectors);
    let turns = comptime!(stage.turns());
    let mut fetched = Array::new(turns);
    #[unroll]
    for turn in 0..turns {
        let number = unit + comptime!(turn * stage.units);
        let mut row = number / vectors;
        if comptime!(!stage.is_whole(turn)) {
            // Reads some row again, and drops it.
            row %= comptime!(stage.rows());
        }
        let at = feed.walk.vector(corner, row, comptime!(stage.tile)) + number % vectors;
        fetched[turn] = feed.vectors[at];
    }
    fetched
}

/// Writes what [`fetch`] read.
#[cube]
fn put<F: Float, N: Size>(
    fetched: &Array<Vector<F, N>>,
    shared: &mut [Vector<F, N>],
    unit: usize,
    #[comptime] stage: Stage,
) {
    let vectors = comptime!(stage.vectors);
    #[unroll]
    for turn in 0..comptime!(stage.turns()) {
        let number = unit + comptime!(turn * stage.units);
        let at = number / vectors * comptime!(stage.pitch) + number % vectors;
        let mut vector = fetched[turn];
        if comptime!(stage.is_tf32) {
            vector = tf32::round::<F, N>(vector);
        }
        if comptime!(stage.is_whole(turn)) {
            shared[at] = vector;
        } else if number < comptime!(stage.total()) {
            shared[at] = vector;
        }
    }
}

/// Begins to copy this unit's share of the tile at `corner`.
#[cube]
fn begin<F: Float, N: Size>(
    feed: &Feed<'_, F, N>,
    shared: &mut [Vector<F, N>],
    corner: &Position,
    unit: usize,
    #[comptime] stage: Stage,
) {
    let vectors = comptime!(stage.vectors);
    #[unroll]
    for turn in 0..comptime!(stage.turns()) {
        let number = unit + comptime!(turn * stage.units);
        let row = number / vectors;
        let column = number % vectors;
        let to = row * comptime!(stage.pitch) + column;
        if comptime!(stage.is_whole(turn)) {
            let from = feed.walk.vector(corner, row, comptime!(stage.tile)) + column;
            copy::<F, N>(&feed.vectors[from..from + 1], &mut shared[to..to + 1], stage);
        } else if number < comptime!(stage.total()) {
            let from = feed.walk.vector(corner, row, comptime!(stage.tile)) + column;
            copy::<F, N>(&feed.vectors[from..from + 1], &mut shared[to..to + 1], stage);
        }
    }
    if comptime!(stage.staging == Staging::Async(Compiler::Cpp)) {
        gpu_asm!("cp.async.commit_group;");
    }
}

/// Begins to copy a vector.
#[cube]
fn copy<F: Float, N: Size>(
    from: &[Vector<F, N>],
    to: &mut [Vector<F, N>],
    #[comptime] stage: Stage,
) {
    if comptime!(stage.staging == Staging::Async(Compiler::Llvm)) {
        begin_copy(from, to, comptime!(stage.vector_bytes()));
    } else {
        copy_async(from, to, comptime!(stage.vector as u32));
    }
}

/// Zeros behind the ends of the vectors of `tiles` tiles, which products read.
#[cube]
pub(super) fn clear<F: Float, N: Size>(
    shared: &mut [Vector<F, N>],
    unit: usize,
    #[comptime] tiles: usize,
    #[comptime] stage: Stage,
) {
    let missing = comptime!(stage.padded - stage.vectors);
    if comptime!(missing > 0) {
        let total = comptime!(tiles * stage.rows() * missing);
        for turn in 0..comptime!(total.div_ceil(stage.units)) {
            let number = unit + turn * comptime!(stage.units);
            if number < total {
                let row = number / missing;
                let at = row * comptime!(stage.pitch) + comptime!(stage.vectors) + number % missing;
                shared[at] = Vector::new(F::new(0.0));
            }
        }
    }
}
