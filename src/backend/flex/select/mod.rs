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

use burn::backend::flex::{Flex, FlexTensor};
use burn::tensor::{DType, TensorData, bf16, f16};
use macerator::Simd;
use rayon::prelude::*;

use self::top::Best;
use super::operand::{Grid, Operand};
use super::simd::{BLOCK, MARGIN, Real, max};
use super::sweep::{Output, Piece, TASK_BLOCKS, piece_scores};
use super::{Storage, rows as elements};
use crate::Strategy;
use crate::backend::select::{OptionalLists, SelectOps, SelectPlan, Selected, reference};
use crate::options::Sizes;

/// Rows of a task, or those of a tile if they are more.
const ROWS: usize = TASK_BLOCKS * BLOCK;

impl SelectOps for Flex {
    fn select_blocks(query: FlexTensor, key: FlexTensor, plan: SelectPlan) -> Selected<Self> {
        let is_composed = plan.strategy == Strategy::Reference || plan.mslk.is_some();
        if is_composed || plan.problem.batch * plan.tiles() == 0 {
            return reference::select::<Self>(query, key, &plan);
        }
        let (query, key) = (query.to_contiguous(), key.to_contiguous());
        let Chosen { blocks, super_blocks } = match query.dtype() {
            DType::F64 => chosen::<f64>(&query, &key, &plan),
            DType::F16 => chosen::<f16>(&query, &key, &plan),
            DType::BF16 => chosen::<bf16>(&query, &key, &plan),
            _ => chosen::<f32>(&query, &key, &plan),
        };
        let lists = |lists: Vec<i64>, entries: usize| {
            let shape = [plan.problem.batch, plan.tiles(), plan.list_heads(), entries];
            let data = TensorData::new(lists, shape).convert_dtype(DType::from(plan.ints));
            FlexTensor::from_data(data)
        };
        Selected {
            blocks: lists(blocks, plan.sizes.num_selected),
            super_blocks: match (super_blocks, plan.sizes.cmp_top) {
                (Some(blocks), Some(entries)) => {
                    OptionalLists::Some { lists: lists(blocks, entries) }
                }
                _ => OptionalLists::None,
            },
        }
    }
}

fn chosen<E: Storage>(query: &FlexTensor, key: &FlexTensor, plan: &SelectPlan) -> Chosen {
    choose(&elements::<E>(query), &elements::<E>(key), plan)
}

/// What a block gets of the compressed blocks that overlap it, by as many strides as they share. Sums have one order,
/// so that equal masses have equal scores.
fn score<A: Real>(sizes: &Sizes, mass: &[A], block: usize) -> A {
    let (reach, ratio) = (sizes.cmp_block / sizes.cmp_stride, sizes.slc_block / sizes.cmp_stride);
    let taps = 0..ratio + reach - 1;
    let shares = taps.filter_map(|tap| {
        let compressed = (block * ratio + tap + 1).checked_sub(reach)?;
        let shared = (tap + 1).min(ratio) - (tap + 1).saturating_sub(reach);
        Some(*mass.get(compressed)? * A::from_f64(shared as f64))
    });
    shares.fold(A::zero(), |sum, share| sum + share)
}

/// Lists of all tiles, ascending, with `-1` behind their ends.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Chosen {
    /// Selection blocks, `[batch, tiles, heads_kv, num_selected]`.
    blocks: Vec<i64>,
    /// Super-blocks of compressed blocks, `[batch, tiles, heads_kv, cmp_top]`, if any are asked for.
    super_blocks: Option<Vec<i64>>,
}

/// What lists are made of.
struct Selection<'a, A: Clone> {
    plan: &'a SelectPlan,
    query: &'a [A],
    /// With a panel.
    key: Operand<'a, A>,
}

/// Lists for queries `[batch, rows, heads, head_dim]` by compressed keys `[batch, blocks, heads_kv, head_dim]`.
fn choose<A: Real>(query: &[A], key: &[A], plan: &SelectPlan) -> Chosen {
    let problem = &plan.problem;
    let grid = &Grid::new([1, 1, plan.compressed()], 1);
    let key = Operand::new(key.into(), grid, problem.heads_kv, problem.head_dim);
    Selection { plan, query, key: key.with_panel(problem.batch) }.run()
}

impl<A: Real> Selection<'_, A> {
    fn run(&self) -> Chosen {
        let (plan, problem, sizes) = (self.plan, &self.plan.problem, &self.plan.sizes);
        let (batch, heads, tiles) = (problem.batch, problem.heads_kv, plan.tiles());
        let all = |entries: usize| vec![-1; batch * tiles * heads * entries];
        let mut blocks = all(sizes.num_selected);
        let mut super_blocks = all(sizes.cmp_top.unwrap_or(0));
        let outputs = [Output::new(&mut blocks), Output::new(&mut super_blocks)];
        let of_task = (ROWS / problem.group_size()).max(1);
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
                    let mass = &masses[(tile - some.start) * plan.compressed()..];
                    let mass = &mass[..plan.seen(tile)];
                    let list = (sample * tiles + tile) * heads + head;
                    let [blocks, super_blocks] = &outputs;
                    // SAFETY: a list belongs to one tile, and a tile to one task.
                    unsafe {
                        let chosen = self.blocks(mass, tile, best);
                        blocks.write(list * sizes.num_selected, chosen.into_iter());
                        if let Some(entries) = sizes.cmp_top {
                            let chosen = self.super_blocks(mass, tile, best);
                            super_blocks.write(list * entries, chosen.into_iter());
                        }
                    }
                }
            },
        );
        Chosen { blocks, super_blocks: sizes.cmp_top.map(|_| super_blocks) }
    }

    /// The list of a tile. How many are forced does not depend on where the sequence ends, nor does the choice.
    fn blocks(&self, mass: &[A], tile: usize, best: &mut Best<A>) -> Vec<i64> {
        let sizes = &self.plan.sizes;
        let (own, last) = self.plan.own(tile);
        let init = sizes.num_init.min(last + 1);
        let local = (own + 1).saturating_sub(sizes.num_local).max(init);
        let free = sizes.num_selected - init - (last + 1 - local);
        let scores = (init..local).map(|block| (block, score(sizes, mass, block)));
        let list = (0..init).chain(best.of(scores, free)).chain(local..last + 1);
        ended(list, self.plan.blocks())
    }

    /// That of its super-blocks.
    fn super_blocks(&self, mass: &[A], tile: usize, best: &mut Best<A>) -> Vec<i64> {
        let Sizes { cmp_group: group, cmp_top, .. } = self.plan.sizes;
        let (first, end) = self.plan.filling(tile);
        let masses = mass.chunks(group).take(first).enumerate();
        let scores = masses.map(|(block, mass)| (block, mass.iter().copied().sum()));
        let free = cmp_top.unwrap_or(0) - (end - first);
        let list = best.of(scores, free).chain(first..end);
        ended(list, self.plan.compressed().div_ceil(group))
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
    fn new(pass: &Selection<'_, A>, tiles: usize) -> Self {
        let keys = pass.plan.compressed();
        Self {
            rows: vec![A::zero(); BLOCK * pass.plan.problem.head_dim],
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
    pass: &Selection<'a, A>,
    line: [usize; 2],
    tiles: Range<usize>,
    scratch: &mut Scratch<A>,
) {
    let [sample, head] = line;
    let (plan, problem) = (pass.plan, &pass.plan.problem);
    let group = problem.group_size();
    let (dim, scale) = (problem.head_dim, A::from_f64(problem.scale));
    let panel = pass.key.whole_panel([sample, head]);
    scratch.masses.fill(A::zero());
    let count = tiles.len() * group;
    for start in (0..count).step_by(BLOCK) {
        let end = count.min(start + BLOCK);
        for (row, to) in (start..end).zip(scratch.rows.chunks_exact_mut(dim)) {
            let query =
                sample * problem.queries() + (tiles.start + row / group) * plan.sizes.query_tile;
            let vector = query * problem.heads + head * group + row % group;
            for (to, from) in to.iter_mut().zip(&pass.query[vector * dim..][..dim]) {
                *to = *from * scale;
            }
        }
        let seen = |row: usize| plan.seen(tiles.start + row / group);
        let rows =
            std::array::from_fn(|i| scratch.rows[i.min(end - start - 1) * dim..][..dim].as_ptr());
        let piece = Piece { panel: panel.at(0, 0, 0), len: seen(end - 1), offset: 0 };
        let scores = scratch.scores.each_mut().map(|scores| &mut scores[..]);
        // SAFETY: rows of head_dim; the panel and scores end with a margin.
        unsafe { piece_scores::<S, A>(rows, [dim, panel.pitch()], [piece].into_iter(), scores) };
        for (row, scores) in (start..end).zip(&mut scratch.scores) {
            let seen = seen(row);
            let greatest = max::<S, A>(&scores[..seen]);
            if greatest == A::neg_infinity() {
                continue;
            }
            // SAFETY: scores end with a margin.
            let sum = unsafe { A::exp_sub::<S>(scores.as_mut_ptr(), seen, greatest) };
            let factor = sum.recip();
            let mass = &mut scratch.masses[row / group * plan.compressed()..][..seen];
            for (mass, weight) in mass.iter_mut().zip(&scores[..seen]) {
                *mass = *mass + *weight * factor;
            }
        }
    }
}
