//! The best of many scores, without a look at them from the host.

use burn::backend::tensor::{BoolTensor, FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata, get_device_settings};
use burn::tensor::{IntDType, Shape, Slice};

/// The axis of scores and lists, `[batch, heads, tiles, scores]`.
pub(super) const SCORES: usize = 3;

/// How many are chosen, and what is made of the choice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Top {
    /// Entries of a list.
    pub entries: usize,
    /// Numbers from here on are none.
    pub end: usize,
    /// Whether number 0 fills a list where there are scores, but too few that are finite or `inf`.
    pub has_repeats: bool,
    /// The type of lists.
    pub ints: IntDType,
}

impl Top {
    /// The numbers of the greatest scores, the lower number first among equals, in ascending order, with `-1` behind their end.
    /// A score of `-inf` is none. That is a round for each entry, and then a comparison of each with each.
    pub fn of<B: Backend>(&self, mut scores: FloatTensor<B>) -> IntTensor<B> {
        let shape = scores.shape();
        let [batch, heads, tiles, count] = shape.dims::<4>();
        let (device, ints) = (scores.device(), self.ints);
        let bools = get_device_settings::<B>(&device).bool_dtype;
        let numbers = numbers::<B>(&shape, &device, ints);
        // Behind all that there are.
        let none = count.max(self.end) as i64;
        let rounds = self.entries.min(count);
        let mut chosen = vec![];
        for _ in 0..rounds {
            let max = B::float_max_dim(scores.clone(), SCORES);
            let is_none = B::float_equal_elem(max.clone(), f32::NEG_INFINITY.into(), bools);
            let is_less =
                B::float_not_equal(scores.clone(), B::float_expand(max, shape.clone()), bools);
            let number =
                B::int_min_dim(B::int_mask_fill(numbers.clone(), is_less, none.into()), SCORES);
            let is_chosen =
                B::int_equal(numbers.clone(), B::int_expand(number.clone(), shape.clone()), bools);
            scores = B::float_mask_fill(scores, is_chosen, f32::NEG_INFINITY.into());
            let other = if self.has_repeats { 0 } else { none };
            chosen.push(B::int_mask_fill(number, is_none, other.into()));
        }
        if rounds < self.entries {
            let rest = Shape::new([batch, heads, tiles, self.entries - rounds]);
            chosen.push(B::int_full(rest, none.into(), &device, ints));
        }
        let sorted = ascending::<B>(B::int_cat(chosen, SCORES), ints);
        let is_none = B::int_greater_equal_elem(sorted.clone(), (self.end as i64).into(), bools);
        B::int_mask_fill(sorted, is_none, (-1i64).into())
    }
}

/// The numbers of the last axis.
pub(super) fn numbers<B: Backend>(
    shape: &Shape,
    device: &burn::backend::tensor::Device<B>,
    ints: IntDType,
) -> IntTensor<B> {
    let axes = shape.num_dims();
    let count = shape[axes - 1];
    let mut line = vec![1; axes];
    line[axes - 1] = count;
    let numbers = B::int_arange(0..count as i64, device, ints);
    B::int_expand(B::int_reshape(numbers, Shape::from(line)), shape.clone())
}

/// Sorts the last axis: each entry goes to where its rank says. A backend's own sort may run on the host.
fn ascending<B: Backend>(lists: IntTensor<B>, ints: IntDType) -> IntTensor<B> {
    let [batch, heads, tiles, entries] = lists.shape().dims::<4>();
    let (device, bools) = (lists.device(), get_device_settings::<B>(&lists.device()).bool_dtype);
    let pairs = Shape::new([batch, heads, tiles, entries, entries]);
    let across = |tensor: IntTensor<B>, axis: usize| {
        let mut shape = [batch, heads, tiles, 1, 1];
        shape[axis] = entries;
        B::int_expand(B::int_reshape(tensor, Shape::new(shape)), pairs.clone())
    };
    // Equal entries keep their order, so that each has a rank of its own.
    let places = numbers::<B>(&lists.shape(), &device, ints);
    let keys = B::int_add(B::int_mul_scalar(lists.clone(), (entries as i64).into()), places);
    let is_before: BoolTensor<B> = B::int_lower(across(keys.clone(), 4), across(keys, 3), bools);
    let ranks = B::int_sum_dim(B::bool_into_int(is_before, ints), 4);
    let ranks = B::int_expand(ranks, pairs.clone());
    let is_elsewhere = B::int_not_equal(ranks, numbers::<B>(&pairs, &device, ints), bools);
    let moved = B::int_mask_fill(across(lists, 3), is_elsewhere, 0i64.into());
    B::int_reshape(B::int_sum_dim(moved, 3), Shape::new([batch, heads, tiles, entries]))
}

/// A part of an axis, every `step`th of it.
pub(super) fn every<B: Backend>(
    tensor: FloatTensor<B>,
    axis: usize,
    range: std::ops::Range<usize>,
    step: usize,
) -> FloatTensor<B> {
    let mut slices = vec![Slice::from(..); tensor.shape().num_dims()];
    slices[axis] = Slice::new(range.start as isize, Some(range.end as isize), step as isize);
    B::float_slice(tensor, &slices)
}
