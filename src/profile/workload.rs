use burn::backend::Dispatch;
use burn::tensor::{DType, Device, Distribution, Tensor, TensorCreationOptions};
use burn_natten_kernels::{Axis, KeyValue, MAX_RANK, Operand, Operands, Problem, Shape};

use crate::backend::{
    AttentionBackwardOps, AttentionGradients, AttentionInputs, AttentionResults, Gradient, Plan,
    accumulator,
};
use crate::{
    AttentionError, AttentionOptions, CausalAlignment, Context, NeighborhoodOptions, Strategy,
    Tier, try_attention, try_na1d, try_na2d, try_na3d,
};

/// What is to be timed: a problem, and how it is computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workload {
    /// Sizes and windows. Spatial axes are padded at the front with [`Axis::UNIT`]; one axis whose
    /// windows are all its keys is [`attention`](crate::attention).
    pub problem: Problem,
    /// Element type of the tensors.
    pub dtype: DType,
    /// Which implementation runs.
    pub strategy: Strategy,
    /// Settings of the calls.
    pub context: Context,
}

/// Query, key and value, with the spatial axes flattened.
#[derive(Clone, Debug)]
pub struct Inputs {
    /// `[batch, queries, heads, head_dim]`
    pub query: Tensor<4>,
    /// `[batch, keys, heads_kv, head_dim]`
    pub key: Tensor<4>,
    /// `[batch, keys, heads_kv, head_dim_v]`
    pub value: Tensor<4>,
    /// Keys `[batch, additional, heads_kv, head_dim]` and values `[.., head_dim_v]`.
    pub additional: Option<(Tensor<4>, Tensor<4>)>,
    /// The relative position bias, `[heads, distances]`.
    pub bias: Option<Tensor<2>>,
}

/// Results of a forward pass, or the gradients that a backward pass begins with.
#[derive(Clone, Debug)]
pub struct Outputs {
    /// `[batch, queries, heads, head_dim_v]`
    pub out: Tensor<4>,
    /// `[batch, queries, heads]`, f32, or f64 for f64 inputs.
    pub logsumexp: Tensor<3>,
}

/// Results of a backward pass: gradients in the shapes of [`Inputs`].
pub type Gradients = Inputs;

impl Workload {
    /// The tier that computes both passes on `device`.
    ///
    /// # Errors
    ///
    /// [`AttentionError`] if the strategy cannot run there.
    pub fn tier(&self, device: &Device) -> Result<Tier, AttentionError> {
        Ok(self.plan(device)?.forward.first())
    }

    fn plan(&self, device: &Device) -> Result<Plan, AttentionError> {
        Plan::new(self.problem, self.dtype, device, self.strategy, self.context)
    }

    /// Standard normal inputs, made on the device. The same seed gives the same values, unless
    /// another thread draws from the device at the same time.
    pub fn inputs(&self, device: &Device, seed: u64) -> Inputs {
        device.seed(seed);
        let normal = |operand: Operand, ()| {
            let Shape { batch, tokens, heads, dim } = operand.shape(&self.problem);
            let tokens = tokens.iter().product();
            normal([batch, tokens, heads, dim], device, self.dtype)
        };
        let Operands { query, key, value, additional, bias } =
            Operands::of(&self.problem).map(normal);
        let additional = additional.map(|KeyValue { key, value }| (key, value));
        // Heads first in place of last: the numbers are random.
        let bias = bias.map(|bias| {
            let [_, distances, heads, _] = bias.dims();
            bias.reshape([heads, distances])
        });
        Inputs { query, key, value, additional, bias }
    }

    /// Standard normal gradients of the outputs, made as [`inputs`](Self::inputs) are.
    pub fn upstream(&self, device: &Device, seed: u64) -> Outputs {
        let Problem { batch, heads, head_dim_v, .. } = self.problem;
        let queries = self.problem.queries();
        device.seed(seed);
        Outputs {
            out: normal([batch, queries, heads, head_dim_v], device, self.dtype),
            logsumexp: normal([batch, queries, heads], device, accumulator(self.dtype)),
        }
    }

    /// The forward pass, through the operator that users call for this problem.
    ///
    /// # Errors
    ///
    /// What the operator returns.
    pub fn forward(&self, inputs: &Inputs) -> Result<Outputs, AttentionError> {
        let [first, second, third] = self.problem.axes;
        let is_dense = third.is_dense() && !self.problem.has_bias;
        match self.problem.rank() {
            1 if is_dense => self.dense(inputs, &third),
            1 => {
                let [query, key, value] = self.spread(inputs, [third]);
                let output = try_na1d(query, key, value, self.options::<1, 2>(inputs, [third]))?;
                Ok(self.flat(output.out, output.logsumexp))
            }
            2 => {
                let [query, key, value] = self.spread(inputs, [second, third]);
                let output =
                    try_na2d(query, key, value, self.options::<2, 3>(inputs, [second, third]))?;
                Ok(self.flat(output.out, output.logsumexp))
            }
            _ => {
                let axes = [first, second, third];
                let [query, key, value] = self.spread(inputs, axes);
                let output = try_na3d(query, key, value, self.options::<3, 4>(inputs, axes))?;
                Ok(self.flat(output.out, output.logsumexp))
            }
        }
    }

    /// The backward pass alone, by the operator that autodiff calls.
    ///
    /// # Errors
    ///
    /// If the strategy cannot run on the device.
    pub fn backward(
        &self,
        inputs: &Inputs,
        outputs: &Outputs,
        upstream: &Outputs,
    ) -> Result<Gradients, AttentionError> {
        let mut problem = self.problem;
        if problem.is_full() && !problem.has_bias {
            // As the operators do.
            let dense = Axis::dense(problem.queries(), problem.keys(), false);
            problem = problem.with_axes([dense]);
        }
        let plan = Self { problem, ..*self }.plan(&inputs.query.device())?;
        // The operators' tensors have the axes of the space.
        Ok(match problem.rank() {
            1 => differentiate::<1, 2, 4, 3>(inputs, outputs, upstream, plan),
            2 => differentiate::<2, 3, 5, 4>(inputs, outputs, upstream, plan),
            _ => differentiate::<3, 4, 6, 5>(inputs, outputs, upstream, plan),
        })
    }

    fn dense(&self, inputs: &Inputs, axis: &Axis) -> Result<Outputs, AttentionError> {
        let alignment =
            if axis.origin == 0 { CausalAlignment::Start } else { CausalAlignment::End };
        let Inputs { query, key, value, additional, bias: _ } = inputs.clone();
        let (more_keys, more_values) = additional.unzip();
        let options = AttentionOptions::new()
            .with_causal(axis.is_causal)
            .with_causal_alignment(alignment)
            .with_scale(self.problem.scale)
            .with_additional_kv(more_keys, more_values)
            .with_strategy(self.strategy)
            .with_context(self.context);
        let output = try_attention(query, key, value, options)?;
        Ok(Outputs { out: output.out, logsumexp: output.logsumexp })
    }

    /// The options of an operator of `N` axes, whose bias has rank `B`.
    fn options<const N: usize, const B: usize>(
        &self,
        inputs: &Inputs,
        axes: [Axis; N],
    ) -> NeighborhoodOptions<N> {
        // Query, key and value are arguments of their own.
        let Inputs { query: _, key: _, value: _, additional, bias } = inputs.clone();
        let (more_keys, more_values) = additional.unzip();
        let bias = bias.map(|bias| spread_bias::<B>(bias, &axes).into_dispatch());
        let options = NeighborhoodOptions::new(axes.map(|axis| axis.kernel_size))
            .with_stride(axes.map(|axis| axis.stride))
            .with_dilation(axes.map(|axis| axis.dilation))
            .with_causal(axes.map(|axis| axis.is_causal))
            .with_scale(self.problem.scale)
            .with_additional_kv(more_keys, more_values)
            .with_strategy(self.strategy)
            .with_context(self.context);
        NeighborhoodOptions { bias, ..options }
    }

    /// Query, key and value with their spatial axes.
    fn spread<const N: usize, const D: usize>(
        &self,
        inputs: &Inputs,
        axes: [Axis; N],
    ) -> [Tensor<D>; 3] {
        let space = axes.map(|axis| axis.queries);
        [&inputs.query, &inputs.key, &inputs.value].map(|tensor| spread(tensor, space))
    }

    fn flat<const D: usize, const L: usize>(&self, out: Tensor<D>, lse: Tensor<L>) -> Outputs {
        let Problem { batch, heads, head_dim_v, .. } = self.problem;
        let queries = self.problem.queries();
        Outputs {
            out: out.reshape([batch, queries, heads, head_dim_v]),
            logsumexp: lse.reshape([batch, queries, heads]),
        }
    }
}

/// A tensor `[batch, tokens, ..]` with the tokens as the axes of a space.
fn spread<const N: usize, const F: usize, const D: usize>(
    tensor: &Tensor<F>,
    space: [usize; N],
) -> Tensor<D> {
    let dims = tensor.dims();
    let shape: Vec<usize> =
        [dims[0]].into_iter().chain(space).chain(dims[2..].iter().copied()).collect();
    tensor.clone().reshape(burn::tensor::Shape::from(shape))
}

/// A bias `[heads, distances]` with the distances along each axis.
fn spread_bias<const B: usize>(bias: Tensor<2>, axes: &[Axis]) -> Tensor<B> {
    let distances = axes.iter().map(|axis| 2 * axis.kernel_size - 1);
    let shape: Vec<usize> = std::iter::once(bias.dims()[0]).chain(distances).collect();
    bias.reshape(burn::tensor::Shape::from(shape))
}

/// The operator that autodiff calls, in a space of `N` axes: a bias in a tensor of rank `B`, vectors in tensors of rank `D`,
/// numbers in tensors of rank `L`.
fn differentiate<const N: usize, const B: usize, const D: usize, const L: usize>(
    inputs: &Inputs,
    outputs: &Outputs,
    upstream: &Outputs,
    plan: Plan,
) -> Gradients {
    let space = |length: fn(&Axis) -> usize| -> [usize; N] {
        std::array::from_fn(|axis| length(&plan.problem.axes[MAX_RANK - N + axis]))
    };
    let (queries, keys) = (space(|axis| axis.queries), space(|axis| axis.keys));
    let vectors = |tensor: &Tensor<4>, space| spread::<N, 4, D>(tensor, space).into_dispatch();
    let numbers = |tensor: &Tensor<3>| spread::<N, 3, L>(tensor, queries).into_dispatch();
    let pair = |of: &Outputs| AttentionResults {
        out: vectors(&of.out, queries),
        lse: numbers(&of.logsumexp),
    };
    let windows = &plan.problem.axes[MAX_RANK - N..];
    let Inputs { query, key, value, additional, bias } = inputs.clone();
    let operands = Operands {
        query: vectors(&query, queries),
        key: vectors(&key, keys),
        value: vectors(&value, keys),
        additional: additional.map(|(key, value)| KeyValue {
            key: key.into_dispatch(),
            value: value.into_dispatch(),
        }),
        bias: bias.map(|bias| spread_bias::<B>(bias, windows).into_dispatch()),
    };
    let all = operands.as_ref().map(|_, _| true);
    let AttentionGradients { query, key, value, additional_key, additional_value, bias } =
        Dispatch::attention_backward(
            AttentionInputs::new(operands),
            pair(outputs),
            pair(upstream),
            true,
            all,
            plan,
        );
    let flat = |gradient: Gradient<Dispatch>, like: &Tensor<4>| {
        let gradient = gradient.tensor().expect("all are wanted");
        Tensor::<D>::from_dispatch(gradient).reshape(like.dims())
    };
    Gradients {
        query: flat(query, &inputs.query),
        key: flat(key, &inputs.key),
        value: flat(value, &inputs.value),
        additional: additional_key
            .tensor()
            .zip(additional_value.tensor())
            .map(|(key, value)| (Tensor::from_dispatch(key), Tensor::from_dispatch(value))),
        bias: bias
            .tensor()
            .zip(inputs.bias.as_ref())
            .map(|(gradient, like)| Tensor::<B>::from_dispatch(gradient).reshape(like.dims())),
    }
}

fn normal<const D: usize>(shape: [usize; D], device: &Device, dtype: DType) -> Tensor<D> {
    let options = TensorCreationOptions::new(device.clone()).with_dtype(dtype);
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), options)
}
