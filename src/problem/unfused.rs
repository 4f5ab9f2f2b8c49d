//! The checks of the unfused operators.

use burn_natten_kernels::Problem;

use super::{
    BATCH, HEAD_DIM, HEADS, SPACE, Shapes, TOKENS, Windows, neighborhood, not_empty, same,
    window_axis,
};
use crate::AttentionError;

/// What the last axis of attention weights is called.
const WINDOW: &str = "window";

/// Shapes of the additional keys and values, either of which one half can do without.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Additional {
    pub keys: Option<[usize; 4]>,
    pub values: Option<[usize; 4]>,
}

impl Additional {
    /// Fails if there are other numbers of keys and values, or only those that an operator does not read.
    fn check(&self, is_keys: bool) -> Result<(), AttentionError> {
        const KEYS: &str = "additional_keys";
        const VALUES: &str = "additional_values";
        match (&self.keys, &self.values) {
            (Some(keys), Some(values)) => same(values, VALUES, keys, KEYS, 1, TOKENS),
            (Some(_), None) if !is_keys => {
                Err(AttentionError::AdditionalKv { missing: VALUES, given: KEYS })
            }
            (None, Some(_)) if is_keys => {
                Err(AttentionError::AdditionalKv { missing: KEYS, given: VALUES })
            }
            _ => Ok(()),
        }
    }
}

/// Scores of the keys in each query's window. The problem's values are as its keys.
pub(crate) fn qk(
    [query, key]: [&[usize]; 2],
    bias: Option<&[usize]>,
    additional: Additional,
    windows: Windows<'_>,
    scale: Option<f64>,
) -> Result<Problem, AttentionError> {
    additional.check(true)?;
    let more = additional.keys.map(|keys| (keys, keys));
    let shapes = Shapes { query, key, value: key, additional: more, bias };
    // The bias is an argument of its own.
    let problem = neighborhood(shapes, windows, scale)?.with_bias(false);
    with_axes(problem, &query[1..query.len() - 2], windows)
}

/// Sums of the values in each query's window. The problem's keys are as its values, and its scale is 1.
pub(crate) fn av(
    weights: &[usize],
    value: &[usize],
    additional: Additional,
    windows: Windows<'_>,
) -> Result<Problem, AttentionError> {
    additional.check(false)?;
    let (heads_axis, last) = (weights.len() - 2, weights.len() - 1);
    same(value, "value", weights, "weights", 0, BATCH)?;
    for axis in 1..heads_axis {
        same(value, "value", weights, "weights", axis, SPACE)?;
    }
    not_empty("weights", weights, heads_axis, HEADS)?;
    not_empty("value", value, heads_axis, HEADS)?;
    not_empty("value", value, last, HEAD_DIM)?;
    let (heads, heads_kv) = (weights[heads_axis], value[heads_axis]);
    if !heads.is_multiple_of(heads_kv) {
        return Err(AttentionError::WeightsHeads { heads, heads_kv });
    }
    let rows = [&weights[..last], &value[last..]].concat();
    if let Some(values) = &additional.values {
        // Below they stand for keys as well, whose name an error would give them.
        let expected = [value[0], values[1], value[heads_axis], value[last]];
        for (axis, name) in [(0, BATCH), (2, HEADS), (3, HEAD_DIM)] {
            same(values, "additional_values", &expected, "value", axis, name)?;
        }
    }
    let more = additional.values.map(|values| (values, values));
    let shapes = Shapes { query: &rows, key: value, value, additional: more, bias: None };
    let problem = neighborhood(shapes, windows, Some(1.0))?;
    let problem = with_axes(problem, &weights[1..heads_axis], windows)?;
    let expected = problem.slots() + problem.additional;
    if weights[last] != expected {
        return Err(AttentionError::Shape {
            argument: "weights",
            axis: last,
            name: WINDOW,
            got: weights[last],
            expected,
            other: "kernel_size and additional_values",
        });
    }
    Ok(problem)
}

/// The problem with the axes of its space, even if windows cover all of them: slots and offsets are counted along each.
fn with_axes(
    problem: Problem,
    space: &[usize],
    windows: Windows<'_>,
) -> Result<Problem, AttentionError> {
    let axes = space.iter().enumerate().map(|(axis, length)| window_axis(axis, *length, windows));
    Ok(problem.with_axes(axes.collect::<Result<Vec<_>, _>>()?))
}
