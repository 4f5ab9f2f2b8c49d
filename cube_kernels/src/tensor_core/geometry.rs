//! Tiles of the problem as [`tiles`](crate::tiles) cuts it, by a [`Blueprint`] and for strided tensors.

use super::blueprint::{Blueprint, Pass};
#[cfg(feature = "cuda")]
use crate::tiles::SpaceCompilationArg;
#[cfg(feature = "cuda")]
pub(super) use crate::tiles::strides_compilation;
use crate::tiles::{self, Cut, SpaceLaunch, StridesLaunch};
use crate::{Problem, Strided};

pub(super) use crate::tiles::{AxisSpace, AxisTile, CubeTile, Position, Space, Strides, Walk};

impl Blueprint {
    /// How the kernel cuts a problem.
    pub(super) fn cut(&self) -> Cut {
        Cut {
            rank: self.rank,
            is_causal: self.is_causal,
            row_tile: self.row_tile(),
            column_tile: self.column_tile(),
            is_inverse: self.pass == Pass::Keys,
        }
    }
}

/// Cubes that a problem takes.
pub(super) fn cubes(problem: &Problem, blueprint: &Blueprint) -> usize {
    tiles::cubes(problem, &blueprint.cut())
}

/// Launch argument for a problem.
pub(super) fn space(problem: &Problem, blueprint: &Blueprint) -> SpaceLaunch {
    tiles::space(problem, &blueprint.cut())
}

/// Launch argument for a tensor that is read in vectors of `vector` elements.
pub(super) fn strides(tensor: &Strided, vector: usize) -> StridesLaunch {
    tiles::strides(tensor.strides, vector)
}

/// What a kernel is compiled for in place of [`space`].
#[cfg(feature = "cuda")]
pub(super) fn space_compilation(blueprint: &Blueprint) -> SpaceCompilationArg {
    tiles::space_compilation(&blueprint.cut())
}
