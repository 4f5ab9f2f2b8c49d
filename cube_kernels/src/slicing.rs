//! How the portable kernels divide long rows, and what that makes them compute again.
//!
//! A unit has registers for a few *lines* of sums, a line being one vector of elements. Longer rows
//! fall into slices, one unit each, and every slice needs the scores, which it computes from whole
//! rows. Nothing of this needs a device, so that a plan can say it without one.

use crate::Problem;

/// Lines of sums that a unit of the forward pass holds: 128 registers at 4 elements a line, half
/// of what NVIDIA and AMD hardware gives to a thread.
pub const FORWARD_LINES: usize = 32;
/// The same where a unit has two rows of sums, dk and dv.
pub const GATHER_LINES: usize = 16;

/// Elements of a line: the largest of 4, 2 and 1 that divides both head dimensions.
pub fn vector_size(problem: &Problem) -> usize {
    let dims = [problem.head_dim, problem.head_dim_v];
    [4, 2, 1].into_iter().find(|size| dims.iter().all(|dim| dim % size == 0)).unwrap_or(1)
}

/// Slices of a row in the three kernels that sum rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slices {
    /// The forward pass, which sums value rows.
    pub forward: usize,
    /// The backward pass of the queries, which sums key rows.
    pub query: usize,
    /// The backward pass of the keys, which sums query rows and rows of the output's gradient.
    pub key: usize,
}

impl Slices {
    /// The slices of a problem's rows.
    pub fn of(problem: &Problem) -> Self {
        let lines = |dim: usize| dim / vector_size(problem);
        let (key, value) = (lines(problem.head_dim), lines(problem.head_dim_v));
        Self {
            forward: value.div_ceil(FORWARD_LINES),
            query: key.div_ceil(FORWARD_LINES),
            key: key.max(value).div_ceil(GATHER_LINES),
        }
    }

    /// Operations of a forward and of a backward pass, those on scores that are computed again
    /// included; a multiply-add counts as two.
    ///
    /// ```rust
    /// use burn_natten_kernels::{Axis, Problem, slicing::Slices};
    ///
    /// let problem = Problem::new([Axis::dense(64, 64, false)], 1, 128);
    /// let [forward, backward] = Slices::of(&problem).executed_flops(&problem);
    /// assert_eq!(forward, problem.forward_flops());
    /// // Two passes, the second in two slices: 9 products instead of 5.
    /// assert_eq!(backward, problem.backward_flops() / 5 * 9);
    /// ```
    pub fn executed_flops(&self, problem: &Problem) -> [u64; 2] {
        let pairs = (problem.batch * problem.heads) as u64 * problem.pairs();
        let (key, value) = (problem.head_dim as u64, problem.head_dim_v as u64);
        let scores = key + value;
        let forward = self.forward as u64 * key + value;
        let query = self.query as u64 * scores + key;
        let gather = self.key as u64 * scores + key + value;
        [2 * pairs * forward, 2 * pairs * (query + gather)]
    }
}
