//! Native sparse attention of one more token for each sequence by native kernels, which compute all of its steps at once.
//!
//! Asked of a device only where [`is_ready_to_decode`](super::is_ready_to_decode): elsewhere the steps are operators of their own.

mod extension;
mod operands;

use burn::tensor::{IntDType, Shape};
use burn_natten_kernels::native::Element;
use burn_natten_kernels::native::decode::Decoding;

pub(crate) use extension::DecodeOps;
pub(crate) use operands::{DecodeInputs, DecodeResults};

/// What is to be decoded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodePlan {
    pub(crate) decoding: Decoding,
    pub(crate) element: Element,
    /// The type of lists.
    pub(crate) ints: IntDType,
}

impl DecodePlan {
    /// The shape of outputs.
    pub fn out(&self) -> Shape {
        let Decoding { selection, head_dim_v, .. } = &self.decoding;
        Shape::new([selection.batch, 1, selection.heads, *head_dim_v])
    }

    /// That of logsumexps.
    pub fn logsumexp(&self) -> Shape {
        let selection = &self.decoding.selection;
        Shape::new([selection.batch, 1, selection.heads])
    }

    /// That of lists.
    pub fn lists(&self) -> Shape {
        let selection = &self.decoding.selection;
        Shape::new([selection.batch, 1, selection.heads_kv, selection.num_selected])
    }
}
