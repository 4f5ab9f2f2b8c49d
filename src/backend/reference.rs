//! The Reference tier: attention composed of a backend's tensor operations.
//!
//! Each query gathers the keys of its own window, so a key outside a window cannot touch a query,
//! whatever it holds. The slots of all windows are numbered alike: slot `s` of a query is the
//! `s`-th visible key, and slots behind the last visible key (of a causal window) repeat the first
//! one and are masked. Slots are gathered in blocks, which bounds the memory by that of the scores.

mod distance;

use burn::backend::tensor::{BoolTensor, Device, FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata, get_device_settings};
use burn::tensor::{FloatDType, IndexingUpdateOp, Shape, Slice, TensorData};
use burn_natten_kernels::{KeyValue, Operands, Outputs, Problem, Saved};

use super::extension::with_out;
use super::{Plan, accumulator};
use crate::MemoryPreference;

/// The slot axis of a block; blocks are `[batch, queries, slots, heads_kv, group, head_dim]`.
const SLOTS: usize = 2;
/// The head_dim axis of a block.
const DIM: usize = 5;

pub(crate) fn forward<B: Backend>(
    operands: Operands<FloatTensor<B>>,
    plan: &Plan,
) -> Outputs<FloatTensor<B>> {
    let query = operands.query.clone();
    if plan.is_empty() {
        return empty_forward::<B>(&query, plan);
    }
    let dtype = query.dtype();
    let rows = query.shape().as_slice()[..query.shape().num_dims() - 1].to_vec();
    let windows = Windows::<B>::new(operands, plan);
    let problem = windows.problem;
    let query = windows.rows(query, problem.head_dim);

    let scores = windows.blocks().map(|block| windows.scores(&query, &block)).collect();
    let scores = B::float_cat(scores, SLOTS);
    let max = B::float_max_dim(scores.clone(), SLOTS);
    let weights = B::float_exp(B::float_sub(scores, max.clone()));
    let sum = B::float_sum_dim(weights.clone(), SLOTS);
    let weights = B::float_div(weights, sum.clone());

    let mut out: Option<FloatTensor<B>> = None;
    let mut start = 0;
    for block in windows.blocks() {
        let end = start + block.slots;
        let weights = slots::<B>(weights.clone(), start, end);
        let part = B::float_sum_dim(B::float_mul(weights, windows.values(&block)), SLOTS);
        out = Some(match out {
            Some(out) => B::float_add(out, part),
            None => part,
        });
        start = end;
    }
    let out = out.expect("a window has at least one slot");
    let lse = B::float_add(B::float_log(sum), max);
    let out_shape = Shape::from([rows.as_slice(), &[problem.head_dim_v]].concat());
    let (out, lse) = windows.without_blind(out, lse);
    Outputs {
        out: B::float_cast(B::float_reshape(out, out_shape), dtype.into()),
        lse: B::float_reshape(lse, Shape::from(rows)),
    }
}

/// Gradients of the operands that are `wanted`.
pub(crate) fn backward<B: Backend>(
    saved: Saved<FloatTensor<B>>,
    wanted: Operands<bool>,
    plan: &Plan,
) -> Operands<Option<FloatTensor<B>>> {
    let Saved { operands, outputs, gradients, .. } = with_out::<B>(saved);
    if plan.is_empty() {
        return operands.as_ref().zip(wanted).map(|_, (tensor, is_wanted)| {
            let zeros = || B::float_zeros(tensor.shape(), &tensor.device(), tensor.dtype().into());
            is_wanted.then(zeros)
        });
    }
    let Outputs { out, lse } = outputs;
    let Outputs { out: grad_out, lse: grad_lse } = gradients;
    let query = operands.query.clone();
    let dtype = query.dtype();
    let shapes = operands.as_ref().map(|_, tensor| tensor.shape());
    let windows = Windows::<B>::new(operands, plan);
    let problem = windows.problem;

    let query = windows.rows(query, problem.head_dim);
    let out = windows.rows(out, problem.head_dim_v);
    let grad_out = windows.rows(grad_out, problem.head_dim_v);
    // A query that sees nothing weighs nothing.
    let lse = windows.without_infinity(windows.rows(lse, 1));
    let grad_lse = windows.rows(grad_lse, 1);
    // delta = rowsum(dout * out) - dlse
    let delta = B::float_sum_dim(B::float_mul(grad_out.clone(), out), DIM);
    let delta = B::float_sub(delta, grad_lse);

    let mut grads = Grads::<B>::zeros(&windows, wanted);
    // Gradients of the scores with a bias, summed over the samples; none if nobody wants that of the bias.
    let mut slopes = vec![];
    let wants_bias = wanted.bias == Some(true);
    for block in windows.blocks() {
        let scores = windows.scores(&query, &block);
        let weights = B::float_exp(B::float_sub(scores, lse.clone()));
        let dp = B::float_mul(grad_out.clone(), windows.values(&block));
        let dp = B::float_sum_dim(dp, DIM);
        let ds = B::float_mul(weights.clone(), B::float_sub(dp, delta.clone()));
        if wants_bias && matches!(block.source, Source::Space { .. }) {
            slopes.push(B::float_sum_dim(ds.clone(), 0));
        }
        let ds = B::float_mul_scalar(ds, problem.scale.into());
        grads.0.query = grads.0.query.map(|sum| {
            let dq = B::float_mul(ds.clone(), windows.keys(&block));
            B::float_add(sum, B::float_sum_dim(dq, SLOTS))
        });
        grads.scatter(
            &windows,
            &block,
            || B::float_mul(ds.clone(), query.clone()),
            || B::float_mul(weights.clone(), grad_out.clone()),
        );
    }
    if wants_bias {
        grads.0.bias = Some(Some(windows.bias_gradient(B::float_cat(slopes, SLOTS))));
    }
    let as_stored = |sum, shape| B::float_cast(B::float_reshape(sum, shape), dtype.into());
    grads.0.zip(shapes).map(|_, (sum, shape)| sum.map(|sum| as_stored(sum, shape)))
}

/// Keys and values with their space flattened, in the accumulator's type.
struct Tokens<B: Backend> {
    /// `[batch, tokens, heads_kv, head_dim]`
    key: FloatTensor<B>,
    /// `[batch, tokens, heads_kv, head_dim_v]`
    value: FloatTensor<B>,
}

struct Windows<B: Backend> {
    problem: Problem,
    space: Tokens<B>,
    additional: Option<Tokens<B>>,
    /// The relative position bias, `[heads, distances]`.
    bias: Option<FloatTensor<B>>,
    device: Device<B>,
    dtype: FloatDType,
    /// Slots that are gathered at a time.
    block: usize,
}

/// Some slots of all queries.
struct Block<B: Backend> {
    slots: usize,
    source: Source<B>,
}

enum Source<B: Backend> {
    /// Slots of the windows: the key of each `(query, slot)`, and which of them are not visible.
    /// With a bias its entry for each, too.
    Space { indices: IntTensor<B>, hidden: Option<BoolTensor<B>>, places: Option<IntTensor<B>> },
    /// A range of the additional tokens.
    Additional { start: usize },
}

impl<B: Backend> Windows<B> {
    fn new(operands: Operands<FloatTensor<B>>, plan: &Plan) -> Self {
        let problem = plan.problem;
        let Operands { query, key, value, additional, bias } = operands;
        let dtype: FloatDType = accumulator(query.dtype()).into();
        let flat = |key: FloatTensor<B>, value: FloatTensor<B>, tokens: usize| {
            let shape = |dim| Shape::new([problem.batch, tokens, problem.heads_kv, dim]);
            Tokens {
                key: B::float_cast(B::float_reshape(key, shape(problem.head_dim)), dtype),
                value: B::float_cast(B::float_reshape(value, shape(problem.head_dim_v)), dtype),
            }
        };
        Self {
            problem,
            space: flat(key, value, problem.keys()),
            additional: additional
                .map(|KeyValue { key, value }| flat(key, value, problem.additional)),
            bias: bias.map(|bias| {
                let entries = problem.bias_extents().iter().product();
                let shape = Shape::new([problem.heads, entries]);
                B::float_cast(B::float_reshape(bias, shape), dtype)
            }),
            device: query.device(),
            dtype,
            block: keys_at_a_time(&problem, plan.context.memory()),
        }
    }

    /// The results `[batch, queries, 1, heads_kv, group, dim]` with zeros and `-inf` for queries that see no key.
    fn without_blind(
        &self,
        out: FloatTensor<B>,
        lse: FloatTensor<B>,
    ) -> (FloatTensor<B>, FloatTensor<B>) {
        let problem = &self.problem;
        let is_blind = |query| {
            let query = problem.query_coordinates(query);
            (0..3).any(|axis| problem.axes[axis].window(query[axis]).1 == 0)
        };
        let blind: Vec<bool> = (0..problem.queries()).map(is_blind).collect();
        if problem.additional > 0 || !blind.contains(&true) {
            return (out, lse);
        }
        let settings = get_device_settings::<B>(&self.device);
        let data = TensorData::new(blind, [1, problem.queries(), 1, 1, 1, 1]);
        let blind = B::bool_from_data(data.convert_dtype(settings.bool_dtype.into()), &self.device);
        let fill = |tensor: FloatTensor<B>, value: f32| {
            let mask = B::bool_expand(blind.clone(), tensor.shape());
            B::float_mask_fill(tensor, mask, value.into())
        };
        (fill(out, 0.0), fill(lse, f32::NEG_INFINITY))
    }

    /// A logsumexp with 0 where it is `-inf`.
    fn without_infinity(&self, lse: FloatTensor<B>) -> FloatTensor<B> {
        let bool_dtype = get_device_settings::<B>(&self.device).bool_dtype;
        let no_key = B::float_equal_elem(lse.clone(), f32::NEG_INFINITY.into(), bool_dtype);
        B::float_mask_fill(lse, no_key, 0f32.into())
    }

    /// A tensor of the queries as `[batch, queries, 1, heads_kv, group, dim]`.
    fn rows(&self, tensor: FloatTensor<B>, dim: usize) -> FloatTensor<B> {
        let problem = &self.problem;
        let (heads_kv, group) = (problem.heads_kv, problem.group_size());
        let shape = [problem.batch, problem.queries(), 1, heads_kv, group, dim];
        B::float_cast(B::float_reshape(tensor, Shape::new(shape)), self.dtype)
    }

    fn blocks(&self) -> impl Iterator<Item = Block<B>> + '_ {
        let ranges = |total: usize| {
            (0..total).step_by(self.block).map(move |start| start..(start + self.block).min(total))
        };
        let space = ranges(keys_per_window(&self.problem)).map(|slots| self.gather(slots));
        let additional = ranges(self.problem.additional).map(|slots| Block {
            slots: slots.len(),
            source: Source::Additional { start: slots.start },
        });
        space.chain(additional)
    }

    /// The keys in these slots of every window.
    fn gather(&self, slots: std::ops::Range<usize>) -> Block<B> {
        let problem = &self.problem;
        let [sz, sy, sx] = problem.axes.map(|axis| axis.kernel_size);
        debug_assert!(slots.end <= sz * sy * sx);
        let lengths = problem.axes.map(|axis| axis.keys);
        let mut indices = Vec::with_capacity(problem.queries() * slots.len());
        let mut hidden = Vec::with_capacity(indices.capacity());
        let mut places = Vec::new();
        for query in 0..problem.queries() {
            let query = problem.query_coordinates(query);
            let windows = [0, 1, 2].map(|axis| problem.axes[axis].window(query[axis]));
            for slot in slots.clone() {
                let slot = [slot / (sy * sx), slot / sx % sy, slot % sx];
                let visible = (0..3).all(|axis| slot[axis] < windows[axis].1);
                let key = [0, 1, 2].map(|axis| {
                    let step = if visible { slot[axis] } else { 0 };
                    windows[axis].0 + step * problem.axes[axis].dilation
                });
                indices.push(((key[0] * lengths[1] + key[1]) * lengths[2] + key[2]) as i64);
                hidden.push(!visible);
                if problem.has_bias {
                    places.push(distance::place(problem, query, key) as i64);
                }
            }
        }
        let settings = get_device_settings::<B>(&self.device);
        let hidden = hidden.contains(&true).then(|| {
            let shape = [1, problem.queries(), slots.len(), 1, 1, 1];
            let data = TensorData::new(hidden, shape).convert_dtype(settings.bool_dtype.into());
            B::bool_from_data(data, &self.device)
        });
        Block {
            slots: slots.len(),
            source: Source::Space {
                indices: self.integers(indices),
                hidden,
                places: problem.has_bias.then(|| self.integers(places)),
            },
        }
    }

    fn integers(&self, values: Vec<i64>) -> IntTensor<B> {
        let dtype = get_device_settings::<B>(&self.device).int_dtype;
        let count = values.len();
        let data = TensorData::new(values, [count]).convert_dtype(dtype.into());
        B::int_from_data(data, &self.device)
    }

    fn keys(&self, block: &Block<B>) -> FloatTensor<B> {
        self.take(block, |tokens| &tokens.key, self.problem.head_dim)
    }

    fn values(&self, block: &Block<B>) -> FloatTensor<B> {
        self.take(block, |tokens| &tokens.value, self.problem.head_dim_v)
    }

    fn take(
        &self,
        block: &Block<B>,
        side: fn(&Tokens<B>) -> &FloatTensor<B>,
        dim: usize,
    ) -> FloatTensor<B> {
        let problem = &self.problem;
        let (tokens, queries) = match &block.source {
            Source::Space { indices, .. } => {
                let tokens = side(&self.space).clone();
                (B::float_select(tokens, 1, indices.clone()), problem.queries())
            }
            Source::Additional { start } => {
                let tokens = self.additional.as_ref().expect("blocks of tokens that exist");
                (range::<B>(side(tokens).clone(), 1, *start, start + block.slots), 1)
            }
        };
        let shape = [problem.batch, queries, block.slots, problem.heads_kv, 1, dim];
        B::float_reshape(tokens, Shape::new(shape))
    }

    /// Scaled scores with their bias, `-inf` where a slot is hidden.
    fn scores(&self, query: &FloatTensor<B>, block: &Block<B>) -> FloatTensor<B> {
        let products = B::float_mul(query.clone(), self.keys(block));
        let scores = B::float_sum_dim(products, DIM);
        let scores = B::float_mul_scalar(scores, self.problem.scale.into());
        let scores = match (&block.source, &self.bias) {
            (Source::Space { places: Some(places), .. }, Some(bias)) => {
                B::float_add(scores, self.bias_of(bias.clone(), places.clone(), block.slots))
            }
            _ => scores,
        };
        match &block.source {
            Source::Space { hidden: Some(hidden), .. } => {
                let hidden = B::bool_expand(hidden.clone(), scores.shape());
                B::float_mask_fill(scores, hidden, f32::NEG_INFINITY.into())
            }
            _ => scores,
        }
    }
}

/// Slots of a window: the keys that a query sees, or would see if no axis were causal.
pub(crate) fn keys_per_window(problem: &Problem) -> usize {
    problem.axes.iter().map(|axis| axis.kernel_size).product()
}

/// Keys of each window that are gathered at a time.
pub(crate) fn keys_at_a_time(problem: &Problem, memory: MemoryPreference) -> usize {
    let keys = match memory {
        MemoryPreference::Strict => 1,
        // As large as the scores, which are kept anyway.
        MemoryPreference::Default => {
            keys_per_window(problem) / problem.head_dim.max(problem.head_dim_v)
        }
        MemoryPreference::Unrestricted => keys_per_window(problem),
    };
    keys.max(1)
}

fn slots<B: Backend>(tensor: FloatTensor<B>, start: usize, end: usize) -> FloatTensor<B> {
    range::<B>(tensor, SLOTS, start, end)
}

fn range<B: Backend>(
    tensor: FloatTensor<B>,
    axis: usize,
    start: usize,
    end: usize,
) -> FloatTensor<B> {
    let mut slices = vec![Slice::from(..); tensor.shape().num_dims()];
    slices[axis] = Slice::from(start..end);
    B::float_slice(tensor, &slices)
}

/// Sums of the gradients that are wanted.
struct Grads<B: Backend>(Operands<Option<FloatTensor<B>>>);

impl<B: Backend> Grads<B> {
    fn zeros(windows: &Windows<B>, wanted: Operands<bool>) -> Self {
        let problem = &windows.problem;
        let (heads_kv, group) = (problem.heads_kv, problem.group_size());
        let query = [problem.batch, problem.queries(), 1, heads_kv, group, problem.head_dim];
        let shapes = Operands {
            additional: windows
                .additional
                .as_ref()
                .map(|Tokens { key, value }| KeyValue { key: key.shape(), value: value.shape() }),
            ..Operands::new(
                Shape::new(query),
                windows.space.key.shape(),
                windows.space.value.shape(),
            )
        };
        let zeros = |shape| B::float_zeros(shape, &windows.device, windows.dtype);
        Self(shapes.zip(wanted).map(|_, (shape, is_wanted)| is_wanted.then(|| zeros(shape))))
    }

    /// Adds gradients `[batch, queries, slots, heads_kv, group, dim]` to the keys in the slots.
    fn scatter(
        &mut self,
        windows: &Windows<B>,
        block: &Block<B>,
        dk: impl FnOnce() -> FloatTensor<B>,
        dv: impl FnOnce() -> FloatTensor<B>,
    ) {
        let problem = &windows.problem;
        let group = |tensor: FloatTensor<B>| B::float_sum_dim(tensor, 4);
        let flat = |tensor: FloatTensor<B>, tokens: usize, dim: usize| {
            let shape = [problem.batch, tokens, problem.heads_kv, dim];
            B::float_reshape(tensor, Shape::new(shape))
        };
        let dims = (problem.head_dim, problem.head_dim_v);
        let Self(Operands { key, value, additional, .. }) = self;
        match &block.source {
            Source::Space { indices, .. } => {
                let tokens = problem.queries() * block.slots;
                let add = |sum: FloatTensor<B>, part: FloatTensor<B>, dim| {
                    let part = flat(group(part), tokens, dim);
                    B::float_select_assign(sum, 1, indices.clone(), part, IndexingUpdateOp::Add)
                };
                *key = key.take().map(|sum| add(sum, dk(), dims.0));
                *value = value.take().map(|sum| add(sum, dv(), dims.1));
            }
            Source::Additional { start } => {
                let Some(KeyValue { key, value }) = additional else { return };
                let slices = [
                    Slice::from(..),
                    Slice::from(*start..start + block.slots),
                    Slice::from(..),
                    Slice::from(..),
                ];
                let put = |sum: FloatTensor<B>, part: FloatTensor<B>, dim| {
                    let part = flat(B::float_sum_dim(group(part), 1), block.slots, dim);
                    B::float_slice_assign(sum, &slices, part)
                };
                *key = key.take().map(|sum| put(sum, dk(), dims.0));
                *value = value.take().map(|sum| put(sum, dv(), dims.1));
            }
        }
    }
}

/// The result of an empty problem: outputs are zero, logsumexps `-inf`.
fn empty_forward<B: Backend>(query: &FloatTensor<B>, plan: &Plan) -> Outputs<FloatTensor<B>> {
    let rows = query.shape().as_slice()[..query.shape().num_dims() - 1].to_vec();
    let (device, dtype) = (query.device(), query.dtype());
    let out = Shape::from([rows.as_slice(), &[plan.problem.head_dim_v]].concat());
    let no_key = f32::NEG_INFINITY.into();
    Outputs {
        out: B::float_zeros(out, &device, dtype.into()),
        lse: B::float_full(Shape::from(rows), no_key, &device, accumulator(dtype).into()),
    }
}
