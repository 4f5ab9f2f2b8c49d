//! The kernels beside tensor operations, where problems are larger than those of the operators' tests.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};

use crate::functional::block_sparse::block_sparse;
use crate::{BlockSparseOptions, Strategy};

/// Numbers without a pattern.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % end
    }

    fn values(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|_| self.below(2001) as f64 / 1000.0 - 1.0).collect()
    }
}

/// A problem with a list for each head of the keys.
#[derive(Clone)]
struct Case<const N: usize> {
    batch: usize,
    queries: [usize; N],
    keys: [usize; N],
    /// Heads, those of the keys, head_dim, head_dim_v.
    heads: [usize; 4],
    entries: usize,
    options: BlockSparseOptions<N>,
    dtype: DType,
}

/// Query, key, value, the gradients of the results, and lists.
#[derive(Clone)]
struct Inputs {
    values: [Vec<f64>; 5],
    lists: Vec<i64>,
}

/// out, logsumexp, and the gradients of query, key and value.
type Results = [Vec<f64>; 5];

const NAMES: [&str; 5] = ["out", "logsumexp", "grad_query", "grad_key", "grad_value"];

impl<const N: usize> Case<N> {
    fn new(queries: [usize; N], keys: [usize; N], options: BlockSparseOptions<N>) -> Self {
        let (heads, entries, dtype) = ([4, 2, 16, 8], 3, DType::F64);
        Self { batch: 1, queries, keys, heads, entries, options, dtype }
    }

    fn blocks(lengths: [usize; N], block: [usize; N]) -> usize {
        (0..N).map(|axis| lengths[axis].div_ceil(block[axis])).product()
    }

    fn inputs(&self, seed: u64) -> Inputs {
        let random = &mut Random(seed);
        let [queries, keys] = [self.queries, self.keys].map(|x| x.iter().product::<usize>());
        let [heads, heads_kv, dim, dim_v] = self.heads;
        let rows = self.batch * queries * heads;
        let tokens = self.batch * keys * heads_kv;
        let counts = [rows * dim, tokens * dim, tokens * dim_v, rows * dim_v, rows];
        let blocks = Self::blocks(self.keys, self.options.key_block);
        let lists = Self::blocks(self.queries, self.options.query_block) * heads_kv * self.batch;
        let lists = (0..lists * self.entries).map(|_| random.below(blocks + 2) as i64 - 1);
        let lists = lists.collect();
        Inputs { values: counts.map(|count| random.values(count)), lists }
    }

    fn run<const D: usize, const L: usize>(&self, inputs: &Inputs, strategy: Strategy) -> Results {
        let device = Device::flex().autodiff();
        let [heads, heads_kv, dim, dim_v] = self.heads;
        let shape = |space: [usize; N], ends: &[usize]| -> Vec<usize> {
            [&[self.batch], space.as_slice(), ends].concat()
        };
        let data = |values: &[f64], shape: Vec<usize>| {
            TensorData::new(values.to_vec(), shape).convert_dtype(self.dtype)
        };
        let tensor = |at: usize, space, ends: &[usize]| {
            Tensor::<D>::from_data(
                data(&inputs.values[at], shape(space, ends)),
                (&device, self.dtype),
            )
        };
        let [query, key, value] = [
            tensor(0, self.queries, &[heads, dim]),
            tensor(1, self.keys, &[heads_kv, dim]),
            tensor(2, self.keys, &[heads_kv, dim_v]),
        ]
        .map(Tensor::require_grad);
        let grad_out = tensor(3, self.queries, &[heads, dim_v]);
        let grad_lse = Tensor::<L>::from_data(
            data(&inputs.values[4], shape(self.queries, &[heads])),
            (&device, self.dtype),
        );
        let blocks = Self::blocks(self.queries, self.options.query_block);
        let lists = [self.batch, blocks, heads_kv, self.entries];
        let lists = TensorData::new(inputs.lists.clone(), lists);
        let lists = Tensor::<4, Int>::from_data(lists, &device);
        let options = self.options.clone().with_strategy(strategy);
        let [q, k, v] = [&query, &key, &value].map(Tensor::clone);
        let output = block_sparse::<N, D, L>(q, k, v, lists, options).expect("a valid problem");
        // Blind rows have a logsumexp of -inf, which no loss can take.
        let finite = output.logsumexp.clone().is_finite();
        let lse = output.logsumexp.clone().mask_fill(finite.bool_not(), 0.0);
        let gradients = ((output.out.clone() * grad_out).sum() + (lse * grad_lse).sum()).backward();
        let [dq, dk, dv] = [&query, &key, &value].map(|x| x.grad(&gradients).expect("a gradient"));
        let values =
            |data: TensorData| data.convert_dtype(DType::F64).try_to_vec::<f64>().expect("float64");
        [
            values(output.out.into_data()),
            values(output.logsumexp.into_data()),
            values(dq.into_data()),
            values(dk.into_data()),
            values(dv.into_data()),
        ]
    }
}

fn close(got: &Results, want: &Results, tolerance: f64) {
    for ((name, got), want) in NAMES.into_iter().zip(got).zip(want) {
        assert_eq!(got.len(), want.len(), "{name}");
        let finite = want.iter().filter(|value| value.is_finite());
        let magnitude = finite.fold(1.0f64, |most, value| most.max(value.abs()));
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            let is_close = got == want || (got - want).abs() <= tolerance * magnitude;
            assert!(is_close, "{name}[{i}] is {got}, must be {want}");
        }
    }
}

/// In f64, and in f32 against f64.
fn check<const N: usize, const D: usize, const L: usize>(case: Case<N>, seed: u64) {
    let inputs = case.inputs(seed);
    let want = case.run::<D, L>(&inputs, Strategy::Reference);
    close(&case.run::<D, L>(&inputs, Strategy::Auto), &want, 1e-11);
    let single = Case { dtype: DType::F32, ..case };
    close(&single.run::<D, L>(&inputs, Strategy::Auto), &want, 1e-5);
}

#[test]
fn one_axis() {
    let options = |query, key| BlockSparseOptions::<1>::new(query, key);
    // A row for each head of a group, and lists of a token, as native sparse attention has them.
    check::<1, 4, 3>(Case::new([150], [150], options(1, 64).with_causal(true)), 1);
    // Blocks of several tiles, the last one of a row alone.
    check::<1, 4, 3>(Case::new([70], [331], options(16, 130).with_causal(true)), 2);
    check::<1, 4, 3>(Case::new([331], [70], options(33, 65)), 3);
    // Lists so long that they take several chunks, some of their blocks twice.
    let long = Case { entries: 30, ..Case::new([40], [600], options(7, 40)) };
    check::<1, 4, 3>(long, 4);
    // More queries than keys: the first ones see nothing.
    check::<1, 4, 3>(Case::new([90], [40], options(4, 8).with_causal(true)), 5);
    // Vectors that fill no vector.
    let odd =
        Case { heads: [3, 1, 5, 7], ..Case::new([60], [60], options(5, 6).with_causal(true)) };
    check::<1, 4, 3>(odd, 6);
    let samples = Case { batch: 3, heads: [6, 3, 8, 8], ..Case::new([33], [34], options(3, 9)) };
    check::<1, 4, 3>(samples, 7);
}

#[test]
fn several_axes() {
    let options = BlockSparseOptions::<2>::new([3, 5], [9, 11]).with_causal([true, false]);
    check::<2, 5, 4>(Case::new([14, 17], [25, 23], options), 1);
    let options = BlockSparseOptions::<2>::new([8, 8], [4, 4]).with_causal([false, true]);
    check::<2, 5, 4>(Case { entries: 9, ..Case::new([20, 20], [20, 20], options) }, 2);
    let options = BlockSparseOptions::<3>::new([2, 3, 4], [4, 5, 6]).with_causal([true; 3]);
    check::<3, 6, 5>(Case { entries: 5, ..Case::new([5, 7, 9], [9, 8, 7], options) }, 3);
    let options = BlockSparseOptions::<3>::new([1, 1, 2], [100, 3, 3]).with_causal([true; 3]);
    check::<3, 6, 5>(Case { entries: 4, ..Case::new([4, 5, 6], [8, 5, 6], options) }, 4);
}

#[test]
fn a_block_that_everybody_lists_is_summed_in_parts() {
    let options = BlockSparseOptions::<1>::new(1, 8).with_causal(true);
    let case = Case { heads: [4, 1, 4, 4], entries: 1, ..Case::new([4500], [4500], options) };
    let mut inputs = case.inputs(9);
    inputs.lists.fill(0);
    let want = case.run::<4, 3>(&inputs, Strategy::Reference);
    close(&case.run::<4, 3>(&inputs, Strategy::Auto), &want, 1e-11);
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let options = BlockSparseOptions::<1>::new(1, 16).with_causal(true);
    let case = Case { entries: 4, dtype: DType::F32, ..Case::new([5000], [5000], options) };
    let mut inputs = case.inputs(11);
    // Everybody lists the first block too.
    inputs.lists.iter_mut().step_by(4).for_each(|block| *block = 0);
    let with = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
        let results = pool.install(|| case.run::<4, 3>(&inputs, Strategy::Auto));
        results.map(|values| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>())
    };
    let (one, three) = (with(1), with(3));
    for (name, (one, three)) in NAMES.into_iter().zip(one.into_iter().zip(three)) {
        assert!(one == three, "{name}");
    }
}

/// What is not finite in tokens that a row does not see changes none of its bits.
#[test]
fn nothing_of_hidden_or_unlisted_tokens_arrives() {
    let options = BlockSparseOptions::<1>::new(2, 16).with_causal(true);
    let case = Case { entries: 2, dtype: DType::F32, ..Case::new([64], [64], options) };
    let [heads, heads_kv, dim, dim_v] = case.heads;
    let mut inputs = case.inputs(13);
    // Block 1 is in no list. Token 40 is in a block that all rows list, and seen by those behind it only.
    for list in inputs.lists.chunks_mut(2) {
        list.copy_from_slice(&[2, 0]);
    }
    let clean = case.run::<4, 3>(&inputs, Strategy::Auto);
    let mut poisoned = inputs.clone();
    for token in (16..32).chain([40]) {
        for (tensor, width, value) in
            [(1, heads_kv * dim, f64::NAN), (2, heads_kv * dim_v, f64::INFINITY)]
        {
            poisoned.values[tensor][token * width..][..width].fill(value);
        }
    }
    let got = case.run::<4, 3>(&poisoned, Strategy::Auto);
    let same = |at: usize, values: std::ops::Range<usize>| {
        assert_eq!(got[at][values.clone()], clean[at][values], "{}", NAMES[at]);
    };
    same(0, 0..40 * heads * dim_v);
    same(1, 0..40 * heads);
    same(2, 0..40 * heads * dim);
    assert!(got[0][40 * heads * dim_v..].iter().all(|value| value.is_nan()));
    for at in [3, 4] {
        let width = clean[at].len() / 64;
        assert!(got[at][16 * width..32 * width].iter().all(|value| *value == 0.0));
    }

    // A query that is not finite reaches the keys that it sees, and no others.
    let mut poisoned = inputs;
    let (query, width) = (41, heads * dim);
    poisoned.values[0][query * width..][..width].fill(f64::NAN);
    let got = case.run::<4, 3>(&poisoned, Strategy::Auto);
    for at in [3, 4] {
        let width = clean[at].len() / 64;
        for token in 0..64 {
            let range = token * width..(token + 1) * width;
            let is_seen = token < 16 || (32..=query).contains(&token);
            if is_seen {
                assert!(got[at][range].iter().all(|value| value.is_nan()), "{token}");
            } else {
                assert_eq!(got[at][range.clone()], clean[at][range], "{token}");
            }
        }
    }
}
