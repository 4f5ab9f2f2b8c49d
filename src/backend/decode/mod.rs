//! Native sparse attention of one more token for each sequence by native kernels, which compute all of its steps at once.
//!
//! Asked of a device only where [`is_ready_to_decode`](super::is_ready_to_decode): elsewhere the steps are operators of their own.

mod extension;
mod operands;

use burn::tensor::{IntDType, Shape};
use burn_natten_kernels::native::Element;
use burn_natten_kernels::native::decode::Decoding;

pub(crate) use extension::DecodeOps;
pub(crate) use operands::{
    AppendInputs, AppendResults, DecodeInputs, DecodeResults, Memory, NewTokens,
};

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

/// Tokens of a memory that are in use.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Span {
    pub(crate) start: usize,
    pub(crate) count: usize,
}

/// What is to be decoded, and where its tokens are, the new one among them. Compressed blocks and all tokens begin with the memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AppendPlan {
    pub(crate) decode: DecodePlan,
    /// Of keys and of values: what is not compressed yet, and the window, where these have memory of their own.
    pub(crate) rest: [Span; 2],
    pub(crate) window: [Span; 2],
}
