//! Block-sparse attention composed of a backend's tensor operations.
//!
//! Queries lie by their blocks, and one entry of all lists is gathered at a time: scores and products are
//! `[batch, query_blocks, list_heads, rows, keys, head_dim]`, where the rows are the queries of a block for each of the heads that share
//! a list, and the keys those of a block. What is hidden is replaced, also behind a product, so that nothing of it arrives.

use burn::backend::tensor::{BoolTensor, Device, FloatTensor, IntTensor};
use burn::backend::{Backend, TensorMetadata, get_device_settings};
use burn::tensor::{DType, FloatDType, IndexingUpdateOp, IntDType, Shape, Slice, TensorData};
use burn_natten_kernels::{BlockSparse, MAX_RANK, Operands, Outputs, Saved};

use super::BlockSparsePlan;
use crate::backend::accumulator;
use crate::backend::extension::with_out;

/// The axis of a block's keys.
const KEYS: usize = 4;
/// That of its rows.
const ROWS: usize = 3;
/// That of vectors.
const DIM: usize = 5;

pub(crate) fn forward<B: Backend>(
    operands: Operands<FloatTensor<B>>,
    lists: IntTensor<B>,
    plan: &BlockSparsePlan,
) -> Outputs<FloatTensor<B>> {
    let Operands { query, key, value, .. } = operands;
    let (rows, dtype) =
        (query.shape().as_slice().split_last().map(|(_, rows)| rows.to_vec()), query.dtype());
    let rows = rows.unwrap_or_default();
    let out_shape = Shape::from([rows.as_slice(), &[plan.sparse.problem.head_dim_v]].concat());
    if plan.is_empty() {
        let device = query.device();
        let lse = B::float_full(
            Shape::from(rows),
            f32::NEG_INFINITY.into(),
            &device,
            accumulator(dtype).into(),
        );
        return Outputs { out: B::float_zeros(out_shape, &device, dtype.into()), lse };
    }
    let blocks = Blocks::<B>::new(&query, plan.sparse);
    let problem = blocks.sparse.problem;
    let query = blocks.rows(query, problem.head_dim);
    let (key, value) =
        (blocks.tokens(key, problem.head_dim), blocks.tokens(value, problem.head_dim_v));

    let entries: Vec<_> = (0..blocks.sparse.entries).map(|at| blocks.entry(&lists, at)).collect();
    let scores = entries.iter().map(|entry| blocks.scores(&query, &key, entry)).collect();
    let scores = B::float_cat(scores, KEYS);
    let bool_dtype = get_device_settings::<B>(&blocks.device).bool_dtype;
    let max = B::float_max_dim(scores.clone(), KEYS);
    // Rows that see nothing have no greatest score: any will do, for their sum is zero.
    let blind = B::float_equal_elem(max.clone(), f32::NEG_INFINITY.into(), bool_dtype);
    let max = B::float_mask_fill(max, blind.clone(), 0f32.into());
    let weights = B::float_exp(B::float_sub(scores, max.clone()));
    let sum = B::float_sum_dim(weights.clone(), KEYS);
    let lse = B::float_add(B::float_log(sum.clone()), max);
    let weights = B::float_div(weights, B::float_mask_fill(sum, blind, 1f32.into()));

    let mut out = blocks.zeros(problem.head_dim_v);
    for (at, entry) in entries.iter().enumerate() {
        let weights = range::<B>(weights.clone(), KEYS, at * blocks.volume, blocks.volume);
        let products = B::float_mul(weights, blocks.gather(&value, entry, problem.head_dim_v));
        out = B::float_add(out, B::float_sum_dim(entry.fill(products, 0.0), KEYS));
    }
    Outputs {
        out: B::float_cast(
            B::float_reshape(blocks.back(out, problem.head_dim_v), out_shape),
            dtype.into(),
        ),
        lse: B::float_reshape(blocks.back(lse, 1), Shape::from(rows)),
    }
}

/// Gradients of the operands that are `wanted`.
pub(crate) fn backward<B: Backend>(
    saved: Saved<FloatTensor<B>>,
    lists: IntTensor<B>,
    wanted: Operands<bool>,
    plan: &BlockSparsePlan,
) -> Operands<Option<FloatTensor<B>>> {
    let Saved { operands, outputs, gradients, .. } = with_out::<B>(saved);
    if plan.is_empty() {
        return operands.zip(wanted).map(|_, (tensor, is_wanted)| {
            let zeros = || B::float_zeros(tensor.shape(), &tensor.device(), tensor.dtype().into());
            is_wanted.then(zeros)
        });
    }
    let Operands { query, key, value, .. } = operands;
    let (dtype, shapes) = (query.dtype(), [query.shape(), key.shape(), value.shape()]);
    let blocks = Blocks::<B>::new(&query, plan.sparse);
    let (dim, dim_v) = (blocks.sparse.problem.head_dim, blocks.sparse.problem.head_dim_v);
    let bool_dtype = get_device_settings::<B>(&blocks.device).bool_dtype;

    let query = blocks.rows(query, dim);
    let (key, value) = (blocks.tokens(key, dim), blocks.tokens(value, dim_v));
    let (out, grad_out) = (blocks.rows(outputs.out, dim_v), blocks.rows(gradients.out, dim_v));
    let (lse, grad_lse) = (blocks.rows(outputs.lse, 1), blocks.rows(gradients.lse, 1));
    let blind = B::float_equal_elem(lse.clone(), f32::NEG_INFINITY.into(), bool_dtype);
    let lse = B::float_mask_fill(lse, blind, 0f32.into());
    // delta = rowsum(dout * out) - dlse
    let delta = B::float_sub(B::float_sum_dim(B::float_mul(grad_out.clone(), out), DIM), grad_lse);

    let mut grad_query = wanted.query.then(|| blocks.zeros(dim));
    let mut grad_key = wanted.key.then(|| blocks.token_zeros(dim));
    let mut grad_value = wanted.value.then(|| blocks.token_zeros(dim_v));
    for at in 0..blocks.sparse.entries {
        let entry = blocks.entry(&lists, at);
        let scores = blocks.scores(&query, &key, &entry);
        let weights = entry.fill(B::float_exp(B::float_sub(scores, lse.clone())), 0.0);
        let values = blocks.gather(&value, &entry, dim_v);
        let slopes = B::float_sum_dim(B::float_mul(grad_out.clone(), values), DIM);
        let slopes = B::float_mul(weights.clone(), B::float_sub(slopes, delta.clone()));
        let slopes = B::float_mul_scalar(slopes, blocks.sparse.problem.scale.into());
        let slopes = entry.fill(slopes, 0.0);
        grad_query = grad_query.map(|sum| {
            let part = B::float_mul(slopes.clone(), blocks.gather(&key, &entry, dim));
            B::float_add(sum, B::float_sum_dim(entry.fill(part, 0.0), KEYS))
        });
        grad_key = grad_key.map(|sum| blocks.scatter(sum, &entry, slopes.clone(), &query));
        grad_value = grad_value.map(|sum| blocks.scatter(sum, &entry, weights, &grad_out));
    }
    let [query_shape, key_shape, value_shape] = shapes;
    let stored = |tensor, shape| B::float_cast(B::float_reshape(tensor, shape), dtype.into());
    Operands {
        query: grad_query.map(|sum| stored(blocks.back(sum, dim), query_shape)),
        key: grad_key.map(|sum| stored(sum, key_shape)),
        value: grad_value.map(|sum| stored(sum, value_shape)),
        additional: None,
        bias: None,
    }
}

/// Where everything lies.
struct Blocks<B: Backend> {
    sparse: BlockSparse,
    device: Device<B>,
    /// That of sums.
    dtype: FloatDType,
    ints: IntDType,
    /// Queries of a whole block.
    rows: usize,
    /// Keys of a whole block.
    volume: usize,
    /// Of each place in the blocks of queries its query, some query where there is none.
    queries: IntTensor<B>,
    /// Of each query its place.
    places: IntTensor<B>,
    /// Of each key of each block its token, `[key_blocks, keys]`, some token where there is none.
    keys: IntTensor<B>,
    /// What hides keys. Of where there is no query or no key, one axis tells: the last one, which is always here.
    edges: Vec<Reach<B>>,
    /// Rows of all tensors of keys before those of each list, `[batch, 1, list_heads, 1]`.
    heads: IntTensor<B>,
}

/// How far queries see along an axis.
struct Reach<B: Backend> {
    /// How many keys the query of each place may see, `[1, query_blocks, 1, rows, 1, 1]`; none where there is no query.
    seen: IntTensor<B>,
    /// Where the keys of each block stand, `[key_blocks, keys]`; out of reach where there is no key.
    stands: IntTensor<B>,
}

/// One entry of every list.
struct Entry<B: Backend> {
    /// The row of a tensor of keys that each key is, flat.
    rows: IntTensor<B>,
    /// `[batch, query_blocks, list_heads, rows, keys, 1]`
    hidden: BoolTensor<B>,
}

impl<B: Backend> Entry<B> {
    /// The tensor with a value in the places of what is hidden.
    fn fill(&self, tensor: FloatTensor<B>, value: f32) -> FloatTensor<B> {
        let hidden = B::bool_expand(self.hidden.clone(), tensor.shape());
        B::float_mask_fill(tensor, hidden, value.into())
    }
}

impl<B: Backend> Blocks<B> {
    fn new(query: &FloatTensor<B>, sparse: BlockSparse) -> Self {
        let device = query.device();
        let ints = get_device_settings::<B>(&device).int_dtype;
        let problem = sparse.problem;
        let (rows, volume) =
            (sparse.query_block.iter().product(), sparse.key_block.iter().product());
        let queries: Vec<_> = (0..sparse.query_blocks())
            .flat_map(|block| box_of(sparse.queries_of(block), sparse.query_block))
            .collect();
        let keys: Vec<_> = (0..sparse.key_blocks())
            .flat_map(|block| box_of(sparse.keys_of(block), sparse.key_block))
            .collect();
        let query_lengths = problem.axes.map(|axis| axis.queries);
        let key_lengths = problem.axes.map(|axis| axis.keys);
        let mut places = vec![0; problem.queries()];
        for (place, query) in queries.iter().enumerate() {
            if let Some(query) = query {
                places[flat(*query, query_lengths)] = place as i64;
            }
        }
        let integers = |values: Vec<i64>, shape: &[usize]| {
            let data = TensorData::new(values, shape.to_vec()).convert_dtype(DType::from(ints));
            B::int_from_data(data, &device)
        };
        let token = |places: &[Option<[usize; MAX_RANK]>], lengths| {
            places.iter().map(|at| at.map_or(0, |at| flat(at, lengths)) as i64).collect::<Vec<_>>()
        };
        let edge = |axis: usize| {
            let seen = |query: &Option<[usize; MAX_RANK]>| {
                query.map_or(0, |query| sparse.keys_before(axis, query[axis]) as i64)
            };
            let stand = |key: &Option<[usize; MAX_RANK]>| {
                key.map_or(i64::from(i32::MAX), |key| key[axis] as i64)
            };
            let shape = [1, sparse.query_blocks(), 1, rows, 1, 1];
            Reach {
                seen: integers(queries.iter().map(seen).collect(), &shape),
                stands: integers(keys.iter().map(stand).collect(), &[sparse.key_blocks(), volume]),
            }
        };
        let has_edge = |axis: &usize| problem.axes[*axis].is_causal || *axis == MAX_RANK - 1;
        let per_sample = problem.keys() * problem.heads_kv;
        let heads = (0..problem.batch)
            .flat_map(|sample| (0..sparse.list_heads).map(move |head| (sample, head)))
            .map(|(sample, head)| (sample * per_sample + sparse.kv_head_of_list(head)) as i64)
            .collect();
        Self {
            rows,
            volume,
            queries: integers(token(&queries, query_lengths), &[queries.len()]),
            places: integers(places, &[problem.queries()]),
            edges: (0..MAX_RANK).filter(has_edge).map(edge).collect(),
            keys: integers(token(&keys, key_lengths), &[sparse.key_blocks(), volume]),
            heads: integers(heads, &[problem.batch, 1, sparse.list_heads, 1]),
            dtype: accumulator(query.dtype()).into(),
            ints,
            device: device.clone(),
            sparse,
        }
    }

    /// `[batch, query_blocks, list_heads, rows, keys, dim]`
    fn shape(&self, rows: usize, keys: usize, dim: usize) -> Shape {
        let (batch, heads) = (self.sparse.problem.batch, self.sparse.list_heads);
        Shape::new([batch, self.sparse.query_blocks(), heads, rows, keys, dim])
    }

    /// Rows of a block: queries, for each head that shares its list.
    fn all_rows(&self) -> usize {
        self.rows * self.sparse.heads_of_list()
    }

    fn zeros(&self, dim: usize) -> FloatTensor<B> {
        B::float_zeros(self.shape(self.all_rows(), 1, dim), &self.device, self.dtype)
    }

    fn token_zeros(&self, dim: usize) -> FloatTensor<B> {
        let problem = &self.sparse.problem;
        let rows = problem.batch * problem.keys() * problem.heads_kv;
        B::float_zeros(Shape::new([rows, dim]), &self.device, self.dtype)
    }

    /// A tensor of the queries by their blocks.
    fn rows(&self, tensor: FloatTensor<B>, dim: usize) -> FloatTensor<B> {
        let (problem, blocks) = (&self.sparse.problem, self.sparse.query_blocks());
        let shape = Shape::new([problem.batch, problem.queries(), problem.heads * dim]);
        let tensor = B::float_cast(B::float_reshape(tensor, shape), self.dtype);
        let tensor = B::float_select(tensor, 1, self.queries.clone());
        let (lists, group) = (self.sparse.list_heads, self.sparse.heads_of_list());
        let shape = Shape::new([problem.batch, blocks, self.rows, lists, group, dim]);
        let tensor = B::float_permute(B::float_reshape(tensor, shape), &[0, 1, 3, 2, 4, 5]);
        B::float_reshape(tensor, self.shape(self.all_rows(), 1, dim))
    }

    /// The other way round: `[batch, queries, heads * dim]`.
    fn back(&self, rows: FloatTensor<B>, dim: usize) -> FloatTensor<B> {
        let (problem, blocks) = (&self.sparse.problem, self.sparse.query_blocks());
        let (lists, group) = (self.sparse.list_heads, self.sparse.heads_of_list());
        let shape = Shape::new([problem.batch, blocks, lists, self.rows, group, dim]);
        let tensor = B::float_permute(B::float_reshape(rows, shape), &[0, 1, 3, 2, 4, 5]);
        let shape = Shape::new([problem.batch, blocks * self.rows, problem.heads * dim]);
        B::float_select(B::float_reshape(tensor, shape), 1, self.places.clone())
    }

    /// A tensor of keys, a row for each token and head.
    fn tokens(&self, tensor: FloatTensor<B>, dim: usize) -> FloatTensor<B> {
        let problem = &self.sparse.problem;
        let shape = Shape::new([problem.batch * problem.keys() * problem.heads_kv, dim]);
        B::float_cast(B::float_reshape(tensor, shape), self.dtype)
    }

    /// Entry number `at` of every list.
    fn entry(&self, lists: &IntTensor<B>, at: usize) -> Entry<B> {
        let sparse = &self.sparse;
        let bools = get_device_settings::<B>(&self.device).bool_dtype;
        let mut slices = vec![Slice::from(..); 4];
        slices[3] = Slice::from(at..at + 1);
        let block = B::int_slice(lists.clone(), &slices);
        let count = sparse.key_blocks() as i64;
        let absent = B::bool_or(
            B::int_lower_elem(block.clone(), 0i64.into(), bools),
            B::int_greater_equal_elem(block.clone(), count.into(), bools),
        );
        // Block 0 stands in for one that is absent.
        let block = B::int_cast(B::int_mask_fill(block, absent.clone(), 0i64.into()), self.ints);
        let [batch, blocks, heads] =
            [sparse.problem.batch, sparse.query_blocks(), sparse.list_heads];
        let block = B::int_reshape(block, Shape::new([batch * blocks * heads]));
        let shape = Shape::new([batch, blocks, heads, self.volume]);
        let of = |table: &IntTensor<B>| {
            B::int_reshape(B::int_select(table.clone(), 0, block.clone()), shape.clone())
        };
        let tokens = B::int_mul_scalar(of(&self.keys), (sparse.problem.heads_kv as i64).into());
        let rows = B::int_add(
            tokens,
            B::int_expand(self.heads.clone(), Shape::new([batch, blocks, heads, self.volume])),
        );

        let whole = self.shape(self.all_rows(), self.volume, 1);
        let mut hidden =
            B::bool_expand(B::bool_reshape(absent, self.shape(1, 1, 1)), whole.clone());
        for Reach { seen, stands } in &self.edges {
            let group = sparse.heads_of_list();
            let seen = B::int_expand(seen.clone(), Shape::new([1, blocks, 1, self.rows, group, 1]));
            let seen = B::int_reshape(seen, Shape::new([1, blocks, 1, self.all_rows(), 1, 1]));
            let stand = B::int_reshape(of(stands), self.shape(1, self.volume, 1));
            let [seen, stand] = [seen, stand].map(|tensor| B::int_expand(tensor, whole.clone()));
            hidden = B::bool_or(hidden, B::bool_not(B::int_lower(stand, seen, bools)));
        }
        let rows = B::int_reshape(rows, Shape::new([batch * blocks * heads * self.volume]));
        Entry { rows, hidden }
    }

    /// The vectors of an entry's keys, `[batch, query_blocks, list_heads, 1, keys, dim]`.
    fn gather(&self, tokens: &FloatTensor<B>, entry: &Entry<B>, dim: usize) -> FloatTensor<B> {
        let vectors = B::float_select(tokens.clone(), 0, entry.rows.clone());
        B::float_reshape(vectors, self.shape(1, self.volume, dim))
    }

    /// Scaled scores, `-inf` where a key is hidden.
    fn scores(
        &self,
        query: &FloatTensor<B>,
        key: &FloatTensor<B>,
        entry: &Entry<B>,
    ) -> FloatTensor<B> {
        let keys = self.gather(key, entry, self.sparse.problem.head_dim);
        let scores = B::float_sum_dim(B::float_mul(query.clone(), keys), DIM);
        let scores = B::float_mul_scalar(scores, self.sparse.problem.scale.into());
        entry.fill(scores, f32::NEG_INFINITY)
    }

    /// Adds what each key gets of the rows that see it.
    fn scatter(
        &self,
        sum: FloatTensor<B>,
        entry: &Entry<B>,
        weights: FloatTensor<B>,
        rows: &FloatTensor<B>,
    ) -> FloatTensor<B> {
        let products = entry.fill(B::float_mul(weights, rows.clone()), 0.0);
        let dim = products.shape()[DIM];
        let part = B::float_sum_dim(products, ROWS);
        let count = part.shape().num_elements() / dim;
        let part = B::float_reshape(part, Shape::new([count, dim]));
        B::float_select_assign(sum, 0, entry.rows.clone(), part, IndexingUpdateOp::Add)
    }
}

/// The places of a whole box, those of a short one first along each axis.
fn box_of(
    ranges: [std::ops::Range<usize>; MAX_RANK],
    shape: [usize; MAX_RANK],
) -> Vec<Option<[usize; MAX_RANK]>> {
    let mut places = Vec::with_capacity(shape.iter().product());
    for z in 0..shape[0] {
        for y in 0..shape[1] {
            for x in 0..shape[2] {
                let at = [z, y, x];
                let is_inside = (0..MAX_RANK).all(|axis| at[axis] < ranges[axis].len());
                places.push(is_inside.then(|| [0, 1, 2].map(|axis| ranges[axis].start + at[axis])));
            }
        }
    }
    places
}

fn flat([z, y, x]: [usize; MAX_RANK], [_, height, width]: [usize; MAX_RANK]) -> usize {
    (z * height + y) * width + x
}

fn range<B: Backend>(
    tensor: FloatTensor<B>,
    axis: usize,
    start: usize,
    count: usize,
) -> FloatTensor<B> {
    let mut slices = vec![Slice::from(..); tensor.shape().num_dims()];
    slices[axis] = Slice::from(start..start + count);
    B::float_slice(tensor, &slices)
}
