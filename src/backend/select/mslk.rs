//! What MSLK's reference selects: blocks by raw scores of a tile's mean query, for each head of the query.

use std::ops::Range;

use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata, get_device_settings};
use burn::tensor::{FloatDType, Shape};

use super::SelectPlan;
use super::reference::Scores;
use super::top::Top;
use crate::backend::accumulator;
use crate::options::Mslk;

/// The mean query of each tile.
pub(super) fn mean_rows<B: Backend>(query: FloatTensor<B>, plan: &SelectPlan) -> FloatTensor<B> {
    let problem = &plan.problem;
    let (tiles, tile) = (plan.tiles(), plan.sizes.query_tile);
    let dtype: FloatDType = accumulator(query.dtype()).into();
    let shape = Shape::new([problem.batch, tiles, tile, problem.heads, problem.head_dim]);
    let rows = B::float_mean_dim(B::float_cast(B::float_reshape(query, shape), dtype), 2);
    B::float_reshape(rows, Shape::new([problem.batch, tiles, problem.heads, problem.head_dim]))
}

/// The lists of some tiles, `[batch, heads, tiles, entries]`.
pub(super) fn lists<B: Backend>(
    scores: &Scores<'_, B>,
    tiles: Range<usize>,
    mslk: Mslk,
) -> IntTensor<B> {
    let (plan, sizes) = (scores.plan, scores.plan.sizes);
    let (problem, count) = (&plan.problem, plan.compressed());
    let bools = get_device_settings::<B>(&scores.device).bool_dtype;
    let mut dots = B::float_permute(scores.dots(&tiles, count), &[0, 1, 3, 2, 4]);
    let shape = Shape::new([problem.batch, problem.heads, tiles.len(), count]);
    dots = B::float_reshape(dots, shape.clone());
    if mslk.is_causal {
        // Blocks that start before the tile ends.
        let end = scores
            .of_tiles(&tiles, |tile| ((tile + 1) * sizes.query_tile).div_ceil(sizes.slc_block));
        let numbers = scores.numbers(&tiles, count);
        let end = B::int_expand(end, numbers.shape());
        let hidden = B::bool_expand(B::int_greater_equal(numbers, end, bools), shape);
        dots = B::float_mask_fill(dots, hidden, f32::NEG_INFINITY.into());
    }
    let top = Top {
        entries: sizes.num_selected,
        end: count,
        has_repeats: mslk.has_repeats,
        ints: plan.ints,
    };
    top.of::<B>(dots)
}
