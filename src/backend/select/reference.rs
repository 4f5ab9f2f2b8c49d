//! The selection composed of a backend's tensor operations, some tiles at a time.

use std::ops::Range;

use burn::backend::tensor::{BoolTensor, Device, FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata, get_device_settings};
use burn::tensor::{DType, FloatDType, Shape, TensorData};

use super::top::{SCORES, Top, every, numbers};
use super::{OptionalLists, SelectPlan, Selected, TopPlan, mslk};
use crate::backend::accumulator;
use crate::options::Sizes;

pub(crate) fn select<B: Backend>(
    query: FloatTensor<B>,
    key: FloatTensor<B>,
    plan: &SelectPlan,
) -> Selected<B> {
    let (batch, heads, tiles) = (plan.problem.batch, plan.list_heads(), plan.tiles());
    let device = query.device();
    let ints = plan.ints;
    let Sizes { num_selected, cmp_top, .. } = plan.sizes;
    if batch * tiles == 0 {
        let none =
            |entries| B::int_zeros(Shape::new([batch, tiles, heads, entries]), &device, ints);
        return Selected { blocks: none(num_selected), super_blocks: optional(cmp_top.map(none)) };
    }
    let rows = match plan.mslk {
        None => first_rows::<B>(query, plan),
        Some(_) => mslk::mean_rows::<B>(query, plan),
    };
    let scores = Scores::<B>::new(rows, key, plan);
    let (mut blocks, mut super_blocks) = (vec![], vec![]);
    let step = plan.tiles_at_a_time();
    for start in (0..tiles).step_by(step) {
        let tiles = start..(start + step).min(tiles);
        match plan.mslk {
            None => {
                let (of_blocks, of_super_blocks) = scores.lists(tiles);
                blocks.push(of_blocks);
                super_blocks.extend(of_super_blocks);
            }
            Some(mslk) => blocks.push(mslk::lists::<B>(&scores, tiles, mslk)),
        }
    }
    // Lists were made by head and tile.
    let whole = |parts: Vec<IntTensor<B>>| B::int_permute(B::int_cat(parts, 2), &[0, 2, 1, 3]);
    let super_blocks = (!super_blocks.is_empty()).then(|| whole(super_blocks));
    Selected { blocks: whole(blocks), super_blocks: optional(super_blocks) }
}

fn optional<B: Backend>(lists: Option<IntTensor<B>>) -> OptionalLists<B> {
    match lists {
        None => OptionalLists::None,
        Some(lists) => OptionalLists::Some { lists },
    }
}

/// The first query of each tile.
fn first_rows<B: Backend>(query: FloatTensor<B>, plan: &SelectPlan) -> FloatTensor<B> {
    let rows = every::<B>(query, 1, 0..plan.rows(), plan.sizes.query_tile);
    let dtype: FloatDType = accumulator(rows.dtype()).into();
    B::float_cast(rows, dtype)
}

/// What scores are made of.
pub(super) struct Scores<'a, B: Backend> {
    pub plan: &'a SelectPlan,
    pub device: Device<B>,
    dtype: FloatDType,
    /// Of each tile its query, `[batch, heads_kv, tiles * group, head_dim]`.
    rows: FloatTensor<B>,
    /// `[batch, heads_kv, head_dim, blocks]`
    key: FloatTensor<B>,
}

impl<'a, B: Backend> Scores<'a, B> {
    /// `rows` is `[batch, tiles, heads, head_dim]`, in the type that scores are computed in.
    fn new(rows: FloatTensor<B>, key: FloatTensor<B>, plan: &'a SelectPlan) -> Self {
        let (problem, tiles) = (&plan.problem, plan.tiles());
        let (group, dim) = (problem.group_size(), problem.head_dim);
        let dtype: FloatDType = accumulator(rows.dtype()).into();
        let shape = Shape::new([problem.batch, tiles, problem.heads_kv, group, dim]);
        let rows = B::float_permute(B::float_reshape(rows, shape), &[0, 2, 1, 3, 4]);
        let shape = Shape::new([problem.batch, problem.heads_kv, tiles * group, dim]);
        Self {
            device: rows.device(),
            rows: B::float_reshape(rows, shape),
            key: B::float_cast(B::float_permute(key, &[0, 2, 3, 1]), dtype),
            dtype,
            plan,
        }
    }

    /// Scaled scores of the first `keys` compressed keys, `[batch, heads_kv, tiles, group, keys]`.
    pub fn dots(&self, tiles: &Range<usize>, keys: usize) -> FloatTensor<B> {
        let problem = &self.plan.problem;
        let group = problem.group_size();
        let rows = every::<B>(self.rows.clone(), 2, tiles.start * group..tiles.end * group, 1);
        let dots = B::float_matmul(rows, every::<B>(self.key.clone(), 3, 0..keys, 1));
        let dots = B::float_mul_scalar(dots, problem.scale.into());
        let shape = Shape::new([problem.batch, problem.heads_kv, tiles.len(), group, keys]);
        B::float_reshape(dots, shape)
    }

    /// The lists of some tiles, `[batch, heads_kv, tiles, entries]`, and those of super-blocks.
    fn lists(&self, tiles: Range<usize>) -> (IntTensor<B>, Option<IntTensor<B>>) {
        let (plan, sizes) = (self.plan, self.plan.sizes);
        let last = tiles.end - 1;
        let mass = self.mass(&tiles);

        let count = plan.own(last).1 + 1;
        let scores = match &mass {
            Some(mass) => self.overlaps(mass.clone(), count),
            None => self.zeros(&tiles, count),
        };
        let own =
            |pick: fn((usize, usize)) -> usize| self.of_tiles(&tiles, |tile| pick(plan.own(tile)));
        let (first, end) = (own(|own| own.0), own(|own| own.1 + 1));
        let local =
            self.of_tiles(&tiles, |tile| (plan.own(tile).0 + 1).saturating_sub(sizes.num_local));
        let init = self.of_tiles(&tiles, |_| sizes.num_init);
        // Forced are the blocks below `init` and those from `local` on, as far as there are any.
        let numbers = self.numbers(&tiles, count);
        let bools = get_device_settings::<B>(&self.device).bool_dtype;
        let below = |bound: &IntTensor<B>| {
            let bound = B::int_expand(bound.clone(), numbers.shape());
            B::int_lower(numbers.clone(), bound, bools)
        };
        let is_forced =
            B::bool_and(below(&end), B::bool_or(below(&init), B::bool_not(below(&local))));
        let scores = ranked::<B>(scores, is_forced, below(&first));
        let top = Top {
            entries: sizes.num_selected,
            end: plan.blocks(),
            has_repeats: false,
            ints: plan.ints,
        };
        let blocks = top.of::<B>(scores);
        (blocks, sizes.cmp_top.map(|entries| self.super_blocks(&tiles, mass, entries)))
    }

    fn super_blocks(
        &self,
        tiles: &Range<usize>,
        mass: Option<FloatTensor<B>>,
        entries: usize,
    ) -> IntTensor<B> {
        let (plan, group) = (self.plan, self.plan.sizes.cmp_group);
        let last = tiles.end - 1;
        let count = plan.filling(last).1.max(1);
        let scores = match mass {
            Some(mass) => {
                let [batch, heads, tiles, _] = mass.shape().dims::<4>();
                let padded = self.padded(mass, 0, count * group);
                let shape = Shape::new([batch, heads, tiles, count, group]);
                let sums = B::float_sum_dim(B::float_reshape(padded, shape), 4);
                B::float_reshape(sums, Shape::new([batch, heads, tiles, count]))
            }
            None => self.zeros(tiles, count),
        };
        let first = self.of_tiles(tiles, |tile| plan.filling(tile).0);
        let end = self.of_tiles(tiles, |tile| plan.filling(tile).1);
        let numbers = self.numbers(tiles, count);
        let bools = get_device_settings::<B>(&self.device).bool_dtype;
        let below = |bound: IntTensor<B>| {
            let bound = B::int_expand(bound, numbers.shape());
            B::int_lower(numbers.clone(), bound, bools)
        };
        let is_free = below(first);
        let is_forced = B::bool_and(below(end), B::bool_not(is_free.clone()));
        let end = plan.compressed().div_ceil(group);
        Top { entries, end, has_repeats: false, ints: plan.ints }
            .of::<B>(ranked::<B>(scores, is_forced, is_free))
    }

    /// Probabilities of the compressed blocks that the first query of a tile sees, summed over the heads of a group:
    /// `[batch, heads_kv, tiles, blocks]`. None where no tile sees any.
    fn mass(&self, tiles: &Range<usize>) -> Option<FloatTensor<B>> {
        let plan = self.plan;
        let count = plan.seen(tiles.end - 1);
        if count == 0 {
            return None;
        }
        let bools = get_device_settings::<B>(&self.device).bool_dtype;
        let scores = self.dots(tiles, count);
        let [batch, heads, _, _, _] = scores.shape().dims::<5>();
        let line = self.numbers(tiles, count);
        let seen = self.of_tiles(tiles, |tile| plan.seen(tile));
        let hidden =
            B::bool_not(B::int_lower(line.clone(), B::int_expand(seen, line.shape()), bools));
        let hidden = B::bool_reshape(hidden, Shape::new([1, 1, tiles.len(), 1, count]));
        let hidden = B::bool_expand(hidden, scores.shape());
        let scores = B::float_mask_fill(scores, hidden, f32::NEG_INFINITY.into());
        let max = B::float_max_dim(scores.clone(), 4);
        // Tiles that see nothing have no greatest score: any will do, for their sum is zero.
        let blind = B::float_equal_elem(max.clone(), f32::NEG_INFINITY.into(), bools);
        let max = B::float_mask_fill(max, blind.clone(), 0f32.into());
        let weights = B::float_exp(B::float_sub(scores, max));
        let sum = B::float_sum_dim(weights.clone(), 4);
        let weights = B::float_div(weights, B::float_mask_fill(sum, blind, 1f32.into()));
        let mass = B::float_sum_dim(weights, 3);
        Some(B::float_reshape(mass, Shape::new([batch, heads, tiles.len(), count])))
    }

    /// What the first `count` selection blocks get of the compressed blocks that overlap them. Sums have one order for all of
    /// them, so that equal masses have equal scores.
    fn overlaps(&self, mass: FloatTensor<B>, count: usize) -> FloatTensor<B> {
        let Sizes { cmp_block, cmp_stride, slc_block, .. } = self.plan.sizes;
        let (reach, ratio) = (cmp_block / cmp_stride, slc_block / cmp_stride);
        let padded = self.padded(mass, reach - 1, count * ratio + reach - 1);
        let taps = (0..ratio + reach - 1).map(|tap| {
            // The compressed block begins `tap - (reach - 1)` strides behind the selection block.
            let shared = (tap + 1).min(ratio) - (tap + 1).saturating_sub(reach);
            let end = tap + (count - 1) * ratio + 1;
            let part = every::<B>(padded.clone(), SCORES, tap..end, ratio);
            if shared == 1 { part } else { B::float_mul_scalar(part, (shared as f64).into()) }
        });
        taps.reduce(B::float_add).unwrap_or(padded.clone())
    }

    /// The tensor with zeros before and behind its last axis, which then is `count` long.
    fn padded(&self, tensor: FloatTensor<B>, before: usize, count: usize) -> FloatTensor<B> {
        let mut sizes = tensor.shape().dims::<4>();
        let behind = count - before - sizes[SCORES];
        let mut zeros = |count: usize| {
            sizes[SCORES] = count;
            B::float_zeros(Shape::new(sizes), &self.device, self.dtype)
        };
        let (before, behind) =
            ((before > 0).then(|| zeros(before)), (behind > 0).then(|| zeros(behind)));
        let parts: Vec<_> = before.into_iter().chain([tensor]).chain(behind).collect();
        B::float_cat(parts, SCORES)
    }

    fn zeros(&self, tiles: &Range<usize>, count: usize) -> FloatTensor<B> {
        let problem = &self.plan.problem;
        let shape = Shape::new([problem.batch, problem.heads_kv, tiles.len(), count]);
        B::float_zeros(shape, &self.device, self.dtype)
    }

    /// The numbers of blocks, `[1, 1, tiles, count]`.
    pub fn numbers(&self, tiles: &Range<usize>, count: usize) -> IntTensor<B> {
        numbers::<B>(&Shape::new([1, 1, tiles.len(), count]), &self.device, self.plan.ints)
    }

    /// A number of each tile, `[1, 1, tiles, 1]`.
    pub fn of_tiles(&self, tiles: &Range<usize>, number: impl Fn(usize) -> usize) -> IntTensor<B> {
        let ints = self.plan.ints;
        let values: Vec<_> = tiles.clone().map(|tile| number(tile) as i64).collect();
        let data = TensorData::new(values, [1, 1, tiles.len(), 1]).convert_dtype(DType::from(ints));
        B::int_from_data(data, &self.device)
    }
}

/// Scores as they rank: those that are forced first, and none but those and the ones that may be chosen.
fn ranked<B: Backend>(
    scores: FloatTensor<B>,
    is_forced: BoolTensor<B>,
    is_free: BoolTensor<B>,
) -> FloatTensor<B> {
    let shape = scores.shape();
    let whole = |mask: BoolTensor<B>| B::bool_expand(mask, shape.clone());
    let scores = B::float_mask_fill(scores, whole(B::bool_not(is_free)), f32::NEG_INFINITY.into());
    B::float_mask_fill(scores, whole(is_forced), f32::INFINITY.into())
}

/// The numbers of the highest scores, by the backend's own sort.
pub(crate) fn top_blocks<B: Backend>(scores: FloatTensor<B>, plan: TopPlan) -> IntTensor<B> {
    if plan.entries == 0 {
        let [batch, tiles, heads, _] = scores.shape().dims::<4>();
        return B::int_zeros(Shape::new([batch, tiles, heads, 0]), &scores.device(), plan.ints);
    }
    let bools = get_device_settings::<B>(&scores.device()).bool_dtype;
    let is_nan = B::float_is_nan(scores.clone(), bools);
    let scores = B::float_mask_fill(scores, is_nan, f32::NEG_INFINITY.into());
    let (best, blocks) = B::float_topk_with_indices(scores, SCORES, plan.entries, plan.ints);
    let is_none = B::float_equal_elem(best, f32::NEG_INFINITY.into(), bools);
    B::int_mask_fill(blocks, is_none, (-1i64).into())
}
