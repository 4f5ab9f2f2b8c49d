//! The half of the backward pass that sums `dk` and `dv`: a block of keys gathers the rows whose lists name it.

use std::ops::Range;

use burn_natten_kernels::MAX_RANK;
use macerator::Simd;
use rayon::prelude::*;

use super::Statistics;
use super::lists::{Inverse, Visitor};
use super::rows::{Edges, Row, Rows};
use super::space::{Panels, Space, Tile};
use crate::backend::flex::simd::{self, BLOCK, MARGIN, Real};
use crate::backend::flex::sweep::{Output, Piece, piece_scores};

/// Rows that are gathered at a time: with their scores they take some 100 KB of the second-level cache at a head_dim of 64 in f32.
const ROWS: usize = 64;

/// Rows after which the sums of a block go on elsewhere, so that a block that everybody lists is shared out too.
/// It does not depend on the number of threads, nor do the results.
const PART_ROWS: usize = 1 << 14;

pub(super) struct KeyPass<'a, A: Clone> {
    pub space: &'a Space<'a>,
    pub edges: &'a Edges,
    pub visitors: &'a Inverse,
    pub rows: &'a Statistics<'a, A>,
    /// Keys times the scale, and values.
    pub panels: [&'a Panels<A>; 2],
}

/// `dk`, but for the scale, and `dv` of a block, in the order of its tokens.
struct Sums<A>([Vec<A>; 2]);

impl<A: Real> KeyPass<'_, A> {
    pub fn run(&self, dk: &mut [A], dv: &mut [A]) {
        let sparse = self.space.sparse;
        let results = [Output::new(dk), Output::new(dv)];
        let (blocks, heads) = (sparse.key_blocks(), sparse.problem.heads_kv);
        let visitor_rows = sparse
            .query_block
            .iter()
            .fold(sparse.heads_of_list(), |rows, size| rows.saturating_mul(*size));
        let part = (PART_ROWS / visitor_rows).max(1);
        (0..sparse.problem.batch * heads * blocks).into_par_iter().for_each_init(
            || Scratch::new(self),
            |scratch, index| {
                let (head, block) = (index / blocks, index % blocks);
                let place = [head / heads, head % heads, block];
                let [sample, head, _] = place;
                let visitors = self.visitors.of(sample, head, block);
                let sums = match visitors.len() <= part {
                    true => self.sums(place, visitors, scratch),
                    false => self.sums_by_parts(place, visitors, part),
                };
                self.write(place, &sums, &results);
            },
        );
    }

    fn sums(&self, place: [usize; 3], visitors: &[Visitor], scratch: &mut Scratch<A>) -> Sums<A> {
        let keys = self.space.sparse.keys_of(place[2]);
        let count = keys.iter().map(|range| range.len()).product::<usize>();
        let sums = self.panels.map(|panels| vec![A::zero(); count * panels.dim]);
        let mut sums = Sums(sums);
        gather_and_sum(self, place, visitors, scratch, &mut sums);
        sums
    }

    fn sums_by_parts(&self, place: [usize; 3], visitors: &[Visitor], part: usize) -> Sums<A> {
        let parts: Vec<_> = visitors
            .par_chunks(part)
            .map_init(|| Scratch::new(self), |scratch, part| self.sums(place, part, scratch))
            .collect();
        let mut parts = parts.into_iter();
        let Some(mut total) = parts.next() else { return Sums([Vec::new(), Vec::new()]) };
        for part in parts {
            for (total, part) in total.0.iter_mut().zip(part.0) {
                for (total, part) in total.iter_mut().zip(part) {
                    *total = *total + part;
                }
            }
        }
        total
    }

    fn write(&self, [sample, head, block]: [usize; 3], sums: &Sums<A>, results: &[Output<'_, A>]) {
        let problem = &self.space.sparse.problem;
        let factors = [A::from_f64(problem.scale), A::one()];
        let tokens = self.space.tokens(&self.space.sparse.keys_of(block));
        for (i, token) in tokens.enumerate() {
            let vector = (sample * problem.keys() + token) * problem.heads_kv + head;
            for (which, factor) in factors.into_iter().enumerate() {
                let dim = self.panels[which].dim;
                let sums = &sums.0[which][i * dim..][..dim];
                // SAFETY: a key belongs to one block, and a block to one task.
                unsafe { results[which].write(vector * dim, sums.iter().map(|sum| *sum * factor)) };
            }
        }
    }
}

/// Working memory of a thread: the rows that have been gathered.
struct Scratch<A> {
    /// Of `query` and `grad_out`.
    vectors: [Vec<A>; 2],
    /// `[ROWS, pitch]`, weights and their slopes.
    scores: [Vec<A>; 2],
    pitch: usize,
    lse: Vec<A>,
    delta: Vec<A>,
    seen: Vec<[usize; MAX_RANK]>,
}

impl<A: Real> Scratch<A> {
    fn new(pass: &KeyPass<'_, A>) -> Self {
        // Vectors of scores end within their row.
        let pitch = pass.space.width.next_multiple_of(MARGIN);
        Self {
            vectors: pass.panels.map(|panels| vec![A::zero(); ROWS * panels.dim]),
            scores: std::array::from_fn(|_| vec![A::zero(); ROWS * pitch + MARGIN]),
            pitch,
            lse: Vec::with_capacity(ROWS),
            delta: Vec::with_capacity(ROWS),
            seen: Vec::with_capacity(ROWS),
        }
    }

    fn is_full(&self) -> bool {
        self.seen.len() == ROWS
    }

    fn clear(&mut self) {
        self.lse.clear();
        self.delta.clear();
        self.seen.clear();
    }

    #[inline(always)]
    fn push(&mut self, row: &Row, from: &Statistics<'_, A>) {
        let at = self.seen.len();
        for (to, from) in self.vectors.iter_mut().zip([&from.query, &from.grad_out]) {
            let dim = to.len() / ROWS;
            to[at * dim..][..dim].copy_from_slice(&from[row.vector * dim..][..dim]);
        }
        self.lse.push(from.lse[row.vector]);
        self.delta.push(from.delta[row.vector]);
        self.seen.push(row.seen);
    }
}

#[macerator::with_simd]
fn gather_and_sum<'a, S: Simd, A: Real>(
    pass: &KeyPass<'a, A>,
    place: [usize; 3],
    visitors: &[Visitor],
    scratch: &mut Scratch<A>,
    sums: &mut Sums<A>,
) {
    let [sample, head, block] = place;
    let keys = pass.space.sparse.keys_of(block);
    let first = pass.space.first_tile(sample, head, block);
    let tiles = first..first + pass.space.tiles;
    scratch.clear();
    for visitor in visitors {
        let list = [sample, visitor.list_head, visitor.query_block];
        let rows = Rows::new(pass.space.sparse, pass.edges, list);
        for index in 0..rows.len() {
            let row = rows.row(index);
            let sees = (0..MAX_RANK).all(|axis| row.seen[axis] > keys[axis].start);
            if !sees || pass.rows.lse[row.vector] == A::neg_infinity() {
                continue;
            }
            scratch.push(&row, pass.rows);
            if scratch.is_full() {
                sum_gathered::<S, A>(pass, tiles.clone(), scratch, sums);
                scratch.clear();
            }
        }
    }
    sum_gathered::<S, A>(pass, tiles, scratch, sums);
}

/// Adds what the gathered rows give to the keys of all tiles of a block.
#[inline(always)]
fn sum_gathered<S: Simd, A: Real>(
    pass: &KeyPass<'_, A>,
    tiles: Range<usize>,
    scratch: &mut Scratch<A>,
    sums: &mut Sums<A>,
) {
    if scratch.seen.is_empty() {
        return;
    }
    for number in tiles {
        let tile = pass.space.tile(number);
        if tile.columns.is_empty() {
            return;
        }
        weigh::<S, A>(pass, number, &tile, scratch);
        let [p, ds] = &scratch.scores;
        let [query, grad_out] = &scratch.vectors;
        let [dk, dv] = &mut sums.0;
        accumulate::<S, A>(scratch, &tile, (ds, query), dk);
        accumulate::<S, A>(scratch, &tile, (p, grad_out), dv);
    }
}

/// Weights of the gathered rows and their slopes, zero where a row does not see a key.
#[inline(always)]
fn weigh<S: Simd, A: Real>(
    pass: &KeyPass<'_, A>,
    number: usize,
    tile: &Tile,
    scratch: &mut Scratch<A>,
) {
    let Scratch { vectors, scores, pitch, lse, delta, seen } = scratch;
    let (pitch, len, count) = (*pitch, tile.columns.len(), seen.len());
    for ((scores, vectors), panels) in scores.iter_mut().zip(vectors).zip(pass.panels) {
        let dim = panels.dim;
        for (quad, scores) in scores[..ROWS * pitch].chunks_exact_mut(BLOCK * pitch).enumerate() {
            let first = quad * BLOCK;
            if first >= count {
                break;
            }
            let rows = std::array::from_fn(|i| {
                vectors[(first + i).min(count - 1) * dim..][..dim].as_ptr()
            });
            let (low, high) = scores.split_at_mut(2 * pitch);
            let ((a, b), (c, d)) = (low.split_at_mut(pitch), high.split_at_mut(pitch));
            let piece = Piece { panel: panels.tile(number), len, offset: 0 };
            // SAFETY: rows of the panel's dimension; panels end with a margin, and a vector of
            // scores ends within its row.
            unsafe {
                let pieces = [piece].into_iter();
                piece_scores::<S, A>(rows, [dim, panels.width], pieces, [a, b, c, d]);
            }
        }
    }
    let is_cut = is_cut(tile, seen);
    let [p, ds] = scores;
    for (i, (p, ds)) in p.chunks_exact_mut(pitch).zip(ds.chunks_exact_mut(pitch)).enumerate() {
        if i >= count {
            break;
        }
        // SAFETY: a row has room for whole vectors.
        unsafe { A::exp_sub::<S>(p.as_mut_ptr(), len, lse[i]) };
        for (ds, p) in ds[..len].iter_mut().zip(&p[..len]) {
            *ds = *p * (*ds - delta[i]);
        }
        if is_cut {
            tile.hide(seen[i], &mut p[..len], A::zero());
            tile.hide(seen[i], &mut ds[..len], A::zero());
        }
    }
}

/// Whether some row does not see all keys of the tile's block.
fn is_cut(tile: &Tile, seen: &[[usize; MAX_RANK]]) -> bool {
    let is_cut = |seen: &[usize; MAX_RANK]| (0..MAX_RANK).any(|a| seen[a] < tile.block[a].end);
    seen.iter().any(is_cut)
}

/// Adds the gathered vectors to the sums of every key of a tile, weighted.
#[inline(always)]
fn accumulate<S: Simd, A: Real>(
    scratch: &Scratch<A>,
    tile: &Tile,
    (weights, vectors): (&[A], &[A]),
    sums: &mut [A],
) {
    let (pitch, count, dim) = (scratch.pitch, scratch.seen.len(), vectors.len() / ROWS);
    let keys = tile.columns.len();
    let sums = &mut sums[tile.columns.start * dim..];
    let is_finite = |values: &[A]| values.iter().fold(true, |all, value| all & value.is_finite());
    // A zero weight times what is not finite would be NaN.
    let is_mixed = is_cut(tile, &scratch.seen) && !is_finite(&vectors[..count * dim]);
    if is_mixed {
        for (i, seen) in scratch.seen.iter().enumerate() {
            for run in tile.runs(*seen) {
                for key in run.columns.start..run.columns.start + run.seen {
                    let (weights, vector) =
                        ([&raw const weights[i * pitch + key]], &vectors[i * dim..][..dim]);
                    let sum = sums[key * dim..][..dim].as_mut_ptr();
                    // SAFETY: one weight, one vector, and one sum of its length.
                    unsafe {
                        simd::accumulate::<S, A, 1>(
                            (weights, 1),
                            1,
                            vector.as_ptr(),
                            dim,
                            dim,
                            [sum],
                        );
                    }
                }
            }
        }
        return;
    }
    for key in (0..keys).step_by(BLOCK) {
        let own = &mut sums[key * dim..][..BLOCK.min(keys - key) * dim];
        let weights = &weights[key..];
        if own.len() == BLOCK * dim {
            let first = own.as_mut_ptr();
            let weights = std::array::from_fn(|i| weights[i..].as_ptr());
            // SAFETY: `BLOCK` vectors lie in the slice, and a weight for each of `count` rows.
            unsafe {
                let sums = std::array::from_fn(|i| first.add(i * dim));
                let vectors = vectors.as_ptr();
                simd::accumulate::<S, A, BLOCK>((weights, pitch), count, vectors, dim, dim, sums);
            }
        } else {
            for (i, sum) in own.chunks_exact_mut(dim).enumerate() {
                let (weights, sum) = ([weights[i..].as_ptr()], [sum.as_mut_ptr()]);
                // SAFETY: as above, for one key.
                unsafe {
                    simd::accumulate::<S, A, 1>(
                        (weights, pitch),
                        count,
                        vectors.as_ptr(),
                        dim,
                        dim,
                        sum,
                    );
                }
            }
        }
    }
}
