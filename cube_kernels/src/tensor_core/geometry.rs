//! Tiles of the problem as [`cube`](crate::cube) cuts it, by a [`Blueprint`] and for strided tensors.

use super::blueprint::{Blueprint, Pass};
use crate::Strided;
use crate::cube::{Cut, Tensor};

pub(super) use crate::cube::{CubeTile, FeedPair, InputPair, Position, Space};

impl Blueprint {
    /// How the kernel cuts a problem.
    pub(super) fn cut(&self) -> Cut {
        Cut {
            rank: self.rank,
            is_causal: self.is_causal,
            has_origin: self.has_origin,
            row_tile: self.row_tile(),
            column_tile: self.column_tile(),
            is_inverse: self.pass == Pass::Keys,
        }
    }
}

/// A tensor as it is launched with.
pub(super) fn tensor(tensor: &Strided) -> Tensor<'_> {
    (&tensor.handle, tensor.strides)
}
