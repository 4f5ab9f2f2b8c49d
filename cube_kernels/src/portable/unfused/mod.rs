//! The products that the halves of an attention and their gradients are made of, with the weights of each window in memory.
//!
//! *Rows* belong to queries, *tokens* are keys or values, and *weights* have one element for each [slot](crate::slots):
//!
//! ```text
//! dots     weights[q, s] = scale * rows[q] . token(q, s) + bias                a unit for each line of slots
//! sums     rows[q]  = scale * sum over s of weights[q, s] token(q, s)          a unit for each line of a row
//! spread   token    = scale * sum over (q, s) that see it of weights[q, s] rows[q]     a unit for each line of a token
//! offsets  bias     =         sum over (q, s) with its offset of weights[q, s]         a unit for each entry and chunk of lines
//! ```
//!
//! A problem here has tokens of one kind: its `head_dim` is that of rows and tokens, and `head_dim_v` is not read. Rows and tokens may be
//! views, weights and results are contiguous; all have one element type, and sums are held in `f32`. Nothing is summed by atomics, so that
//! results repeat bit by bit. Weights in hidden slots are not read.

mod dots;
mod launch;
mod lines;
mod offsets;
mod slot;
mod spread;
mod sums;

pub use launch::{DotsInputs, dots, dots_with, offsets, spread, sums};
pub use lines::LineTile;

/// Something for the tokens of the space, and for the additional ones, which are there if, and only if, the problem has some.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tokens<T> {
    /// For `[batch, *space, heads_kv, head_dim]`.
    pub space: T,
    /// For `[batch, additional, heads_kv, head_dim]`.
    pub additional: Option<T>,
}

impl<T> Tokens<T> {
    /// The same by reference.
    pub fn as_ref(&self) -> Tokens<&T> {
        Tokens { space: &self.space, additional: self.additional.as_ref() }
    }

    /// What `of` makes of each.
    pub fn map<U>(self, mut of: impl FnMut(T) -> U) -> Tokens<U> {
        Tokens { space: of(self.space), additional: self.additional.map(of) }
    }
}
