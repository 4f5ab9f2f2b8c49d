//! Where the vectors of rows and columns lie in memory.

// `#[cube]` and `CubeLaunch` add items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use crate::MAX_RANK;

/// Vectors between neighbors of a tensor.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct Strides {
    pub batch: usize,
    pub z: usize,
    pub y: usize,
    pub x: usize,
    pub head: usize,
}

/// Positions along the axes.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct Position {
    pub z: usize,
    pub y: usize,
    pub x: usize,
}

/// How to get from a position to the vector that its row begins with.
#[derive(CubeType, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(crate) struct Walk {
    pub base: usize,
    pub z: usize,
    pub y: usize,
    pub x: usize,
    /// Last positions, slowest axis first: rows behind them are read from there.
    pub last: Position,
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

/// The position, or the last one there is.
#[cube]
pub(super) fn nearest(position: usize, last: usize) -> usize {
    let mut position = position;
    if position > last {
        position = last;
    }
    position
}

/// Position of row number `row` of the tile `shape` that begins at `corner`.
#[cube]
pub(crate) fn row_position(
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

impl Strides {
    /// Launch argument for a tensor with these elements between neighbors (batch, z, y, x, heads), that is
    /// read in vectors of `vector` elements.
    pub fn argument(strides: [usize; 5], vector: usize) -> StridesLaunch {
        let [batch, z, y, x, head] = strides.map(|stride| stride / vector);
        StridesLaunch::new(batch, z, y, x, head)
    }

    /// What a kernel is compiled for in its place.
    #[cfg(feature = "cuda")]
    pub fn compilation() -> StridesCompilationArg {
        StridesCompilationArg { batch: (), z: (), y: (), x: (), head: () }
    }
}
