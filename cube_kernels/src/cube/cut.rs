//! How a problem is cut into tiles, and how many cubes that makes.

use crate::{Axis, MAX_RANK, Problem, Sequence};

/// How a problem is cut into tiles; part of what a kernel is specialised by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Cut {
    /// Number of axes, 1 to 3.
    pub rank: usize,
    /// Which axes are causal, slowest first.
    pub is_causal: [bool; MAX_RANK],
    /// Whether queries may stand elsewhere than keys of the same number.
    pub has_origin: bool,
    /// Rows of a cube along each axis.
    pub row_tile: [usize; MAX_RANK],
    /// Columns of a step along each axis.
    pub column_tile: [usize; MAX_RANK],
    /// Whether rows are keys.
    pub is_inverse: bool,
}

impl Cut {
    /// Rows and columns of an axis.
    pub fn sides(&self, axis: &Axis) -> [usize; 2] {
        if self.is_inverse { [axis.keys, axis.queries] } else { [axis.queries, axis.keys] }
    }

    /// Numbers of the first row and of the first column of a sequence.
    pub fn firsts(&self, sequence: &Sequence) -> [usize; 2] {
        let Sequence { query, key, .. } = *sequence;
        if self.is_inverse { [key, query] } else { [query, key] }
    }

    /// Tiles of rows of a dilation group along axis number `index`.
    pub fn tiles(&self, axis: &Axis, index: usize) -> usize {
        self.sides(axis)[0].div_ceil(axis.dilation).div_ceil(self.row_tile[index])
    }

    /// Heads of the rows.
    pub fn heads(&self, problem: &Problem) -> usize {
        if self.is_inverse { problem.heads_kv } else { problem.heads }
    }

    /// Cubes that a problem takes.
    pub fn cubes(&self, problem: &Problem) -> usize {
        let axes = problem.axes.iter().enumerate();
        let tiles: usize =
            axes.map(|(index, axis)| axis.dilation * self.tiles(axis, index)).product();
        tiles * problem.batch * self.heads(problem)
    }
}
