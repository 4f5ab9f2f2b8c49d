//! The lists of native sparse attention: what the first query of each tile gives to compressed keys, and the best blocks.
//!
//! ```text
//! P[x]      sum over the heads of a group of softmax(scale q kc)[x] over the compressed blocks that the query sees
//! score[j]  sum over x of P[x] * (tokens of compressed block x in selection block j) / cmp_stride
//! list      the forced blocks, and the best of those before the query's, the lower number first among equals
//! ```
//!
//! Scores of a few rows are all that is ever in memory.

mod top;

#[cfg(test)]
mod tests;

use std::ops::Range;

use burn_natten_kernels::Problem;
use macerator::Simd;
use rayon::prelude::*;

use self::top::Best;
use super::operand::{Grid, Operand, Place};
use super::simd::{BLOCK, MARGIN, Real, max};
use super::sweep::{Output, Piece, TASK_BLOCKS, piece_scores};

/// Rows of a task, or those of a tile if they are more.
const ROWS: usize = TASK_BLOCKS * BLOCK;

/// The sizes that a choice depends on, by the names of the options.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    pub cmp_block: usize,
    pub cmp_stride: usize,
    pub slc_block: usize,
    pub num_selected: usize,
    pub num_init: usize,
    pub num_local: usize,
    pub query_tile: usize,
    pub cmp_top: Option<usize>,
    pub cmp_group: usize,
}

impl Sizes {
    /// Compressed blocks that are complete within the first `tokens`.
    fn compressed(&self, tokens: usize) -> usize {
        match tokens.checked_sub(self.cmp_block) {
            Some(rest) => rest / self.cmp_stride + 1,
            None => 0,
        }
    }

    /// The selection blocks of the first and of the last query of the tile whose first query stands here.
    fn own(&self, first: usize) -> (usize, usize) {
        (first / self.slc_block, (first + self.query_tile - 1) / self.slc_block)
    }

    /// The super-blocks that fill while that tile lasts: the first one, and the end.
    fn filling(&self, first: usize) -> (usize, usize) {
        let (seen, last) = (self.compressed(first + 1), self.compressed(first + self.query_tile));
        (seen / self.cmp_group, last.div_ceil(self.cmp_group))
    }

    /// What the first blocks get of the compressed blocks that overlap them. Sums have one order, so that equal masses
    /// have equal scores.
    fn score<A: Real>(&self, mass: &[A], block: usize) -> A {
        let (reach, ratio) = (self.cmp_block / self.cmp_stride, self.slc_block / self.cmp_stride);
        let taps = 0..ratio + reach - 1;
        let shares = taps.filter_map(|tap| {
            let compressed = (block * ratio + tap + 1).checked_sub(reach)?;
            let shared = (tap + 1).min(ratio) - (tap + 1).saturating_sub(reach);
            Some(*mass.get(compressed)? * A::from_f64(shared as f64))
        });
        shares.fold(A::zero(), |sum, share| sum + share)
    }
}

/// Lists of all tiles, ascending, with `-1` behind their ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    /// Selection blocks, `[batch, tiles, heads_kv, num_selected]`.
    pub blocks: Vec<i64>,
    /// Super-blocks of compressed blocks, `[batch, tiles, heads_kv, cmp_top]`, if any are asked for.
    pub super_blocks: Option<Vec<i64>>,
}

/// A sequence whose last tokens have queries, and its compressed keys: the queries and the keys of `problem`.
pub(super) struct Importance<'a, A: Clone> {
    problem: &'a Problem,
    sizes: Sizes,
    tokens: usize,
    query: &'a [A],
    /// With a panel.
    key: Operand<'a, A>,
}

/// Lists for queries `[batch, rows, heads, head_dim]` by compressed keys `[batch, blocks, heads_kv, head_dim]`.
pub(super) fn choose<A: Real>(
    query: &[A],
    key: &[A],
    problem: &Problem,
    tokens: usize,
    sizes: Sizes,
) -> Chosen {
    let grid = &Grid::new([1, 1, problem.keys()], 1);
    let key = Operand::new(key.into(), grid, problem.heads_kv, problem.head_dim);
    let key = key.with_panel(problem.batch);
    Importance { problem, sizes, tokens, query, key }.run()
}

impl<A: Real> Importance<'_, A> {
    fn run(&self) -> Chosen {
        let (batch, heads) = (self.problem.batch, self.problem.heads_kv);
        let tiles = self.problem.queries().div_ceil(self.sizes.query_tile);
        let all = |entries: usize| vec![-1; batch * tiles * heads * entries];
        let mut blocks = all(self.sizes.num_selected);
        let mut super_blocks = all(self.sizes.cmp_top.unwrap_or(0));
        let outputs = [Output::new(&mut blocks), Output::new(&mut super_blocks)];
        let of_task = (ROWS / self.problem.group_size()).max(1);
        let tasks = tiles.div_ceil(of_task);
        (0..batch * heads * tasks).into_par_iter().for_each_init(
            || Scratch::new(self, of_task),
            |scratch, index| {
                let (task, line) = (index % tasks, index / tasks);
                let (sample, head) = (line / heads, line % heads);
                let some = task * of_task..tiles.min((task + 1) * of_task);
                sum_masses(self, [sample, head], some.clone(), scratch);
                for tile in some.clone() {
                    let Scratch { masses, best, .. } = &mut *scratch;
                    let first = self.first(tile);
                    let mass = &masses[(tile - some.start) * self.problem.keys()..];
                    let mass = &mass[..self.sizes.compressed(first + 1)];
                    let list = (sample * tiles + tile) * heads + head;
                    let [blocks, super_blocks] = &outputs;
                    // SAFETY: a list belongs to one tile, and a tile to one task.
                    unsafe {
                        let chosen = self.blocks(mass, first, best);
                        blocks.write(list * self.sizes.num_selected, chosen.into_iter());
                        if let Some(entries) = self.sizes.cmp_top {
                            let chosen = self.super_blocks(mass, first, best);
                            super_blocks.write(list * entries, chosen.into_iter());
                        }
                    }
                }
            },
        );
        Chosen { blocks, super_blocks: self.sizes.cmp_top.map(|_| super_blocks) }
    }

    /// Where the first query of a tile stands.
    fn first(&self, tile: usize) -> usize {
        self.tokens - self.problem.queries() + tile * self.sizes.query_tile
    }

    /// The list of the tile whose first query stands here. How many are forced does not depend on where the sequence
    /// ends, nor does the choice.
    fn blocks(&self, mass: &[A], first: usize, best: &mut Best<A>) -> Vec<i64> {
        let sizes = &self.sizes;
        let (own, last) = sizes.own(first);
        let init = sizes.num_init.min(last + 1);
        let local = (own + 1).saturating_sub(sizes.num_local).max(init);
        let free = sizes.num_selected - init - (last + 1 - local);
        let scores = (init..local).map(|block| (block, sizes.score(mass, block)));
        let list = (0..init).chain(best.of(scores, free)).chain(local..last + 1);
        ended(list, self.tokens.div_ceil(sizes.slc_block))
    }

    fn super_blocks(&self, mass: &[A], first: usize, best: &mut Best<A>) -> Vec<i64> {
        let (group, entries) = (self.sizes.cmp_group, self.sizes.cmp_top.unwrap_or(0));
        let (first, end) = self.sizes.filling(first);
        let masses = mass.chunks(group).take(first).enumerate();
        let scores = masses.map(|(block, mass)| (block, mass.iter().copied().sum()));
        let list = best.of(scores, entries - (end - first)).chain(first..end);
        ended(list, self.problem.keys().div_ceil(group))
    }
}

/// The numbers below `end` of an ascending list.
fn ended(list: impl Iterator<Item = usize>, end: usize) -> Vec<i64> {
    list.take_while(|block| *block < end).map(|block| block as i64).collect()
}

/// Working memory of a thread.
struct Scratch<A> {
    /// Queries, times the scale.
    rows: Vec<A>,
    scores: [Vec<A>; BLOCK],
    /// Of each tile of a task the sum over its heads.
    masses: Vec<A>,
    best: Best<A>,
}

impl<A: Real> Scratch<A> {
    fn new(pass: &Importance<'_, A>, tiles: usize) -> Self {
        let keys = pass.problem.keys();
        Self {
            rows: vec![A::zero(); BLOCK * pass.problem.head_dim],
            scores: std::array::from_fn(|_| vec![A::zero(); keys + MARGIN]),
            masses: vec![A::zero(); tiles * keys],
            best: Best::default(),
        }
    }
}

/// Fills the masses of neighboring tiles. Rows are the tiles' first queries for each head, wherever one tile ends: few heads
/// fill the inner loops too.
#[macerator::with_simd]
fn sum_masses<'a, S: Simd, A: Real>(
    pass: &Importance<'a, A>,
    line: [usize; 2],
    tiles: Range<usize>,
    scratch: &mut Scratch<A>,
) {
    let [sample, head] = line;
    let (problem, group) = (pass.problem, pass.problem.group_size());
    let (dim, scale) = (problem.head_dim, A::from_f64(problem.scale));
    let place = Place { batch: sample, head, row: 0, group: 0, position: 0 };
    let panel = &pass.key.panel[pass.key.panel_at(place)..];
    scratch.masses.fill(A::zero());
    let count = tiles.len() * group;
    for start in (0..count).step_by(BLOCK) {
        let end = count.min(start + BLOCK);
        for (row, to) in (start..end).zip(scratch.rows.chunks_exact_mut(dim)) {
            let query =
                sample * problem.queries() + (tiles.start + row / group) * pass.sizes.query_tile;
            let vector = query * problem.heads + head * group + row % group;
            for (to, from) in to.iter_mut().zip(&pass.query[vector * dim..][..dim]) {
                *to = *from * scale;
            }
        }
        let seen = |row: usize| pass.sizes.compressed(pass.first(tiles.start + row / group) + 1);
        let rows =
            std::array::from_fn(|i| scratch.rows[i.min(end - start - 1) * dim..][..dim].as_ptr());
        let piece = Piece { panel, len: seen(end - 1), offset: 0 };
        let scores = scratch.scores.each_mut().map(|scores| &mut scores[..]);
        // SAFETY: rows of head_dim; the panel and scores end with a margin.
        unsafe { piece_scores::<S, A>(rows, [dim, pass.key.pitch()], [piece].into_iter(), scores) };
        for (row, scores) in (start..end).zip(&mut scratch.scores) {
            let seen = seen(row);
            let greatest = max::<S, A>(&scores[..seen]);
            if greatest == A::neg_infinity() {
                continue;
            }
            // SAFETY: scores end with a margin.
            let sum = unsafe { A::exp_sub::<S>(scores.as_mut_ptr(), seen, greatest) };
            let factor = sum.recip();
            let mass = &mut scratch.masses[row / group * problem.keys()..][..seen];
            for (mass, weight) in mass.iter_mut().zip(&scores[..seen]) {
                *mass = *mass + *weight * factor;
            }
        }
    }
}
