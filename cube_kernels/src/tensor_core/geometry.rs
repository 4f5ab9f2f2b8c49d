//! Tiles of the problem as [`cube`](crate::cube) cuts it, by a [`Blueprint`] and for strided tensors.

use cubecl::client::Client;
use cubecl::ir::{AddressType, ElemType};

use super::blueprint::{Blueprint, Pass};
use crate::cube::{Cut, Tensor};
use crate::{Problem, Strided};

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

/// A launch, but for its cubes, its kernel and its tensors.
pub(super) struct Launching<'a> {
    pub client: &'a Client,
    /// The problem, or that of the line of a packed batch.
    pub problem: &'a Problem,
    /// The type in memory.
    pub dtype: ElemType,
    pub address_type: AddressType,
}

/// A tensor as it is launched with.
pub(super) fn tensor(tensor: &Strided) -> Tensor<'_> {
    (&tensor.handle, tensor.strides)
}
