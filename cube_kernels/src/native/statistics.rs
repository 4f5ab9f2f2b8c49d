//! What the backward kernels keep of each query besides its vectors, which is nearly all the memory they take.

use super::cut::MAX_STEP;
use crate::{Axis, MAX_RANK, Problem};

/// Floats that the statistics have for a query.
pub(crate) const STATISTICS: usize = 4;

/// Places that a dilation group's queries have in the statistics along an axis.
pub(crate) fn pitch(axis: &Axis) -> usize {
    axis.queries.div_ceil(axis.dilation)
}

/// Places in the statistics along each axis.
pub(crate) fn places(problem: &Problem) -> [usize; MAX_RANK] {
    problem.axes.map(|axis| axis.dilation * pitch(&axis))
}

/// Bytes of the statistics of a problem's own tokens.
pub(crate) fn statistics_bytes(problem: &Problem) -> usize {
    let queries: usize = places(problem).iter().product();
    STATISTICS * size_of::<f32>() * problem.batch * problem.heads * queries
}

/// Attention of all queries to the additional tokens, as one axis; `None` if there are no such tokens.
pub(crate) fn dense(problem: &Problem) -> Option<Problem> {
    (problem.additional > 0).then(|| problem.of_additional())
}

/// Bytes of device memory that a backward pass takes besides its inputs and outputs: 16 for each query
/// and head, twice that with additional tokens. With a bias, a sum of 4 bytes of each of its entries for each CTA that an H200 runs at
/// once, or each tile of 64 queries if they are fewer, of every launch; there is one for each dilation group along axes that kernels
/// cannot step over. Not counted are the counters that launches take their tiles from, and what CTAs that share the heads of a group
/// leave to be added up, see [`split_workspace`](crate::native::sm90::Schedule::split_workspace), and slopes, see
/// [`slopes_workspace`](crate::native::sm90::BackwardPlan::slopes_workspace).
pub fn backward_workspace(problem: &Problem) -> usize {
    let additional = dense(problem).map_or(0, |dense| statistics_bytes(&dense));
    // A box has at most 64 tokens, and most have far fewer along each of several axes.
    let extent = [64, 16, 8][problem.rank() - 1];
    let is_apart = |axis: &&Axis| axis.dilation > MAX_STEP || extent * axis.dilation > 256;
    let launches: usize = problem.axes.iter().filter(is_apart).map(|axis| axis.dilation).product();
    let tiles = problem.batch * problem.heads * problem.queries().div_ceil(launches).div_ceil(64);
    let ctas = 132 * if problem.head_dim.max(problem.head_dim_v) <= 64 { 3 } else { 1 };
    let entries = problem.heads * problem.bias_extents().iter().product::<usize>();
    let sums = size_of::<f32>() * entries * launches * ctas.min(tiles);
    statistics_bytes(problem) + additional + if problem.has_bias { sums } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sums_of_a_bias_are_those_of_all_launches() {
        let plane = |dilation: usize| {
            let axis = Axis::neighborhood(13 * 7, 7).with_dilation(dilation);
            Problem::new([axis, axis], 6, 32).with_batch(2)
        };
        let sums = |problem: Problem| {
            backward_workspace(&problem.with_bias(true)) - backward_workspace(&problem)
        };
        let entries = 6 * 13 * 13 * size_of::<f32>();
        // One launch of more tiles than CTAs, and 169 of a tile for each of twelve heads.
        assert_eq!(sums(plane(1)), entries * 3 * 132);
        assert_eq!(sums(plane(13)), entries * 169 * 12);
    }
}
