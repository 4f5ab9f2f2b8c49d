//! The unfused operators: attention by its two halves, with the weights of each window in between.
//!
//! Both halves and all gradients are four products of *rows*, one for each query, *tokens*, which are keys or values, and *weights*, one
//! for each slot of a window (`burn_natten_kernels::slots`):
//!
//! ```text
//! dots     weights[q, s] = scale * rows[q] . token(q, s) + bias       qk;  dweights of av
//! sums     rows[q]  = scale * sum over s of weights[q, s] token(q, s)        av;  dq of qk
//! spread   token    = scale * sum over (q, s) that see it of weights[q, s] rows[q]      dv of av;  dk of qk
//! offsets  bias     =         sum over (q, s) with its offset of weights[q, s]              dbias of qk
//! ```
//!
//! A slot that is hidden gets a value of its own from the first, and is not read by the others. Sums are held in f32, or f64 for f64.

#[cfg(feature = "autodiff")]
mod autodiff;
mod extension;
mod operands;
mod plan;
pub(crate) mod reference;

#[cfg(feature = "autodiff")]
pub(crate) use autodiff::{LinearMap, Product, record, record_linear};
pub(crate) use extension::{UnfusedGradientOps, UnfusedOps};
#[cfg(feature = "fusion")]
pub(crate) use operands::OptionalMetadata;
pub(crate) use operands::{Optional, Tokens};
pub(crate) use plan::UnfusedPlan;

use burn::tensor::Shape;
use burn_natten_kernels::Problem;

/// A shape with another last axis: weights of rows, or the other way round.
pub(crate) fn with_last(shape: &Shape, last: usize) -> Shape {
    let sizes = shape.as_slice();
    Shape::from([&sizes[..sizes.len() - 1], &[last]].concat())
}

/// The shape of keys or values beside rows of this shape.
pub(crate) fn space_shape(rows: &Shape, problem: &Problem) -> Shape {
    let sizes = rows.as_slice();
    Shape::from([&sizes[..sizes.len() - 2], &[problem.heads_kv, problem.head_dim]].concat())
}

/// The shape of additional keys or values, if there are any.
pub(crate) fn additional_shape(problem: &Problem) -> Option<Shape> {
    let Problem { batch, additional, heads_kv, head_dim, .. } = *problem;
    (additional > 0).then(|| Shape::new([batch, additional, heads_kv, head_dim]))
}
