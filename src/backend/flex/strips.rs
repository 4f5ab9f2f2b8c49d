//! Cuts of the queries into strips, so that strips of which every other one runs see no key in common.
//!
//! Query lines are cut along the slowest axis that has more than one; where there is a single line, it is cut itself, in whole
//! blocks. The cuts follow from the problem alone.

use std::ops::Range;

use burn_natten_kernels::{Axis, MAX_RANK, Problem};
use rayon::prelude::*;

use super::block::{Block, blocks, blocks_in};
use super::operand::Grid;
use super::simd::BLOCK;

/// Lines of a strip, or blocks of a single line, at least. Higher strips come less often to the same keys.
const HEIGHTS: [usize; 4] = [16, 8, 4, 2];

/// Strips that are enough to share out a sample and head, and those fewer of which are too few unless its pairs of a query and a key are few.
const ENOUGH: usize = 16;
const FEW: usize = 4;
const FEW_PAIRS: u64 = 1 << 14;

/// The queries of a sample and head, as strips one behind the other.
pub(super) struct Strips {
    /// The axis that is cut.
    axis: usize,
    all: Vec<Strip>,
}

/// Neighboring lines of queries, or a part of a single line.
pub(super) struct Strip {
    pub rows: Range<usize>,
    /// Those of every line.
    pub blocks: Vec<Block>,
    /// Nothing for a part of a line.
    pub keys: Option<KeyLines>,
}

/// The lines of keys that the lines of a strip come to, one after the other along the axis that is cut.
pub(super) struct KeyLines {
    /// Lines of queries that stand side by side.
    abreast: usize,
    /// The first line of queries, and of keys.
    first: (usize, usize),
    /// How far each line of the strip, or one before it, has come.
    ends: Vec<usize>,
    /// Lines of keys along the axis that are in use at a time, at most.
    pub in_use: usize,
}

/// The queries of a strip, for the heads that share one of keys and values.
pub(super) struct StripTask<'s> {
    pub batch: usize,
    /// The head of keys and values.
    pub head: usize,
    pub strip: &'s Strip,
}

impl Strips {
    /// The strips of a problem, unless windows are too long for it to be cut. Other samples and heads have no say, so that they change
    /// no bit.
    pub fn new(problem: &Problem, queries: &Grid) -> Option<Self> {
        let mut lowest = None;
        for height in HEIGHTS {
            let strips = Self::of_height(&problem.axes, queries, height);
            if strips.all.len() >= ENOUGH {
                return Some(strips);
            }
            lowest = Some(strips);
        }
        let has_few_pairs = problem.with_additional(0).pairs() <= FEW_PAIRS;
        lowest.filter(|strips| strips.all.len() >= FEW || has_few_pairs)
    }

    /// The same, unless the strips would be parts of a line.
    pub fn of_lines(problem: &Problem, queries: &Grid) -> Option<Self> {
        let has_lines = cut_axis(&problem.axes) < MAX_RANK - 1;
        has_lines.then(|| Self::new(problem, queries)).flatten()
    }

    /// Strips of at least `height` lines, or blocks of a single line.
    pub fn of_height(axes: &[Axis; MAX_RANK], queries: &Grid, height: usize) -> Self {
        let axis = cut_axis(axes);
        if axis == MAX_RANK - 1 {
            let cuts = cuts(&seen_by_blocks(&axes[axis]), height).into_iter();
            let part = |cut: Range<usize>| Strip {
                rows: 0..queries.rows(),
                blocks: blocks_in(queries, cut.start * BLOCK..cut.end * BLOCK),
                keys: None,
            };
            return Self { axis, all: cuts.map(part).collect() };
        }
        let seen = seen_by_lines(&axes[axis]);
        let abreast = queries.rows() / axes[axis].queries;
        let strip = |cut: Range<usize>| Strip {
            rows: cut.start * abreast..cut.end * abreast,
            blocks: blocks(queries),
            keys: Some(KeyLines::new(&seen, cut, abreast)),
        };
        Self { axis, all: cuts(&seen, height).into_iter().map(strip).collect() }
    }

    /// Runs `body` for every strip of all samples and heads of keys. Strips run in `phases`, one behind the other: with two of them,
    /// no two strips see a key in common that run at the same time.
    pub fn for_each<T>(
        &self,
        problem: &Problem,
        phases: usize,
        scratch: impl Fn() -> T + Sync,
        body: impl Fn(StripTask<'_>, &mut T) + Sync,
    ) {
        for phase in 0..phases {
            let strips: Vec<_> = self.all.iter().skip(phase).step_by(phases).collect();
            let tasks = problem.batch * problem.heads_kv * strips.len();
            (0..tasks).into_par_iter().for_each_init(&scratch, |scratch, index| {
                let (strip, index) = (strips[index % strips.len()], index / strips.len());
                let (head, batch) = (index % problem.heads_kv, index / problem.heads_kv);
                body(StripTask { batch, head, strip }, scratch);
            });
        }
    }

    /// Whether they are made of whole lines.
    pub fn have_lines(&self) -> bool {
        self.axis < MAX_RANK - 1
    }

    /// The lines of a grid at each index of the axis that is cut.
    pub fn abreast(&self, grid: &Grid) -> usize {
        grid.outer[1 - self.axis]
    }

    /// The lines of a grid at `index` of the axis that is cut.
    pub fn lines(&self, grid: &Grid, index: usize) -> impl Iterator<Item = usize> + use<> {
        let inner = grid.outer[1];
        let (first, step) = if self.axis == 0 { (index * inner, 1) } else { (index, inner) };
        (0..self.abreast(grid)).map(move |line| first + line * step)
    }
}

impl StripTask<'_> {
    /// The heads of its queries.
    pub fn heads(&self, problem: &Problem) -> Range<usize> {
        let group = problem.group_size();
        self.head * group..(self.head + 1) * group
    }
}

impl KeyLines {
    fn new(seen: &[Range<usize>], cut: Range<usize>, abreast: usize) -> Self {
        let seen = &seen[cut.clone()];
        let ahead = firsts(seen);
        let first = *ahead.first().unwrap_or(&usize::MAX);
        let mut end = 0;
        let reach = |seen: &Range<usize>| {
            end = if seen.is_empty() { end } else { end.max(seen.end) };
            end
        };
        let ends: Vec<usize> = seen.iter().map(reach).collect();
        let in_use = ends.iter().zip(&ahead).map(|(end, first)| end.saturating_sub(*first));
        let in_use = in_use.max().unwrap_or(0);
        Self { abreast, first: (cut.start, first), ends, in_use }
    }

    /// The first line of keys that the strip comes to.
    pub fn first(&self) -> usize {
        self.first.1
    }

    /// Behind the last line of keys that the strip has come to with a line of queries, which is `row` in its grid.
    pub fn end(&self, row: usize) -> usize {
        self.ends[row / self.abreast - self.first.0]
    }
}

/// The first key that a line or one behind it sees, the greatest number behind all of them.
fn firsts(seen: &[Range<usize>]) -> Vec<usize> {
    let mut firsts = vec![usize::MAX; seen.len() + 1];
    for (line, seen) in seen.iter().enumerate().rev() {
        let behind = firsts[line + 1];
        firsts[line] = if seen.is_empty() { behind } else { behind.min(seen.start) };
    }
    firsts
}

/// The slowest axis that has more than one query, or the fastest.
fn cut_axis(axes: &[Axis; MAX_RANK]) -> usize {
    (0..MAX_RANK - 1).find(|axis| axes[*axis].queries > 1).unwrap_or(MAX_RANK - 1)
}

/// The indices of keys between which those of every query of an axis lie.
fn seen_by_lines(axis: &Axis) -> Vec<Range<usize>> {
    let seen = |query| {
        let (first, count) = axis.window(query);
        if count == 0 { 0..0 } else { first..first + (count - 1) * axis.dilation + 1 }
    };
    (0..axis.queries).map(seen).collect()
}

/// The positions between which those of the keys of every block of an axis lie, whatever its dilation group.
fn seen_by_blocks(axis: &Axis) -> Vec<Range<usize>> {
    let (longest, _) = axis.group(0);
    let seen = |first: usize| {
        // Windows go forward with the position.
        let groups = (0..axis.dilation).map(|group| {
            let end = axis.group(group).0.min(first + BLOCK);
            match first < end {
                true => hull(axis.keys_seen(group, first), axis.keys_seen(group, end - 1)),
                false => 0..0,
            }
        });
        groups.fold(0..0, hull)
    };
    (0..longest).step_by(BLOCK).map(seen).collect()
}

/// The interval that holds both.
fn hull(a: Range<usize>, b: Range<usize>) -> Range<usize> {
    match (a.is_empty(), b.is_empty()) {
        (true, _) => b,
        (_, true) => a,
        _ => a.start.min(b.start)..a.end.max(b.end),
    }
}

/// Cuts lines into strips of at least `height`, the last one aside, none of which sees what the last but one or an earlier one
/// sees.
fn cuts(seen: &[Range<usize>], height: usize) -> Vec<Range<usize>> {
    let firsts = firsts(seen);
    let mut cuts: Vec<Range<usize>> = Vec::new();
    // Behind the keys of the strips so far, the last one aside, and of all of them.
    let (mut before, mut end, mut start) = (0, 0, 0);
    for (line, seen) in seen.iter().enumerate() {
        if line - start >= height && firsts[line] >= before {
            cuts.push(start..line);
            (start, before) = (line, end);
        }
        if !seen.is_empty() {
            end = end.max(seen.end);
        }
    }
    cuts.push(start..seen.len());
    cuts
}

#[cfg(test)]
pub(super) mod tests;
