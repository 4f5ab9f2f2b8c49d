//! The products composed of a backend's tensor operations.
//!
//! Some slots of all queries are gathered at a time, as tokens `[batch, queries, slots, heads_kv, group, dim]`. A hidden slot takes the
//! token of the first slot, which its query sees in any case, and its product is replaced.

use std::ops::Range;

use burn::backend::tensor::{BoolTensor, Device, FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata, get_device_settings};
use burn::tensor::{FloatDType, IndexingUpdateOp, Shape, Slice, TensorData};

use super::{Optional, Tokens, UnfusedPlan, additional_shape, space_shape, with_last};
use crate::backend::accumulator;

/// The slot axis of gathered tokens.
const SLOTS: usize = 2;
/// Their axis of the query heads that share a key head.
const GROUP: usize = 4;
/// The axis of their vectors.
const DIM: usize = 5;

pub(crate) fn dots<B: Backend>(
    rows: FloatTensor<B>,
    tokens: Tokens<B>,
    bias: Option<FloatTensor<B>>,
    plan: &UnfusedPlan,
) -> FloatTensor<B> {
    let (shape, dtype) = (with_last(&rows.shape(), plan.slots()), rows.dtype());
    let slots = Slots::<B>::new(&rows, plan);
    if slots.is_empty() {
        return B::float_zeros(shape, &slots.device, dtype.into());
    }
    let (rows, tokens) = (slots.rows(rows), slots.tokens(tokens));
    let mut blocks = vec![];
    for block in slots.blocks() {
        let products = B::float_mul(rows.clone(), slots.gather(&tokens, &block));
        let dots = B::float_mul_scalar(B::float_sum_dim(products, DIM), plan.problem.scale.into());
        let dots = match &bias {
            Some(bias) => slots.add_bias(dots, bias, &block),
            None => dots,
        };
        blocks.push(block.fill(dots, plan.hidden));
    }
    let weights = B::float_permute(B::float_cat(blocks, SLOTS), &[0, 1, 3, 4, 2, 5]);
    B::float_cast(B::float_reshape(weights, shape), dtype.into())
}

pub(crate) fn sums<B: Backend>(
    weights: FloatTensor<B>,
    tokens: Tokens<B>,
    plan: &UnfusedPlan,
) -> FloatTensor<B> {
    let (shape, dtype) = (with_last(&weights.shape(), plan.problem.head_dim), weights.dtype());
    let slots = Slots::<B>::new(&weights, plan);
    if slots.is_empty() {
        return B::float_zeros(shape, &slots.device, dtype.into());
    }
    let (weights, tokens) = (slots.weights(weights), slots.tokens(tokens));
    let mut sum: Option<FloatTensor<B>> = None;
    for block in slots.blocks() {
        let weights = slice::<B>(weights.clone(), SLOTS, block.all.clone());
        let products = block.fill(B::float_mul(weights, slots.gather(&tokens, &block)), 0.0);
        let part = B::float_sum_dim(products, SLOTS);
        sum = Some(match sum {
            Some(sum) => B::float_add(sum, part),
            None => part,
        });
    }
    let rows = sum.expect("a window has slots");
    let rows = B::float_mul_scalar(rows, plan.problem.scale.into());
    B::float_cast(B::float_reshape(rows, shape), dtype.into())
}

pub(crate) fn spread<B: Backend>(
    weights: FloatTensor<B>,
    rows: FloatTensor<B>,
    plan: &UnfusedPlan,
) -> Tokens<B> {
    let (problem, dtype) = (&plan.problem, rows.dtype());
    let (shape, more_shape) = (space_shape(&rows.shape(), problem), additional_shape(problem));
    let slots = Slots::<B>::new(&rows, plan);
    let zeros = |shape: Shape, dtype| B::float_zeros(shape, &slots.device, dtype);
    if slots.is_empty() {
        let additional = more_shape.map(|shape| zeros(shape, dtype.into()));
        return Tokens { space: zeros(shape, dtype.into()), additional: additional.into() };
    }
    let (weights, rows) = (slots.weights(weights), slots.rows(rows));
    let flat = |tokens| Shape::new([problem.batch, tokens, problem.heads_kv, problem.head_dim]);
    let mut space = zeros(flat(problem.keys()), slots.dtype);
    let mut additional = more_shape.map(|shape| zeros(shape, slots.dtype));
    for block in slots.blocks() {
        let weights = slice::<B>(weights.clone(), SLOTS, block.all.clone());
        let products = block.fill(B::float_mul(weights, rows.clone()), 0.0);
        let products = B::float_mul_scalar(products, problem.scale.into());
        let part = B::float_sum_dim(products, GROUP);
        match &block.source {
            Source::Window { tokens, .. } => {
                let part = B::float_reshape(part, flat(problem.queries() * block.all.len()));
                let add = IndexingUpdateOp::Add;
                space = B::float_select_assign(space, 1, tokens.clone(), part, add);
            }
            Source::Additional { tokens } => {
                let part = B::float_sum_dim(part, 1);
                let part = B::float_reshape(part, flat(tokens.len()));
                let mut slices = vec![Slice::from(..); 4];
                slices[1] = Slice::from(tokens.clone());
                additional = additional.map(|sum| B::float_slice_assign(sum, &slices, part));
            }
        }
    }
    let finish = |tensor, shape| B::float_cast(B::float_reshape(tensor, shape), dtype.into());
    let additional = additional.zip(additional_shape(problem));
    Tokens {
        space: finish(space, shape),
        additional: additional.map(|(tensor, shape)| finish(tensor, shape)).into(),
    }
}

pub(crate) fn offsets<B: Backend>(
    weights: FloatTensor<B>,
    like: FloatTensor<B>,
    plan: &UnfusedPlan,
) -> FloatTensor<B> {
    let problem = &plan.problem;
    let slots = Slots::<B>::new(&weights, plan);
    let shape = Shape::new([problem.heads, problem.bias_entries()]);
    let mut sum = B::float_zeros(shape, &slots.device, slots.dtype);
    if !slots.is_empty() {
        let weights = slots.weights(weights);
        for block in slots.blocks() {
            if let Source::Window { offsets, .. } = &block.source {
                let weights = slice::<B>(weights.clone(), SLOTS, block.all.clone());
                let part = B::float_sum_dim(block.fill(weights, 0.0), 0);
                let part = B::float_permute(part, &[0, 5, 3, 4, 1, 2]);
                let count = problem.queries() * block.all.len();
                let part = B::float_reshape(part, Shape::new([problem.heads, count]));
                let add = IndexingUpdateOp::Add;
                sum = B::float_select_assign(sum, 1, offsets.clone(), part, add);
            }
        }
    }
    B::float_cast(B::float_reshape(sum, like.shape()), like.dtype().into())
}

/// All slots of all queries.
struct Slots<'a, B: Backend> {
    plan: &'a UnfusedPlan,
    device: Device<B>,
    /// That of sums.
    dtype: FloatDType,
}

/// Tokens with their space flattened, in the type of sums.
struct Flat<B: Backend> {
    space: FloatTensor<B>,
    additional: Option<FloatTensor<B>>,
}

/// Some slots of all queries.
struct Block<B: Backend> {
    /// Among all slots, those of additional tokens behind those of windows.
    all: Range<usize>,
    source: Source<B>,
}

enum Source<B: Backend> {
    /// The token and the offset of each `(query, slot)`, and which slots are hidden.
    Window { tokens: IntTensor<B>, offsets: IntTensor<B>, hidden: Option<BoolTensor<B>> },
    /// A range of the additional tokens.
    Additional { tokens: Range<usize> },
}

impl<B: Backend> Block<B> {
    /// The tensor with a value in the places of hidden slots.
    fn fill(&self, tensor: FloatTensor<B>, value: f32) -> FloatTensor<B> {
        match &self.source {
            Source::Window { hidden: Some(hidden), .. } => {
                let hidden = B::bool_expand(hidden.clone(), tensor.shape());
                B::float_mask_fill(tensor, hidden, value.into())
            }
            _ => tensor,
        }
    }
}

impl<'a, B: Backend> Slots<'a, B> {
    fn new(like: &FloatTensor<B>, plan: &'a UnfusedPlan) -> Self {
        Self { plan, device: like.device(), dtype: accumulator(like.dtype()).into() }
    }

    fn is_empty(&self) -> bool {
        self.plan.problem.batch == 0
    }

    /// `[batch, queries, slots, heads_kv, group, dim]`
    fn shape(&self, queries: usize, slots: usize, group: usize, dim: usize) -> Shape {
        let problem = &self.plan.problem;
        Shape::new([problem.batch, queries, slots, problem.heads_kv, group, dim])
    }

    fn rows(&self, rows: FloatTensor<B>) -> FloatTensor<B> {
        let problem = &self.plan.problem;
        let shape = self.shape(problem.queries(), 1, problem.group_size(), problem.head_dim);
        B::float_cast(B::float_reshape(rows, shape), self.dtype)
    }

    fn weights(&self, weights: FloatTensor<B>) -> FloatTensor<B> {
        let problem = &self.plan.problem;
        let shape = self.shape(problem.queries(), 1, problem.group_size(), self.plan.slots());
        let weights = B::float_cast(B::float_reshape(weights, shape), self.dtype);
        B::float_permute(weights, &[0, 1, 5, 3, 4, 2])
    }

    fn tokens(&self, tokens: Tokens<B>) -> Flat<B> {
        let problem = &self.plan.problem;
        let flat = |tensor: FloatTensor<B>, tokens| {
            let shape = [problem.batch, tokens, problem.heads_kv, problem.head_dim];
            B::float_cast(B::float_reshape(tensor, Shape::new(shape)), self.dtype)
        };
        let additional = Optional::into_option(tokens.additional);
        Flat {
            space: flat(tokens.space, problem.keys()),
            additional: additional.map(|tensor| flat(tensor, problem.additional)),
        }
    }

    fn blocks(&self) -> impl Iterator<Item = Block<B>> + '_ {
        let step = self.plan.slots_at_a_time;
        let ranges = move |total: usize| {
            (0..total).step_by(step).map(move |start| start..(start + step).min(total))
        };
        let (windows, additional) = (self.plan.problem.slots(), self.plan.problem.additional);
        let window =
            ranges(windows).map(|slots| Block { all: slots.clone(), source: self.source(slots) });
        let additional = ranges(additional).map(move |tokens| Block {
            all: windows + tokens.start..windows + tokens.end,
            source: Source::Additional { tokens },
        });
        window.chain(additional)
    }

    /// Where the tokens and the bias of these slots of every window are.
    fn source(&self, slots: Range<usize>) -> Source<B> {
        let problem = &self.plan.problem;
        let count = problem.queries() * slots.len();
        let (mut tokens, mut offsets) = (Vec::with_capacity(count), Vec::with_capacity(count));
        let mut hidden = Vec::with_capacity(count);
        for query in 0..problem.queries() {
            for slot in slots.clone() {
                let place =
                    |slot| problem.slot_key(query, slot).zip(problem.slot_offset(query, slot));
                let found = place(slot);
                // A query sees the key of its first slot.
                let (token, offset) = found.or_else(|| place(0)).unwrap_or((0, 0));
                tokens.push(token as i64);
                offsets.push(offset as i64);
                hidden.push(found.is_none());
            }
        }
        let settings = get_device_settings::<B>(&self.device);
        let int = |values: Vec<i64>| {
            let data = TensorData::new(values, [count]).convert_dtype(settings.int_dtype.into());
            B::int_from_data(data, &self.device)
        };
        let hidden = hidden.contains(&true).then(|| {
            let data = TensorData::new(hidden, [1, problem.queries(), slots.len(), 1, 1, 1]);
            B::bool_from_data(data.convert_dtype(settings.bool_dtype.into()), &self.device)
        });
        Source::Window { tokens: int(tokens), offsets: int(offsets), hidden }
    }

    /// The tokens in the slots of a block.
    fn gather(&self, tokens: &Flat<B>, block: &Block<B>) -> FloatTensor<B> {
        let problem = &self.plan.problem;
        let (gathered, queries) = match &block.source {
            Source::Window { tokens: places, .. } => {
                (B::float_select(tokens.space.clone(), 1, places.clone()), problem.queries())
            }
            Source::Additional { tokens: range } => {
                let tokens = tokens.additional.clone().expect("blocks of tokens that exist");
                (slice::<B>(tokens, 1, range.clone()), 1)
            }
        };
        B::float_reshape(gathered, self.shape(queries, block.all.len(), 1, problem.head_dim))
    }

    /// Adds the bias `[heads, *offsets]` to dot products of the keys in windows.
    fn add_bias(
        &self,
        dots: FloatTensor<B>,
        bias: &FloatTensor<B>,
        block: &Block<B>,
    ) -> FloatTensor<B> {
        let Source::Window { offsets, .. } = &block.source else { return dots };
        let problem = &self.plan.problem;
        let (heads_kv, group) = (problem.heads_kv, problem.group_size());
        let flat = Shape::new([problem.heads, problem.bias_entries()]);
        let bias = B::float_cast(B::float_reshape(bias.clone(), flat), self.dtype);
        let bias = B::float_select(bias, 1, offsets.clone());
        let shape = [1, heads_kv, group, problem.queries(), block.all.len(), 1];
        let bias = B::float_permute(B::float_reshape(bias, Shape::new(shape)), &[0, 3, 4, 1, 2, 5]);
        B::float_add(dots, bias)
    }
}

/// A range of one axis of a tensor.
fn slice<B: Backend>(tensor: FloatTensor<B>, axis: usize, range: Range<usize>) -> FloatTensor<B> {
    let mut slices = vec![Slice::from(..); tensor.shape().num_dims()];
    slices[axis] = Slice::from(range);
    B::float_slice(tensor, &slices)
}
