//! Tiles from global into shared memory, as `f32`.
//!
//! Units take lines in turn, so that neighbors read neighboring lines of a row.

// `#[cube]` adds a module beside each function, without docs.
// Of equal branches one is chosen at compile time, so that the other costs no comparison.
#![allow(missing_docs, clippy::if_same_then_else)]

use cubecl::prelude::*;

use super::super::blueprint::{Blueprint, Operand};
use super::source::Source;
use crate::MAX_RANK;

/// Lines that a unit reads before it writes the first of them.
const IN_FLIGHT: usize = 8;

/// Lines of a tile, and where they go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Stage {
    /// Rows along each axis.
    tile: [usize; MAX_RANK],
    /// First line of a row.
    first: usize,
    /// Lines of a row.
    lines: usize,
    /// Lines between rows in shared memory.
    pitch: usize,
    /// Units that share the work.
    units: usize,
    /// Neighbors that go to one unit, and units that they go to; `[1, 1]` keeps the order.
    spread: [usize; 2],
}

impl Stage {
    /// All lines of the rows of a cube.
    pub fn rows(blueprint: &Blueprint, operand: Operand) -> Self {
        Self {
            tile: blueprint.row_tile(),
            first: 0,
            lines: operand.lines,
            pitch: blueprint.row_pitch(operand),
            units: blueprint.units(),
            spread: [1, 1],
        }
    }

    /// A piece of the rows of a cube.
    pub fn row_piece(blueprint: &Blueprint, operand: Operand, piece: usize) -> Self {
        let (first, lines) = (piece * operand.depth, operand.piece(piece));
        Self { first, lines, ..Self::rows(blueprint, operand) }
    }

    /// A piece of the columns of a step, spread so that those that units read at once, one of each,
    /// are neighbors.
    pub fn columns(
        blueprint: &Blueprint,
        operand: Operand,
        tile: [usize; MAX_RANK],
        piece: usize,
    ) -> Self {
        Self {
            tile,
            pitch: blueprint.column_pitch(),
            spread: [blueprint.columns_each, blueprint.across],
            ..Self::row_piece(blueprint, operand, piece)
        }
    }

    fn rows_of_tile(&self) -> usize {
        self.tile.iter().product()
    }

    fn total(&self) -> usize {
        self.rows_of_tile() * self.lines
    }

    fn turns(&self) -> usize {
        self.total().div_ceil(self.units)
    }

    /// Whether every unit has a line in turn number `turn`.
    fn is_whole(&self, turn: usize) -> bool {
        (turn + 1) * self.units <= self.total()
    }
}

/// Copies a tile.
#[cube]
pub(super) fn stage<F: Float, N: Size>(
    source: &Source<'_, F, N>,
    shared: &mut [Vector<f32, N>],
    unit: usize,
    #[comptime] stage: Stage,
) {
    let lines = comptime!(stage.lines);
    let turns = comptime!(stage.turns());
    #[unroll]
    for group in 0..comptime!(turns.div_ceil(IN_FLIGHT)) {
        let size = comptime!(IN_FLIGHT.min(turns - group * IN_FLIGHT));
        let mut fetched = Array::<Vector<f32, N>>::new(size);
        #[unroll]
        for i in 0..size {
            let turn = comptime!(group * IN_FLIGHT + i);
            let number = unit + comptime!(turn * stage.units);
            let mut row = number / lines;
            if comptime!(!stage.is_whole(turn)) {
                // Reads some row again, and drops it.
                row %= comptime!(stage.rows_of_tile());
            }
            let at = source.walk.vector(&source.corner, row, comptime!(stage.tile))
                + comptime!(stage.first)
                + number % lines;
            fetched[i] = Vector::cast_from(source.vectors[at]);
        }
        #[unroll]
        for i in 0..size {
            let turn = comptime!(group * IN_FLIGHT + i);
            let number = unit + comptime!(turn * stage.units);
            let row = number / lines;
            let [each, across] = comptime!(stage.spread);
            let mut slot = row;
            if comptime!(each > 1) {
                slot = row % each * across + row / each;
            }
            let at = slot * comptime!(stage.pitch) + number % lines;
            if comptime!(stage.is_whole(turn)) {
                shared[at] = fetched[i];
            } else if number < comptime!(stage.total()) {
                shared[at] = fetched[i];
            }
        }
    }
}
