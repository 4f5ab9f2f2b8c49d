//! What no native kernel computes.

use super::MAX_STEP;
use super::statistics::places;
use crate::{Axis, Problem};

/// Why kernels for vectors of up to `longest` elements and scales from `least_scale` on cannot compute a problem, whatever else they
/// cannot; `None` if they can.
pub(super) fn unsupported(problem: &Problem, longest: usize, least_scale: f64) -> Option<String> {
    let dims = [("head_dim", problem.head_dim), ("head_dim of value", problem.head_dim_v)];
    for (name, dim) in dims {
        if dim == 0 || dim % 8 != 0 || dim > longest {
            return Some(format!("{name} is {dim}, not a multiple of 8 up to {longest}"));
        }
    }
    if problem.scale.is_nan() || problem.scale < least_scale {
        return Some(format!("scale is {}, below {least_scale:e}", problem.scale));
    }
    if problem.batch > 1 && problem.axes[0].queries != problem.axes[0].keys {
        return Some("the slowest of three axes has other queries than keys".into());
    }
    if problem.keys() == 0 {
        return Some("there are no keys".into());
    }
    // Tile numbers; positions in one-hot masks.
    if problem.axes.iter().any(|axis| axis.queries.max(axis.keys) >= 1 << 20 && problem.rank() > 1)
    {
        return Some("an axis has 2^20 or more tokens".into());
    }
    // Such groups are launched one by one, and samples of one have to lie a whole number of its
    // strides apart.
    let slowest = &problem.axes[0];
    let is_uneven = slowest.dilation > MAX_STEP && !slowest.keys.is_multiple_of(slowest.dilation);
    if problem.batch > 1 && is_uneven {
        let Axis { keys, dilation, .. } = slowest;
        return Some(format!(
            "the slowest axis has a dilation of {dilation}, above {MAX_STEP}, that does not divide its length of {keys}"
        ));
    }
    let tokens = problem.queries().max(problem.keys()).max(problem.additional);
    // Of their places in the statistics, in CTAs of up to 1,024 rows.
    let rows = places(problem).iter().product::<usize>().saturating_mul(problem.heads);
    if rows.saturating_add(1024) > 1 << 31 {
        return Some("a sample has 2^31 or more rows of queries".into());
    }
    if tokens.saturating_mul(problem.batch) >= 1 << 31 || problem.batch * problem.heads >= 1 << 24 {
        return Some("there are 2^31 or more tokens, or 2^24 or more heads".into());
    }
    None
}
