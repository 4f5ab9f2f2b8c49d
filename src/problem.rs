//! Checks: from shapes and parameters to a [`Problem`], or to the error that says what is wrong.

pub(crate) mod block_sparse;
pub(crate) mod native_sparse;
pub(crate) mod packed;
pub(crate) mod unfused;

use burn_natten_kernels::{Axis, MAX_RANK, Problem};

use crate::{AttentionError, CausalAlignment};

/// Names of the axes of a tensor around its spatial axes.
pub(crate) const BATCH: &str = "batch";
pub(crate) const SPACE: &str = "space";
pub(crate) const HEADS: &str = "heads";
pub(crate) const HEAD_DIM: &str = "head_dim";
pub(crate) const TOKENS: &str = "tokens";

/// The window parameters of some spatial axes, slowest first; those of
/// [`NeighborhoodOptions`](crate::NeighborhoodOptions).
#[derive(Clone, Copy, Debug)]
pub struct Windows<'a> {
    /// Keys in a window.
    pub kernel_size: &'a [usize],
    /// Queries that share one window.
    pub stride: &'a [usize],
    /// Distance between neighboring keys of a window.
    pub dilation: &'a [usize],
    /// Whether a query sees only keys up to its own index.
    pub is_causal: &'a [bool],
}

/// The shapes of all tensors of an attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shapes<'a> {
    pub query: &'a [usize],
    pub key: &'a [usize],
    pub value: &'a [usize],
    pub additional: Option<([usize; 4], [usize; 4])>,
    /// `[heads, *space]`, of windows alone.
    pub bias: Option<&'a [usize]>,
}

/// Self attention over windows: query, key and value share their spatial axes.
pub(crate) fn neighborhood(
    shapes: Shapes<'_>,
    windows: Windows<'_>,
    scale: Option<f64>,
) -> Result<Problem, AttentionError> {
    let rank = shapes.query.len() - 3;
    for axis in 1..=rank {
        same(shapes.key, "key", shapes.query, "query", axis, SPACE)?;
        same(shapes.value, "value", shapes.query, "query", axis, SPACE)?;
    }
    let space = &shapes.query[1..=rank];
    let mut axes = [Axis::UNIT; MAX_RANK];
    for axis in 0..rank {
        axes[MAX_RANK - rank + axis] = window_axis(axis, space[axis], windows)?;
    }
    over_axes(shapes, axes, windows.kernel_size, scale)
}

/// Attention over windows along these axes, which are those of the tensors; `kernel_size` is without the padding.
fn over_axes(
    shapes: Shapes<'_>,
    axes: [Axis; MAX_RANK],
    kernel_size: &[usize],
    scale: Option<f64>,
) -> Result<Problem, AttentionError> {
    if let Some(bias) = shapes.bias {
        position_bias(bias, shapes.query, kernel_size)?;
        // A bias is by distances along each axis, also where windows cover the space.
        return Ok(finish(shapes, &axes, scale)?.with_bias(true));
    }
    // No axis restricts anything: one long axis saves kernels the arithmetic of three. Tensors are seen in it where their
    // tokens lie in one line, and copied where not.
    if axes.iter().all(Axis::is_full) {
        let product = |length: fn(&Axis) -> usize| axes.iter().map(length).product();
        let (queries, keys) = (product(|axis| axis.queries), product(|axis| axis.keys));
        return finish(shapes, &[Axis::UNIT, Axis::UNIT, Axis::dense(queries, keys, false)], scale);
    }
    finish(shapes, &axes, scale)
}

/// [`neighborhood`] of some queries to the keys that they see: a part of `space` along one axis. `part` says which.
pub(crate) fn part_of_space(
    shapes: Shapes<'_>,
    windows: Windows<'_>,
    space: &[usize],
    (along, part): (usize, Axis),
    scale: Option<f64>,
) -> Result<Problem, AttentionError> {
    let rank = space.len();
    let mut axes = [Axis::UNIT; MAX_RANK];
    for (axis, length) in space.iter().enumerate() {
        axes[MAX_RANK - rank + axis] = window_axis(axis, *length, windows)?;
    }
    axes[MAX_RANK - rank + along] = part;
    over_axes(shapes, axes, windows.kernel_size, scale)
}

/// [`dense`] where the causality, and where queries stand among the keys, is said by `axis`.
pub(crate) fn dense_part(
    shapes: Shapes<'_>,
    axis: Axis,
    scale: Option<f64>,
) -> Result<Problem, AttentionError> {
    same(shapes.value, "value", shapes.key, "key", 1, TOKENS)?;
    finish(shapes, &[axis], scale)
}

/// A bias has the heads of the query, and an entry for each distance of a key and a query that sees it.
fn position_bias(
    bias: &[usize],
    query: &[usize],
    kernel_size: &[usize],
) -> Result<(), AttentionError> {
    let (got, expected) = (bias[0], query[query.len() - 2]);
    if got != expected {
        let (argument, other) = ("bias", "query");
        return Err(AttentionError::Shape { argument, axis: 0, name: HEADS, got, expected, other });
    }
    for (axis, (got, kernel_size)) in bias[1..].iter().zip(kernel_size).enumerate() {
        let (axis, got, kernel_size) = (axis + 1, *got, *kernel_size);
        let expected = 2 * kernel_size - 1;
        if got != expected {
            return Err(AttentionError::BiasLength { axis, got, expected, kernel_size });
        }
    }
    Ok(())
}

/// Dense attention: `[batch, tokens, heads, head_dim]`, where keys may be other tokens than queries.
pub(crate) fn dense(
    shapes: Shapes<'_>,
    causal: Option<CausalAlignment>,
    scale: Option<f64>,
) -> Result<Problem, AttentionError> {
    let axis = Axis::dense(shapes.query[1], shapes.key[1], causal.is_some());
    let axis = match causal {
        Some(CausalAlignment::Start) => axis.with_origin(0),
        _ => axis,
    };
    dense_part(shapes, axis, scale)
}

/// Spatial axis number `axis`, of `length` tokens.
pub(crate) fn window_axis(
    axis: usize,
    length: usize,
    windows: Windows<'_>,
) -> Result<Axis, AttentionError> {
    let (kernel_size, stride) = (windows.kernel_size[axis], windows.stride[axis]);
    let dilation = windows.dilation[axis];
    // Along an axis of one token there is no more than one key.
    at_least("kernel_size", axis, kernel_size, if length == 1 { 1 } else { 2 })?;
    at_most("kernel_size", axis, kernel_size, length, "the length of the axis")?;
    at_least("stride", axis, stride, 1)?;
    at_most("stride", axis, stride, kernel_size, "kernel_size")?;
    at_least("dilation", axis, dilation, 1)?;
    let max = length / kernel_size;
    at_most("dilation", axis, dilation, max, "the length of the axis / kernel_size")?;
    Ok(Axis::neighborhood(length, kernel_size)
        .with_stride(stride)
        .with_dilation(dilation)
        .with_causal(windows.is_causal[axis]))
}

/// The checks that every attention shares: batch, heads, head_dim, scale, additional tokens.
fn finish(
    shapes: Shapes<'_>,
    axes: &[Axis],
    scale: Option<f64>,
) -> Result<Problem, AttentionError> {
    let Shapes { query, key, value, additional, .. } = shapes;
    let (heads_axis, dim_axis) = (query.len() - 2, query.len() - 1);
    same(key, "key", query, "query", 0, BATCH)?;
    same(value, "value", query, "query", 0, BATCH)?;
    same(value, "value", key, "key", heads_axis, HEADS)?;
    same(key, "key", query, "query", dim_axis, HEAD_DIM)?;
    for (argument, shape) in [("query", query), ("key", key), ("value", value)] {
        not_empty(argument, shape, heads_axis, HEADS)?;
        not_empty(argument, shape, dim_axis, HEAD_DIM)?;
    }
    let (heads, heads_kv) = (query[heads_axis], key[heads_axis]);
    if !heads.is_multiple_of(heads_kv) {
        return Err(AttentionError::Heads { heads, heads_kv });
    }
    let head_dim = query[dim_axis];
    let scale = scale.unwrap_or_else(|| (head_dim as f64).powf(-0.5));
    if !scale.is_finite() {
        return Err(AttentionError::Scale { got: scale });
    }
    let additional = match additional {
        Some((keys, values)) => additional_tokens(key, value, &keys, &values)?,
        None => 0,
    };
    Ok(Problem::new(axes, heads, head_dim)
        .with_batch(query[0])
        .with_heads_kv(heads_kv)
        .with_head_dim_v(value[dim_axis])
        .with_additional(additional)
        .with_scale(scale))
}

fn additional_tokens(
    key: &[usize],
    value: &[usize],
    keys: &[usize; 4],
    values: &[usize; 4],
) -> Result<usize, AttentionError> {
    let last = |shape: &[usize]| [shape[0], shape[shape.len() - 2], shape[shape.len() - 1]];
    for (argument, got, other, expected) in [
        ("additional_keys", keys, "key", last(key)),
        ("additional_values", values, "value", last(value)),
    ] {
        for (axis, name, expected) in
            [(0, BATCH, expected[0]), (2, HEADS, expected[1]), (3, HEAD_DIM, expected[2])]
        {
            if got[axis] != expected {
                let got = got[axis];
                return Err(AttentionError::Shape { argument, axis, name, got, expected, other });
            }
        }
    }
    same(values, "additional_values", keys, "additional_keys", 1, TOKENS)?;
    Ok(keys[1])
}

/// Whether there is no query, or no key for any query.
pub(crate) fn is_empty(problem: &Problem) -> bool {
    problem.batch == 0 || problem.queries() == 0 || problem.keys() + problem.additional == 0
}

/// Fails unless `got` and `expected` have the same size along `axis`.
pub(crate) fn same(
    got: &[usize],
    argument: &'static str,
    expected: &[usize],
    other: &'static str,
    axis: usize,
    name: &'static str,
) -> Result<(), AttentionError> {
    let (got, expected) = (got[axis], expected[axis]);
    if got == expected {
        return Ok(());
    }
    Err(AttentionError::Shape { argument, axis, name, got, expected, other })
}

fn not_empty(
    argument: &'static str,
    shape: &[usize],
    axis: usize,
    name: &'static str,
) -> Result<(), AttentionError> {
    match shape[axis] {
        0 => Err(AttentionError::Empty { argument, axis, name }),
        _ => Ok(()),
    }
}

fn at_least(
    parameter: &'static str,
    axis: usize,
    got: usize,
    min: usize,
) -> Result<(), AttentionError> {
    if got >= min {
        return Ok(());
    }
    Err(AttentionError::TooSmall { parameter, axis, got, min })
}

fn at_most(
    parameter: &'static str,
    axis: usize,
    got: usize,
    max: usize,
    bound: &'static str,
) -> Result<(), AttentionError> {
    if got <= max {
        return Ok(());
    }
    Err(AttentionError::TooLarge { parameter, axis, got, max, bound })
}
