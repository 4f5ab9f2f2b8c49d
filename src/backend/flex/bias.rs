//! The relative position bias: adding it to scores, and summing up its gradient.
//!
//! A line of a bias is all distances along the fastest axis, for one head and one distance along each of the slower
//! axes. What a token meets in a line of partners is an interval there: in order for the keys of a query, in reverse
//! for the queries of a key. So a pass over keys has a bias whose lines are reversed.

use std::borrow::Cow;
use std::ops::Range;

use burn_natten_kernels::{MAX_RANK, Problem};

use super::block::Columns;
use super::operand::Grid;
use super::simd::{BLOCK, Real};
use super::sweep::Segment;

/// The bias of a problem, `[heads, *distances]`.
pub(super) struct Bias<'a, A: Clone> {
    entries: Cow<'a, [A]>,
    distances: Distances,
}

impl<'a, A: Real> Bias<'a, A> {
    pub fn new(entries: Cow<'a, [A]>, problem: &Problem) -> Self {
        Self { entries, distances: Distances::new(problem) }
    }

    /// The same with every line in reverse.
    pub fn reversed(mut self) -> Self {
        let length = self.distances.extents[MAX_RANK - 1];
        self.distances = self.distances.reversed();
        self.entries.to_mut().chunks_mut(length).for_each(<[A]>::reverse);
        self
    }

    /// Adds it to the scores of a block of queries with keys, where they are the queries' own.
    #[inline(always)]
    pub fn add_to_queries(
        &self,
        scores: &mut [Vec<A>; BLOCK],
        stand: &Stand<'_>,
        segments: &[Segment],
    ) {
        for segment in segments {
            let key = stand.partners.outer_at(segment.row);
            self.add(scores, self.distances.line(stand.head, stand.outer, key), stand, segment);
        }
    }

    /// Adds it to the scores of a block of keys with queries, where they are the keys' own. Its lines are reversed.
    #[inline(always)]
    pub fn add_to_keys(
        &self,
        scores: &mut [Vec<A>; BLOCK],
        stand: &Stand<'_>,
        segments: &[Segment],
    ) {
        for segment in segments {
            let query = stand.partners.outer_at(segment.row);
            self.add(scores, self.distances.line(stand.head, query, stand.outer), stand, segment);
        }
    }

    #[inline(always)]
    fn add(&self, scores: &mut [Vec<A>; BLOCK], line: usize, stand: &Stand<'_>, segment: &Segment) {
        let line = &self.entries[line..][..self.distances.extents[MAX_RANK - 1]];
        for (i, scores) in scores.iter_mut().enumerate() {
            let own = &segment.columns.own[i];
            let entries = &line[self.distances.interval(&segment.columns, i, stand.positions[i])];
            let scores = &mut scores[segment.offset..][own.clone()];
            for (score, entry) in scores.iter_mut().zip(entries) {
                *score = *score + *entry;
            }
        }
    }
}

/// Where the tokens of a block stand, and the tokens that they meet.
pub(super) struct Stand<'g> {
    /// The head of the queries.
    pub head: usize,
    /// Coordinates of their line along the slower axes.
    pub outer: [usize; 2],
    /// Where they are in their dilation group.
    pub positions: [usize; BLOCK],
    pub partners: &'g Grid,
}

/// Where distances stand in a bias.
struct Distances {
    extents: [usize; MAX_RANK],
    kernel_size: [usize; MAX_RANK],
    dilation: [usize; MAX_RANK],
    /// Where the first query stands among the keys.
    origin: [usize; MAX_RANK],
    /// The entry of a line for a partner where a token's position is 0, and how far ahead tokens stand of their positions.
    first: usize,
    ahead: usize,
}

impl Distances {
    /// Those of the partners of queries. With a bias, queries stand among the keys.
    fn new(problem: &Problem) -> Self {
        let kernel_size = problem.axes.map(|axis| axis.kernel_size);
        let shifts = problem.shifts();
        Self {
            extents: problem.bias_extents(),
            kernel_size,
            dilation: problem.axes.map(|axis| axis.dilation),
            origin: problem.axes.map(|axis| axis.origin.unsigned_abs()),
            first: kernel_size[MAX_RANK - 1] - 1,
            ahead: shifts[MAX_RANK - 1].0,
        }
    }

    /// Those of the partners of keys, which queries are, in lines that are reversed.
    fn reversed(self) -> Self {
        Self { first: self.first + self.ahead, ahead: 0, ..self }
    }

    /// The first entry of a line: that of queries and keys at these coordinates along the slower axes, which see each
    /// other.
    #[inline(always)]
    fn line(&self, head: usize, query: [usize; 2], key: [usize; 2]) -> usize {
        let place = |axis: usize| {
            let (size, dilation) = (self.kernel_size[axis], self.dilation[axis]);
            (key[axis] + (size - 1) * dilation - query[axis] - self.origin[axis]) / dilation
        };
        let [z, y, x] = self.extents;
        ((head * z + place(0)) * y + place(1)) * x
    }

    /// The entries for the columns that are a token's own; the token is at `position`.
    #[inline(always)]
    fn interval(&self, columns: &Columns, token: usize, position: usize) -> Range<usize> {
        let own = &columns.own[token];
        if own.is_empty() {
            return 0..0;
        }
        let first = columns.start + own.start + self.first - position - self.ahead;
        first..first + own.len()
    }
}

/// Strands of tasks whose sums are kept apart, over all heads. Not the number of threads, so that it does not decide
/// in which order numbers are added.
const STRANDS: usize = 64;

/// How many strands the `tasks` of each of `heads` heads make.
pub(super) fn strands(heads: usize, tasks: usize) -> usize {
    STRANDS.div_ceil(heads).min(tasks).max(1)
}

/// The gradient of the bias of one head, as far as a strand of tasks has come: sums in f64, whatever the type of the
/// scores, as there are as many terms as queries.
pub(super) struct BiasGradient {
    sums: Vec<f64>,
    distances: Distances,
}

impl BiasGradient {
    pub fn new(problem: &Problem) -> Self {
        let distances = Distances::new(problem);
        Self { sums: vec![0.0; distances.extents.iter().product()], distances }
    }

    /// Adds the gradients of the scores of a block's `live` queries, where they are their own.
    #[inline(always)]
    pub fn add<A: Real>(
        &mut self,
        scores: &[Vec<A>; BLOCK],
        live: usize,
        stand: &Stand<'_>,
        segments: &[Segment],
    ) {
        let length = self.distances.extents[MAX_RANK - 1];
        for segment in segments {
            let key = stand.partners.outer_at(segment.row);
            let line = self.distances.line(0, stand.outer, key);
            let line = &mut self.sums[line..][..length];
            for (i, scores) in scores.iter().enumerate().take(live) {
                let own = &segment.columns.own[i];
                let places = self.distances.interval(&segment.columns, i, stand.positions[i]);
                let scores = &scores[segment.offset..][own.clone()];
                for (sum, score) in line[places].iter_mut().zip(scores) {
                    *sum += (*score).into();
                }
            }
        }
    }

    /// The sums of the strands of all heads, `strands` a head, one after the other.
    pub fn total<A: Real>(parts: &[Self], strands: usize) -> Vec<A> {
        let head = |parts: &[Self]| {
            let mut sums = vec![0.0; parts[0].sums.len()];
            for part in parts {
                sums.iter_mut().zip(&part.sums).for_each(|(sum, part)| *sum += part);
            }
            sums.into_iter().map(A::from_f64)
        };
        parts.chunks(strands).flat_map(head).collect()
    }
}
