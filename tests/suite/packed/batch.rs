//! A packed batch as a list of problems, and its run through the public API.

use burn::tensor::{DType, Tensor};
use burn_natten::{
    AttentionError, AttentionOptions, AttentionOutput, Lengths, NeighborhoodOptions, Spaces,
    Window, try_attention_packed, try_na1d_packed, try_na2d_packed, try_na3d_packed,
};
use rand::{Rng, SeedableRng, rngs::StdRng};

use crate::suite::unfused::run::Setup;
use crate::support::problem::{Axis, Gradients, Inputs, Problem};
use crate::support::run::{Results, bias_shape, tensor, values};

/// Sequences, each a problem of one sample. They differ in their axes alone, and causality is shared.
#[derive(Clone, Debug)]
pub struct Packed {
    /// What the sequences share; its axes are those of none.
    pub common: Problem,
    pub sequences: Vec<Problem>,
    /// Whether each brings its own window.
    pub has_own_windows: bool,
}

/// Which operator a run is of, with options for all sequences.
enum Call {
    Attention(Lengths, AttentionOptions),
    Line(Spaces<1>, NeighborhoodOptions<1>),
    Plane(Spaces<2>, NeighborhoodOptions<2>),
    Space(Spaces<3>, NeighborhoodOptions<3>),
}

impl Packed {
    /// Random sequences along `rank` axes, or of dense attention where that is 0.
    pub fn random(seed: u64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let rank = rng.random_range(0..=3usize);
        let heads_kv = rng.random_range(1..=2usize);
        let has_bias = rank > 0 && rng.random_bool(0.3);
        let has_own_windows = rank > 0 && !has_bias && rng.random_bool(0.5);
        let is_causal: Vec<bool> = (0..rank.max(1)).map(|_| rng.random_bool(0.3)).collect();
        let longest = [12, 19, 7, 4][rank];
        let mut window = |least: usize| {
            let kernel_size = rng.random_range(least..=longest.min(5));
            let stride = rng.random_range(1..=kernel_size);
            [kernel_size, stride, rng.random_range(1..=2usize.min(longest / kernel_size))]
        };
        let shared: Vec<_> = (0..rank).map(|_| window(2)).collect();
        let mut rng = StdRng::seed_from_u64(!seed);
        let common = Problem {
            batch: 1,
            heads: heads_kv * rng.random_range(1..=3usize),
            heads_kv,
            dim: [4, 8, 12][rng.random_range(0..3usize)],
            dim_v: [4, 8][rng.random_range(0..2usize)],
            additional: [None, Some(0), Some(3)][rng.random_range(0..3usize)],
            scale: [None, Some(0.3)][rng.random_range(0..2usize)],
            bias: has_bias,
            axes: vec![],
        };
        let mut sequences: Vec<Problem> = vec![];
        for _ in 0..rng.random_range(0..7usize) {
            // Now and then a neighbor of the same shape.
            if let Some(last) = sequences.last().filter(|_| rng.random_bool(0.3)) {
                sequences.push(last.clone());
                continue;
            }
            let is_empty = rng.random_bool(0.15);
            let mut axes = vec![];
            if rank == 0 {
                let mut length = || if is_empty { 0 } else { rng.random_range(0..=longest) };
                let (queries, keys) = (length(), length());
                axes.push(Axis::Dense { queries, keys, is_causal: is_causal[0] });
            }
            for axis in 0..rank {
                let [kernel_size, _, dilation] = shared[axis];
                let least = kernel_size * dilation;
                let (mut length, mut window) = (rng.random_range(least..=longest), shared[axis]);
                if has_own_windows && !has_bias {
                    length = rng.random_range(1..=longest);
                    let kernel_size = rng.random_range(1..=length).max(2).min(length);
                    let dilation = rng.random_range(1..=length / kernel_size);
                    window = [kernel_size, rng.random_range(1..=kernel_size), dilation];
                }
                if is_empty && axis == 0 {
                    length = 0;
                }
                let [kernel_size, stride, dilation] = window;
                let is_causal = is_causal[axis];
                axes.push(Axis::Window { length, kernel_size, stride, dilation, is_causal });
            }
            sequences.push(Problem { axes, ..common.clone() });
        }
        let axes = shared
            .iter()
            .zip(&is_causal)
            .map(|(&[kernel_size, stride, dilation], &is_causal)| {
                let length = kernel_size * dilation;
                Axis::Window { length, kernel_size, stride, dilation, is_causal }
            })
            .collect();
        let axes = match rank {
            0 => vec![Axis::Dense { queries: 0, keys: 0, is_causal: is_causal[0] }],
            _ => axes,
        };
        Self { common: Problem { axes, ..common }, sequences, has_own_windows }
    }

    /// Inputs of each sequence. The bias is one for all.
    pub fn inputs(&self, seed: u64) -> Vec<Inputs> {
        let bias = self.common.inputs(seed).bias;
        let of = |(number, problem): (usize, &Problem)| Inputs {
            bias: bias.clone(),
            ..problem.inputs(seed + 1 + number as u64)
        };
        self.sequences.iter().enumerate().map(of).collect()
    }

    /// What each sequence gives alone, by the oracle, one behind the other.
    pub fn expected(&self, inputs: &[Inputs]) -> Results {
        let mut all = Results { out: vec![], lse: vec![], gradients: None };
        let bias = if self.common.bias { self.common.heads * self.common.entries() } else { 0 };
        let mut sums = Gradients {
            query: vec![],
            key: vec![],
            value: vec![],
            more_keys: vec![],
            more_values: vec![],
            bias: vec![0.0; bias],
        };
        for (problem, inputs) in self.sequences.iter().zip(inputs) {
            let (out, lse) = problem.forward(inputs);
            let one = problem.backward(inputs, &out);
            all.out.extend(out);
            all.lse.extend(lse);
            append(&mut sums, one);
        }
        all.gradients = Some(sums);
        all
    }

    fn spaces<const N: usize>(&self) -> Spaces<N> {
        let space = |problem: &Problem| {
            let lengths: Vec<_> = problem.axes.iter().map(Axis::queries).collect();
            <[usize; N]>::try_from(lengths).expect("axes of the rank")
        };
        let spaces = Spaces::new(self.sequences.iter().map(space).collect::<Vec<_>>());
        if !self.has_own_windows {
            return spaces;
        }
        let window = |problem: &Problem| {
            let (kernels, strides, dilations) = windows::<N>(problem);
            Window::new(kernels).with_stride(strides).with_dilation(dilations)
        };
        spaces.with_windows(self.sequences.iter().map(window).collect::<Vec<_>>())
    }

    fn options<const N: usize>(&self) -> NeighborhoodOptions<N> {
        crate::support::run::options(&self.common)
    }

    fn call(&self) -> Call {
        match (self.common.axes.as_slice(), self.common.axes.len()) {
            ([Axis::Dense { is_causal, .. }], _) => {
                let of = |length: fn(&Problem) -> usize| -> Vec<usize> {
                    self.sequences.iter().map(length).collect()
                };
                let lengths = Lengths::new(of(Problem::queries)).with_keys(of(Problem::keys));
                let options = AttentionOptions::new().with_causal(*is_causal);
                Call::Attention(lengths, options.with_scale(self.common.scale))
            }
            (_, 1) => Call::Line(self.spaces(), self.options()),
            (_, 2) => Call::Plane(self.spaces(), self.options()),
            _ => Call::Space(self.spaces(), self.options()),
        }
    }
}

/// Kernel sizes, strides, dilations.
fn windows<const N: usize>(problem: &Problem) -> ([usize; N], [usize; N], [usize; N]) {
    let mut all = ([0; N], [0; N], [0; N]);
    for (index, axis) in problem.axes.iter().enumerate() {
        let Axis::Window { kernel_size, stride, dilation, .. } = *axis else {
            panic!("a space has windows along all axes")
        };
        (all.0[index], all.1[index], all.2[index]) = (kernel_size, stride, dilation);
    }
    all
}

fn append(all: &mut Gradients, one: Gradients) {
    all.query.extend(one.query);
    all.key.extend(one.key);
    all.value.extend(one.value);
    all.more_keys.extend(one.more_keys);
    all.more_values.extend(one.more_values);
    for (sum, term) in all.bias.iter_mut().zip(one.bias) {
        *sum += term;
    }
}

/// What a list of inputs holds of one tensor, one behind the other.
pub fn joined(inputs: &[Inputs], of: impl Fn(&Inputs) -> &Vec<f64>) -> Vec<f64> {
    inputs.iter().flat_map(|inputs| of(inputs).iter().copied()).collect()
}

/// Reads the gradient of a bias, of whatever rank, from the tape.
type OfBias = Box<dyn Fn(&burn::tensor::Gradients) -> Vec<f64>>;

/// Runs a packed batch, forward and backward, on tensors that are laid out otherwise.
pub fn run_laid(
    packed: &Packed,
    inputs: &[Inputs],
    setup: &Setup,
    lay: &dyn Fn(Tensor<4>) -> Tensor<4>,
) -> Result<Results, AttentionError> {
    let Problem { heads, heads_kv, dim, dim_v, additional, .. } = packed.common;
    let tokens = |of: fn(&Problem) -> usize| packed.sequences.iter().map(of).sum::<usize>();
    let (queries, keys) = (tokens(Problem::queries), tokens(Problem::keys));
    let leaf = |of: fn(&Inputs) -> &Vec<f64>, shape: [usize; 4]| {
        tensor::<4>(&joined(inputs, of), shape, &setup.device, setup.dtype).require_grad()
    };
    let query = leaf(|x| &x.query, [1, queries, heads, dim]);
    let key = leaf(|x| &x.key, [1, keys, heads_kv, dim]);
    let value = leaf(|x| &x.value, [1, keys, heads_kv, dim_v]);
    let count = packed.sequences.len();
    let more = |of: fn(&Inputs) -> &Vec<f64>, dim: usize| {
        additional.map(|tokens| leaf(of, [count, tokens, heads_kv, dim]))
    };
    let (more_keys, more_values) = (more(|x| &x.more_keys, dim), more(|x| &x.more_values, dim_v));
    let (q, k, v) = (lay(query.clone()), lay(key.clone()), lay(value.clone()));
    let (strategy, common) = (setup.strategy, &packed.common);
    let shared = inputs.first().map_or_else(|| common.inputs(0).bias, |inputs| inputs.bias.clone());
    let mut of_bias: OfBias = Box::new(|_| vec![]);
    macro_rules! windows {
        ($call:ident, $spaces:expr, $options:expr, $rank:literal) => {{
            let bias = common.bias.then(|| {
                let shape = bias_shape::<$rank>(common);
                tensor::<$rank>(&shared, shape, &setup.device, setup.dtype).require_grad()
            });
            if let Some(bias) = bias.clone() {
                of_bias = Box::new(move |tape| values(bias.grad(tape).expect("tracked")));
            }
            let options = $options
                .with_strategy(strategy)
                .with_additional_kv(more_keys.clone(), more_values.clone())
                .with_bias(bias);
            $call(q, k, v, &$spaces, options)?
        }};
    }
    let AttentionOutput { out, logsumexp } = match packed.call() {
        Call::Attention(lengths, options) => {
            let options = options
                .with_strategy(strategy)
                .with_additional_kv(more_keys.clone(), more_values.clone());
            try_attention_packed(q, k, v, &lengths, options)?
        }
        Call::Line(spaces, options) => windows!(try_na1d_packed, spaces, options, 2),
        Call::Plane(spaces, options) => windows!(try_na2d_packed, spaces, options, 3),
        Call::Space(spaces, options) => windows!(try_na3d_packed, spaces, options, 4),
    };
    let lse_dtype = if setup.dtype == DType::F64 { DType::F64 } else { DType::F32 };
    assert_eq!((out.dims(), out.dtype()), ([1, queries, heads, dim_v], setup.dtype));
    assert_eq!((logsumexp.dims(), logsumexp.dtype()), ([1, queries, heads], lse_dtype));

    let cotangent =
        tensor::<4>(&joined(inputs, |x| &x.grad_out), out.dims(), &setup.device, setup.dtype);
    let of_lse = joined(inputs, |x| &x.grad_lse);
    let of_lse = tensor::<3>(&of_lse, logsumexp.dims(), &setup.device, lse_dtype);
    let term =
        (lay(out.clone()) * lay(cotangent)).sum().cast(burn::tensor::FloatDType::from(lse_dtype));
    // Rows that see no key have a logsumexp of -inf, which no loss may use as a number.
    let finite = logsumexp.clone().mask_fill(logsumexp.clone().equal_elem(f32::NEG_INFINITY), 0.0);
    let tape = (term + (finite * of_lse).sum()).backward();
    let of = |leaf: &Tensor<4>| match leaf.shape().num_elements() {
        0 => vec![],
        _ => values(leaf.grad(&tape).expect("tracked")),
    };
    let of_more = |leaf: &Option<Tensor<4>>| leaf.as_ref().map_or(vec![], &of);
    Ok(Results {
        out: values(out),
        lse: values(logsumexp),
        gradients: Some(Gradients {
            query: of(&query),
            key: of(&key),
            value: of(&value),
            more_keys: of_more(&more_keys),
            more_values: of_more(&more_values),
            bias: of_bias(&tape),
        }),
    })
}

/// The same on contiguous tensors.
pub fn run(packed: &Packed, inputs: &[Inputs], setup: &Setup) -> Results {
    run_laid(packed, inputs, setup, &|tensor| tensor).unwrap_or_else(|error| panic!("{error}"))
}

/// Images whose windows have a stride, a dilation and a causal axis; two of one shape, and one without tokens.
pub fn images(additional: Option<usize>, bias: bool) -> Packed {
    let plane = |space: [usize; 2]| {
        let along = |length, kernel_size, stride, dilation, is_causal| Axis::Window {
            length,
            kernel_size,
            stride,
            dilation,
            is_causal,
        };
        vec![along(space[0], 3, 2, 1, false), along(space[1], 2, 1, 2, true)]
    };
    let common = Problem {
        batch: 1,
        heads: 4,
        heads_kv: 2,
        dim: 8,
        dim_v: 16,
        additional,
        scale: None,
        bias,
        axes: plane([3, 4]),
    };
    let of = |space| Problem { axes: plane(space), ..common.clone() };
    let sequences = [[5, 7], [3, 4], [3, 4], [0, 6], [9, 5]].map(of).to_vec();
    Packed { common, sequences, has_own_windows: false }
}

/// Images with windows of their own: of a single row, of a single token, and windows that cover their image, two of one shape.
pub fn own_windows() -> Packed {
    let plane = |axes: [[usize; 2]; 2]| {
        let along = |[length, kernel_size]: [usize; 2]| Axis::Window {
            length,
            kernel_size,
            stride: 1,
            dilation: 1,
            is_causal: false,
        };
        axes.map(along).to_vec()
    };
    let common = images(None, false).common;
    let common = Problem { axes: plane([[3, 3], [3, 3]]), ..common };
    let of = |axes| Problem { axes: plane(axes), ..common.clone() };
    let sequences = [
        [[1, 1], [9, 3]],
        [[4, 4], [3, 3]],
        [[4, 4], [3, 3]],
        [[1, 1], [1, 1]],
        [[5, 2], [1, 1]],
        [[6, 5], [4, 4]],
    ];
    let sequences = sequences.map(of).to_vec();
    Packed { common, sequences, has_own_windows: true }
}

/// Texts of different lengths of queries and keys, of which some have none.
pub fn texts(is_causal: bool, additional: Option<usize>) -> Packed {
    let line = |[queries, keys]: [usize; 2]| vec![Axis::Dense { queries, keys, is_causal }];
    let common = Problem {
        batch: 1,
        heads: 4,
        heads_kv: 2,
        dim: 8,
        dim_v: 8,
        additional,
        scale: None,
        bias: false,
        axes: line([0, 0]),
    };
    let of = |lengths| Problem { axes: line(lengths), ..common.clone() };
    let sequences = [[5, 9], [0, 3], [7, 0], [1, 1], [12, 12], [12, 12]].map(of).to_vec();
    Packed { common, sequences, has_own_windows: false }
}
