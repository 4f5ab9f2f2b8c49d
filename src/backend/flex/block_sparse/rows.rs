//! The rows that share a list, and how far each of them sees.

use std::ops::Range;

use burn_natten_kernels::{BlockSparse, MAX_RANK};
use rayon::prelude::*;

use crate::backend::flex::simd::BLOCK;
use crate::backend::flex::sweep::TASK_BLOCKS;

/// How many of the first keys along each axis the queries see, by their places there.
pub(super) struct Edges {
    seen: [Vec<usize>; MAX_RANK],
}

impl Edges {
    pub fn new(sparse: &BlockSparse) -> Self {
        let seen = |axis: usize| {
            let queries = 0..sparse.problem.axes[axis].queries;
            queries.map(|query| sparse.keys_before(axis, query)).collect()
        };
        Self { seen: [seen(0), seen(1), seen(2)] }
    }

    fn at(&self, place: [usize; MAX_RANK]) -> [usize; MAX_RANK] {
        [0, 1, 2].map(|axis| self.seen[axis][place[axis]])
    }
}

/// A query of a head.
#[derive(Clone, Copy)]
pub(super) struct Row {
    /// Its number among the vectors of all queries.
    pub vector: usize,
    /// How many of the first keys along each axis it sees.
    pub seen: [usize; MAX_RANK],
}

/// The queries of a block, for each head that shares its list. All heads of a query come before the next query.
pub(super) struct Rows<'r> {
    sparse: &'r BlockSparse,
    edges: &'r Edges,
    sample: usize,
    heads: Range<usize>,
    queries: [Range<usize>; MAX_RANK],
}

impl<'r> Rows<'r> {
    pub fn new(
        sparse: &'r BlockSparse,
        edges: &'r Edges,
        [sample, list_head, block]: [usize; 3],
    ) -> Self {
        let heads = sparse.heads_of_list();
        let heads = list_head * heads..(list_head + 1) * heads;
        Self { sparse, edges, sample, heads, queries: sparse.queries_of(block) }
    }

    pub fn len(&self) -> usize {
        self.queries.iter().map(|range| range.len()).product::<usize>() * self.heads.len()
    }

    pub fn row(&self, index: usize) -> Row {
        let (query, head) = (index / self.heads.len(), index % self.heads.len());
        let [z, y, x] = &self.queries;
        let (line, along) = (query / x.len(), query % x.len());
        let place = [z.start + line / y.len(), y.start + line % y.len(), x.start + along];
        let problem = &self.sparse.problem;
        let [_, height, width] = problem.axes.map(|axis| axis.queries);
        let token = (place[0] * height + place[1]) * width + place[2];
        let token = self.sample * problem.queries() + token;
        let vector = token * problem.heads + self.heads.start + head;
        Row { vector, seen: self.edges.at(place) }
    }

    /// Rows that are computed together, from `first` on.
    fn quad(&self, first: usize) -> Quad {
        let live = (self.len() - first).min(BLOCK);
        Quad { rows: std::array::from_fn(|i| self.row(first + i.min(live - 1))), live }
    }
}

/// Up to [`BLOCK`] rows of a list that are computed together.
pub(super) struct Quad {
    /// Behind those that exist, the last one again.
    pub rows: [Row; BLOCK],
    /// Rows that exist.
    pub live: usize,
}

/// Rows of a list, or of neighboring ones.
pub(super) struct Task {
    pub sample: usize,
    pub list_head: usize,
    pub blocks: Range<usize>,
    /// The part of the rows of each block.
    part: Range<usize>,
}

impl Task {
    /// The task's rows of one of its blocks.
    pub fn quads<'r>(&self, rows: &'r Rows<'_>) -> impl Iterator<Item = Quad> + use<'r> {
        let part = self.part.start..self.part.end.min(rows.len());
        part.step_by(BLOCK).map(|first| rows.quad(first))
    }
}

/// Runs `body` for all rows, in parallel.
pub(super) fn for_each_task<T>(
    sparse: &BlockSparse,
    init: impl Fn() -> T + Sync + Send,
    body: impl Fn(&Task, &mut T) + Sync + Send,
) {
    const ROWS: usize = TASK_BLOCKS * BLOCK;
    let queries = (0..MAX_RANK)
        .map(|axis| sparse.query_block[axis].min(sparse.problem.axes[axis].queries))
        .product::<usize>();
    let rows = (queries * sparse.heads_of_list()).next_multiple_of(BLOCK);
    // Several blocks a task, or several tasks a block.
    let (blocks, parts) = ((ROWS / rows).max(1), rows.div_ceil(ROWS));
    let all_blocks = sparse.query_blocks();
    let groups = all_blocks.div_ceil(blocks);
    let count = sparse.problem.batch * sparse.list_heads * groups * parts;
    (0..count).into_par_iter().for_each_init(init, |state, index| {
        let (part, index) = (index % parts, index / parts);
        let (group, index) = (index % groups, index / groups);
        let first = group * blocks;
        let task = Task {
            sample: index / sparse.list_heads,
            list_head: index % sparse.list_heads,
            blocks: first..all_blocks.min(first + blocks),
            part: part * ROWS..(part + 1) * ROWS,
        };
        body(&task, state);
    });
}
