//! Native sparse attention in float64, forward, from its definition: rows one by one, and which lists a choice may give.

use std::ops::Range;

use burn_natten::NativeSparseAttentionOptions;

use super::random::{Inputs, Sizes};

/// A problem of any sizes. Compressed blocks are means.
#[derive(Clone, Debug)]
pub struct Problem {
    pub sizes: Sizes,
    /// Token of the first query, a multiple of `query_tile`.
    pub first: usize,
    pub cmp_block: usize,
    pub cmp_stride: usize,
    pub slc_block: usize,
    pub num_selected: usize,
    pub num_init: usize,
    pub num_local: usize,
    pub window: usize,
    pub query_tile: usize,
    pub cmp_top: Option<usize>,
    pub cmp_group: usize,
    pub scale: f64,
}

/// Lists of a tile and a head of the keys: selected blocks, and super-blocks where there are some.
#[derive(Clone, Debug)]
pub struct Lists {
    pub blocks: Vec<i64>,
    pub cmp_blocks: Option<Vec<i64>>,
}

impl Problem {
    pub fn options(&self) -> NativeSparseAttentionOptions {
        NativeSparseAttentionOptions::new()
            .with_cmp_block(self.cmp_block)
            .with_cmp_stride(self.cmp_stride)
            .with_slc_block(self.slc_block)
            .with_num_selected(self.num_selected)
            .with_num_init(self.num_init)
            .with_num_local(self.num_local)
            .with_window(self.window)
            .with_query_tile(self.query_tile)
            .with_cmp_top(self.cmp_top)
            .with_cmp_group(self.cmp_group)
            .with_scale(self.scale)
    }

    pub fn rows(&self) -> usize {
        self.sizes.tokens - self.first
    }

    pub fn tiles(&self) -> usize {
        self.rows().div_ceil(self.query_tile)
    }

    /// Compressed blocks that are complete within so many tokens.
    fn complete(&self, tokens: usize) -> usize {
        if tokens < self.cmp_block { 0 } else { (tokens - self.cmp_block) / self.cmp_stride + 1 }
    }

    fn vector<'a>(&self, of: &'a [f64], dim: usize, [batch, token, head]: [usize; 3]) -> &'a [f64] {
        let heads = of.len() / (self.sizes.batch * self.sizes.tokens * dim);
        &of[((batch * self.sizes.tokens + token) * heads + head) * dim..][..dim]
    }

    fn token(&self, inputs: &Inputs, [batch, token, head]: [usize; 3]) -> [Vec<f64>; 2] {
        let key = self.vector(&inputs.key, self.sizes.dim, [batch, token, head]);
        let value = self.vector(&inputs.value, self.sizes.dim_v, [batch, token, head]);
        [key.to_vec(), value.to_vec()]
    }

    /// Key and value of a compressed block.
    fn block(&self, inputs: &Inputs, [batch, block, head]: [usize; 3]) -> [Vec<f64>; 2] {
        let start = block * self.cmp_stride;
        let mut sums = [vec![0.0; self.sizes.dim], vec![0.0; self.sizes.dim_v]];
        for token in start..start + self.cmp_block {
            for (sum, part) in sums.iter_mut().zip(self.token(inputs, [batch, token, head])) {
                sum.iter_mut().zip(part).for_each(|(sum, x)| *sum += x / self.cmp_block as f64);
            }
        }
        sums
    }

    /// The attention of a query to some keys.
    fn attend(&self, query: &[f64], seen: &[[Vec<f64>; 2]]) -> Vec<f64> {
        let mut out = vec![0.0; self.sizes.dim_v];
        for (weight, [_, value]) in self.weights(query, seen).into_iter().zip(seen) {
            out.iter_mut().zip(value).for_each(|(out, value)| *out += weight * value);
        }
        out
    }

    fn weights(&self, query: &[f64], seen: &[[Vec<f64>; 2]]) -> Vec<f64> {
        let dot = |key: &[f64]| query.iter().zip(key).map(|(q, k)| q * k).sum::<f64>();
        let scores: Vec<f64> = seen.iter().map(|[key, _]| self.scale * dot(key)).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / sum).collect()
    }

    /// The output `[batch, rows, heads, dim_v]`; `lists` are `[batch, tiles, heads_kv]`.
    pub fn out(&self, inputs: &Inputs, lists: &[Lists]) -> Vec<f64> {
        let Sizes { batch, tokens, heads, heads_kv, dim, .. } = self.sizes;
        let mut outs = Vec::new();
        for (sample, token) in (0..batch).flat_map(|b| (self.first..tokens).map(move |t| (b, t))) {
            for head in 0..heads {
                let kv = head * heads_kv / heads;
                let tile = (token - self.first) / self.query_tile;
                let lists = &lists[(sample * self.tiles() + tile) * heads_kv + kv];
                let query = self.vector(&inputs.query, dim, [sample, token, head]);
                let gates = self.vector(&inputs.gates, 3, [sample, token, head]);
                let raw = |token: usize| self.token(inputs, [sample, token, kv]);
                let is_listed = |list: &[i64], block: usize| list.contains(&(block as i64));
                let is_seen = |block: &usize| match &lists.cmp_blocks {
                    Some(list) => is_listed(list, block / self.cmp_group),
                    None => true,
                };
                let blocks = (0..self.complete(token + 1)).filter(is_seen);
                let blocks: Vec<_> =
                    blocks.map(|block| self.block(inputs, [sample, block, kv])).collect();
                let selected =
                    (0..=token).filter(|key| is_listed(&lists.blocks, key / self.slc_block));
                let window = (token + 1).saturating_sub(self.window)..token + 1;
                let branches = [
                    self.attend(query, &blocks),
                    self.attend(query, &selected.map(raw).collect::<Vec<_>>()),
                    self.attend(query, &window.map(raw).collect::<Vec<_>>()),
                ];
                let sum = |d: usize| branches.iter().zip(gates).map(|(b, gate)| gate * b[d]).sum();
                outs.extend((0..self.sizes.dim_v).map(sum).collect::<Vec<f64>>());
            }
        }
        outs
    }

    /// Fails unless the scores allow these lists, up to what f32 cannot tell apart.
    pub fn check_lists(&self, what: &str, inputs: &Inputs, lists: &[Lists]) {
        let Sizes { batch, tokens, heads, heads_kv, dim, .. } = self.sizes;
        let places = (0..batch).flat_map(|b| (0..self.tiles()).map(move |tile| (b, tile)));
        let places = places.flat_map(|(b, tile)| (0..heads_kv).map(move |kv| (b, tile, kv)));
        for ((sample, tile, kv), lists) in places.zip(lists) {
            let first = self.first + tile * self.query_tile;
            let visible = self.complete(first + 1);
            let blocks: Vec<_> =
                (0..visible).map(|block| self.block(inputs, [sample, block, kv])).collect();
            let mut sums = vec![0.0; visible];
            let group = heads / heads_kv;
            for head in kv * group..(kv + 1) * group {
                let query = self.vector(&inputs.query, dim, [sample, first, head]);
                let weights = self.weights(query, &blocks);
                sums.iter_mut().zip(weights).for_each(|(sum, weight)| *sum += weight);
            }
            let what = format!("{what} sample {sample}, tile {tile}, head {kv}");
            let last = first + self.query_tile - 1;
            let own = first / self.slc_block;
            let is_forced = |block: usize| block < self.num_init || block + self.num_local > own;
            let choice = Choice {
                scores: (0..own).map(|block| self.score(&sums, block)).collect(),
                forced: (0..=last / self.slc_block).filter(|block| is_forced(*block)).collect(),
                count: self.num_selected,
                end: tokens.div_ceil(self.slc_block),
            };
            choice.check(&format!("{what}, blocks"), &lists.blocks);

            let Some((list, count)) = lists.cmp_blocks.as_ref().zip(self.cmp_top) else { continue };
            let of = |block: usize| {
                let range = block * self.cmp_group..((block + 1) * self.cmp_group).min(visible);
                sums[range].iter().sum()
            };
            let (full, filling) = (visible / self.cmp_group, self.complete(last + 1));
            let choice = Choice {
                scores: (0..full).map(of).collect(),
                forced: (full..filling.div_ceil(self.cmp_group)).collect(),
                count,
                end: self.complete(tokens).div_ceil(self.cmp_group),
            };
            choice.check(&format!("{what}, super-blocks"), list);
        }
    }

    /// What compressed blocks give to a block of tokens: by the tokens that they share.
    fn score(&self, sums: &[f64], block: usize) -> f64 {
        let own = block * self.slc_block..(block + 1) * self.slc_block;
        let shared = |other: Range<usize>| {
            let (start, end) = (own.start.max(other.start), own.end.min(other.end));
            end.saturating_sub(start) as f64 / self.cmp_stride as f64
        };
        let of = |(number, sum): (usize, &f64)| {
            let start = number * self.cmp_stride;
            sum * shared(start..start + self.cmp_block)
        };
        sums.iter().enumerate().map(of).sum()
    }
}

/// What a list is chosen from.
struct Choice {
    /// Of the blocks from 0 that compete, those that are forced among them.
    scores: Vec<f64>,
    forced: Vec<usize>,
    count: usize,
    /// The first block that does not exist.
    end: usize,
}

impl Choice {
    fn check(&self, what: &str, list: &[i64]) {
        assert_eq!(list.len(), self.count, "{what}: length of {list:?}");
        let filled = list.iter().take_while(|block| **block >= 0).count();
        assert!(list[..filled].is_sorted_by(|a, b| a < b), "{what}: {list:?} is not ascending");
        assert!(list[filled..].iter().all(|block| *block == -1), "{what}: {list:?} goes on");
        let chosen: Vec<usize> = list[..filled].iter().map(|block| *block as usize).collect();
        assert!(chosen.iter().all(|block| *block < self.end), "{what}: {list:?} ends behind");
        let is_there = |block: &&usize| **block < self.end;
        let mut missing =
            self.forced.iter().filter(is_there).filter(|block| !chosen.contains(block));
        assert_eq!(missing.next(), None, "{what}: {list:?} lacks what is forced");
        let is_free = |block: &usize| !self.forced.contains(block);
        let (best, rest): (Vec<usize>, Vec<usize>) =
            (0..self.scores.len()).filter(is_free).partition(|block| chosen.contains(block));
        let forced = chosen.iter().filter(|block| !is_free(block)).count();
        assert_eq!(best.len() + forced, chosen.len(), "{what}: {list:?} has what does not compete");
        let free = (self.count - self.forced.len()).min(best.len() + rest.len());
        assert_eq!(best.len(), free, "{what}: number of free blocks in {list:?}");
        for (best, rest) in best.iter().flat_map(|best| rest.iter().map(move |rest| (best, rest))) {
            let [score, other] = [self.scores[*best], self.scores[*rest]];
            let is_tie = score == 0.0 && other == 0.0;
            let is_right = if is_tie { best < rest } else { score >= other - 1e-5 };
            assert!(is_right, "{what}: {best} ({score}) is in {list:?}, {rest} ({other}) is not");
        }
    }
}
