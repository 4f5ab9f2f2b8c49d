//! The lists beside their definition, in float64, by sets of tokens.

use burn::tensor::IntDType;
use burn_natten_kernels::{Axis, Problem};

use super::*;
use crate::MemoryPreference;

/// Numbers without a pattern.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % end
    }

    fn values(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|_| self.below(2001) as f64 / 500.0 - 2.0).collect()
    }
}

/// The best candidates, and by how much the last one beats the first one that is left out.
fn best(scores: &[f64], candidates: Vec<usize>, count: usize) -> (Vec<usize>, f64) {
    let mut order = candidates;
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
    let gap = match order.get(count) {
        Some(next) if count > 0 => scores[order[count - 1]] - scores[*next],
        _ => f64::INFINITY,
    };
    order.truncate(count);
    // Exact ties ask for no precision.
    (order, if gap == 0.0 { f64::INFINITY } else { gap })
}

/// A list of each kind of a tile and head, and how near the choice was.
fn lists(
    (query, key): (&[f64], &[f64]),
    problem: &Problem,
    (tokens, sizes): (usize, &Sizes),
    [sample, tile, head]: [usize; 3],
) -> (Vec<usize>, Vec<usize>, f64) {
    let (rows, group, dim) = (problem.queries(), problem.group_size(), problem.head_dim);
    let row = tile * sizes.query_tile;
    let first = tokens - rows + row;
    let blocks_at = |tokens: usize| {
        let ends = (0..).map(|block| block * sizes.cmp_stride + sizes.cmp_block);
        ends.take_while(|end| *end <= tokens).count()
    };
    let seen = blocks_at(first + 1);
    let mut mass = vec![0.0; seen];
    for member in 0..group {
        let at = ((sample * rows + row) * problem.heads + head * group + member) * dim;
        let scores: Vec<f64> = (0..seen)
            .map(|block| {
                let key_at = ((sample * problem.keys() + block) * problem.heads_kv + head) * dim;
                let products = query[at..][..dim].iter().zip(&key[key_at..][..dim]);
                products.map(|(a, b)| a * b).sum::<f64>() * problem.scale
            })
            .collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|score| (score - most).exp()).sum();
        for (mass, score) in mass.iter_mut().zip(scores) {
            *mass += (score - most).exp() / sum;
        }
    }
    let (own, last) = (first / sizes.slc_block, (first + sizes.query_tile - 1) / sizes.slc_block);
    let is_forced = |block: &usize| {
        *block < sizes.num_init || *block as isize > own as isize - sizes.num_local as isize
    };
    let scores: Vec<f64> = (0..own)
        .map(|block| {
            let tokens = block * sizes.slc_block..(block + 1) * sizes.slc_block;
            let share = |x: usize| {
                let own = x * sizes.cmp_stride..x * sizes.cmp_stride + sizes.cmp_block;
                own.filter(|token| tokens.contains(token)).count() / sizes.cmp_stride
            };
            (0..seen).map(|x| mass[x] * share(x) as f64).sum()
        })
        .collect();
    let forced: Vec<usize> = (0..=last).filter(is_forced).collect();
    let free = (0..own).filter(|block| !is_forced(block)).collect();
    let (mut list, gap) = best(&scores, free, sizes.num_selected - forced.len());
    list.extend(forced);
    list.sort_unstable();
    list.retain(|block| block * sizes.slc_block < tokens);

    let Some(top) = sizes.cmp_top else { return (list, vec![], gap) };
    let end = blocks_at(first + sizes.query_tile).div_ceil(sizes.cmp_group);
    let filling = (seen / sizes.cmp_group).min(end)..end;
    let sums: Vec<f64> = mass.chunks(sizes.cmp_group).map(|mass| mass.iter().sum()).collect();
    let whole = (0..seen / sizes.cmp_group).collect();
    let (mut supers, other) = best(&sums, whole, top - filling.len());
    supers.extend(filling);
    supers.sort_unstable();
    supers.retain(|block| block * sizes.cmp_group < problem.keys());
    (list, supers, gap.min(other))
}

const SMALL: Sizes = Sizes {
    cmp_block: 4,
    cmp_stride: 2,
    slc_block: 8,
    num_selected: 5,
    num_init: 1,
    num_local: 2,
    window: 0,
    query_tile: 1,
    cmp_top: None,
    cmp_group: 3,
};

struct Case {
    batch: usize,
    tokens: usize,
    rows: usize,
    heads: [usize; 2],
    sizes: Sizes,
}

impl Case {
    fn new(tokens: usize, sizes: Sizes) -> Self {
        Self { batch: 2, tokens, rows: tokens, heads: [4, 2], sizes }
    }

    fn problem(&self) -> Problem {
        let axis = Axis::dense(self.rows, self.sizes.compressed(self.tokens), false);
        Problem::new([axis], self.heads[0], 6).with_heads_kv(self.heads[1]).with_batch(self.batch)
    }

    fn plan(&self) -> SelectPlan {
        SelectPlan {
            problem: self.problem(),
            tokens: self.tokens,
            sizes: self.sizes,
            mslk: None,
            strategy: Strategy::Auto,
            memory: MemoryPreference::Default,
            ints: IntDType::I64,
        }
    }

    /// Lists in f64 as they must be, and in f32 where the choice is not too near.
    fn check(&self, query: &[f64], key: &[f64]) {
        let (problem, sizes) = (self.problem(), self.sizes);
        let narrow = |values: &[f64]| values.iter().map(|x| *x as f32).collect::<Vec<_>>();
        let double = choose(query, key, &self.plan());
        let single = choose(&narrow(query), &narrow(key), &self.plan());
        let tiles = self.rows.div_ceil(sizes.query_tile);
        let heads = self.heads[1];
        let supers = |chosen: &Chosen| chosen.super_blocks.clone().unwrap_or_default();
        assert_eq!(double.super_blocks.is_some(), sizes.cmp_top.is_some());
        for list in 0..self.batch * tiles * heads {
            let at = [list / heads / tiles, list / heads % tiles, list % heads];
            let (blocks, super_blocks, gap) =
                lists((query, key), &problem, (self.tokens, &sizes), at);
            let kinds = [
                (&double.blocks, &single.blocks, sizes.num_selected, blocks),
                (&supers(&double), &supers(&single), sizes.cmp_top.unwrap_or(0), super_blocks),
            ];
            for (double, single, entries, want) in kinds {
                let mut want: Vec<_> = want.into_iter().map(|block| block as i64).collect();
                assert!(want.len() <= entries);
                want.resize(entries, -1);
                assert_eq!(double[list * entries..][..entries], want, "{at:?} of {sizes:?}");
                if gap > 1e-4 {
                    assert_eq!(single[list * entries..][..entries], want, "f32, {at:?}");
                }
            }
        }
    }

    fn check_random(&self, seed: u64) {
        let (problem, mut random) = (self.problem(), Random(seed));
        let query = random.values(problem.batch * problem.queries() * problem.heads * 6);
        let key = random.values(problem.batch * problem.keys() * problem.heads_kv * 6);
        self.check(&query, &key);
    }
}

#[test]
fn tokens_choose_as_defined() {
    for tokens in [1, 3, 4, 8, 9, 70, 131] {
        Case::new(tokens, SMALL).check_random(tokens as u64);
    }
    // As many heads as rows of the inner loops, fewer, more, and a number that does not divide.
    for heads in [[1, 1], [6, 2], [5, 1], [40, 1], [3, 3]] {
        Case { heads, ..Case::new(90, SMALL) }.check_random(7);
    }
}

#[test]
fn tiles_choose_by_their_first_query() {
    for query_tile in [2, 8, 16] {
        let sizes = Sizes { query_tile, cmp_top: Some(6), ..SMALL };
        for tokens in [5, 64, 101] {
            Case::new(tokens, sizes).check_random(3);
        }
        // Rows of the last tokens.
        Case { rows: 100 - 48, ..Case::new(100, sizes) }.check_random(4);
    }
}

#[test]
fn blocks_of_other_sizes() {
    let none = Sizes { num_init: 0, num_local: 1, num_selected: 1, ..SMALL };
    let longer = Sizes { cmp_block: 12, cmp_stride: 4, slc_block: 4, cmp_top: Some(2), ..SMALL };
    let equal = Sizes { cmp_block: 8, cmp_stride: 8, ..SMALL };
    let many = Sizes { num_init: 3, num_local: 4, num_selected: 9, cmp_top: Some(1), ..SMALL };
    for sizes in [none, longer, equal, many] {
        Case::new(120, sizes).check_random(5);
    }
}

#[test]
fn among_equals_the_lower_number_is_chosen() {
    let sizes = Sizes { cmp_top: Some(3), ..SMALL };
    let case = Case::new(130, sizes);
    let problem = case.problem();
    let query = vec![0.0; problem.batch * problem.queries() * problem.heads * 6];
    let key = Random(6).values(problem.batch * problem.keys() * problem.heads_kv * 6);
    case.check(&query, &key);
    let chosen = choose(&query, &key, &case.plan());
    // Blocks 0 and 1 are at the start, whose first compressed block has one neighbor less.
    let last = &chosen.blocks[chosen.blocks.len() - sizes.num_selected..];
    assert_eq!(last, [0, 1, 2, 15, 16]);
}
