//! Runs a problem of the oracle on a device, through the public API.

use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_natten::{
    AttentionError, AttentionOptions, Context, NeighborhoodOptions, Strategy, try_attention,
    try_na1d, try_na2d, try_na3d,
};
use half::{bf16, f16};

use super::check;
use super::problem::{Axis, Gradients, Inputs, Problem};

/// Which outputs the loss is made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loss {
    /// No backward pass.
    None,
    Out,
    Lse,
    Both,
}

/// How a problem is run.
#[derive(Clone, Debug)]
pub struct Setup {
    pub device: Device,
    pub dtype: DType,
    pub strategy: Strategy,
    pub context: Option<Context>,
    pub loss: Loss,
    /// Whether query, key, value, the additional tokens and the bias require gradients.
    pub tracked: [bool; 5],
}

impl Setup {
    /// f32, `Auto`, forward only.
    pub fn new(device: &Device) -> Self {
        Self {
            device: device.clone(),
            dtype: DType::F32,
            strategy: Strategy::Auto,
            context: None,
            loss: Loss::None,
            tracked: [true; 5],
        }
    }

    pub fn strategy(mut self, strategy: Strategy) -> Self {
        self.strategy = strategy;
        self
    }

    pub fn dtype(mut self, dtype: DType) -> Self {
        self.dtype = dtype;
        self
    }

    /// Also runs the backward pass, on the device with autodiff.
    pub fn loss(mut self, loss: Loss) -> Self {
        self.loss = loss;
        if loss != Loss::None && !self.device.is_autodiff() {
            self.device = self.device.autodiff();
        }
        self
    }

    pub fn context(mut self, context: Context) -> Self {
        self.context = Some(context);
        self
    }

    pub fn tracked(mut self, tracked: [bool; 5]) -> Self {
        self.tracked = tracked;
        self
    }

    fn tensor<const D: usize>(&self, values: &[f64], shape: [usize; D]) -> Tensor<D> {
        tensor(values, shape, &self.device, self.dtype)
    }
}

/// What a run gives; the gradient of an input that is not tracked is empty.
#[derive(Clone, Debug)]
pub struct Results {
    pub out: Vec<f64>,
    pub lse: Vec<f64>,
    pub gradients: Option<Gradients>,
}

pub fn tensor<const D: usize>(
    values: &[f64],
    shape: [usize; D],
    device: &Device,
    dtype: DType,
) -> Tensor<D> {
    let data = TensorData::new(values.to_vec(), shape).convert_dtype(dtype);
    Tensor::from_data(data, (device, dtype))
}

/// Rounds values to a type.
pub fn round(dtype: DType, values: &[f64]) -> Vec<f64> {
    let round = |x: &f64| match dtype {
        DType::F16 => f16::from_f64(*x).to_f64(),
        DType::BF16 => bf16::from_f64(*x).to_f64(),
        other => panic!("{other:?} is not a half type"),
    };
    values.iter().map(round).collect()
}

/// Inputs and cotangents as a half type has them, but for the cotangent of the logsumexp, which is f32.
pub fn rounded(mut inputs: Inputs, dtype: DType) -> Inputs {
    let grad_lse = inputs.grad_lse.clone();
    inputs.all_mut().into_iter().for_each(|values| *values = round(dtype, values));
    Inputs { grad_lse, ..inputs }
}

pub fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().convert::<f64>().try_to_vec().expect("converted to f64")
}

/// Runs `problem`: `Dense` axes through `try_attention`, others through `try_na*d`. Inputs must be
/// values of the dtype, and no operator may write to them.
pub fn run(problem: &Problem, inputs: &Inputs, setup: &Setup) -> Result<Results, AttentionError> {
    match (problem.axes.as_slice(), problem.axes.len()) {
        ([Axis::Dense { queries, keys, is_causal }], _) => {
            let mut options = AttentionOptions::new()
                .with_causal(*is_causal)
                .with_scale(problem.scale)
                .with_strategy(setup.strategy);
            if let Some(context) = setup.context {
                options = options.with_context(context);
            }
            execute::<2, 4, 3>(
                problem,
                inputs,
                setup,
                &[*queries],
                &[*keys],
                |q, k, v, more, other, _| {
                    let output = try_attention(q, k, v, options.with_additional_kv(more, other))?;
                    Ok((output.out, output.logsumexp))
                },
            )
        }
        (_, 1) => neighborhood::<1, 2, 4, 3>(problem, inputs, setup, |q, k, v, options, bias| {
            try_na1d(q, k, v, options.with_bias(bias)).map(|output| (output.out, output.logsumexp))
        }),
        (_, 2) => neighborhood::<2, 3, 5, 4>(problem, inputs, setup, |q, k, v, options, bias| {
            try_na2d(q, k, v, options.with_bias(bias)).map(|output| (output.out, output.logsumexp))
        }),
        (_, 3) => neighborhood::<3, 4, 6, 5>(problem, inputs, setup, |q, k, v, options, bias| {
            try_na3d(q, k, v, options.with_bias(bias)).map(|output| (output.out, output.logsumexp))
        }),
        _ => panic!("no operator for {} axes", problem.axes.len()),
    }
}

fn neighborhood<const N: usize, const B: usize, const D: usize, const L: usize>(
    problem: &Problem,
    inputs: &Inputs,
    setup: &Setup,
    operator: impl FnOnce(
        Tensor<D>,
        Tensor<D>,
        Tensor<D>,
        NeighborhoodOptions<N>,
        Option<Tensor<B>>,
    ) -> Result<(Tensor<D>, Tensor<L>), AttentionError>,
) -> Result<Results, AttentionError> {
    let mut options = options::<N>(problem).with_strategy(setup.strategy);
    if let Some(context) = setup.context {
        options = options.with_context(context);
    }
    let space: Vec<usize> = problem.axes.iter().map(Axis::queries).collect();
    execute::<B, D, L>(problem, inputs, setup, &space, &space, |q, k, v, more, other, bias| {
        operator(q, k, v, options.with_additional_kv(more, other), bias)
    })
}

/// The parameters of `N` windows, without additional tokens.
pub fn options<const N: usize>(problem: &Problem) -> NeighborhoodOptions<N> {
    let (mut kernels, mut strides) = ([0; N], [0; N]);
    let (mut dilations, mut causal) = ([0; N], [false; N]);
    for (index, axis) in problem.axes.iter().enumerate() {
        let Axis::Window { kernel_size, stride, dilation, is_causal, .. } = *axis else {
            panic!("a neighborhood has windows along all axes");
        };
        (kernels[index], strides[index]) = (kernel_size, stride);
        (dilations[index], causal[index]) = (dilation, is_causal);
    }
    NeighborhoodOptions::new(kernels)
        .with_stride(strides)
        .with_dilation(dilations)
        .with_causal(causal)
        .with_scale(problem.scale)
}

/// The shape of a bias, for a tensor of rank `B`.
pub fn bias_shape<const B: usize>(problem: &Problem) -> [usize; B] {
    let along = |axis: &Axis| match axis {
        Axis::Window { kernel_size, .. } => 2 * kernel_size - 1,
        Axis::Dense { .. } => panic!("dense attention has no bias"),
    };
    let mut shape = [problem.heads; B];
    for (length, axis) in shape[1..].iter_mut().zip(&problem.axes) {
        *length = along(axis);
    }
    shape
}

/// Runs an operator on the tensors of a problem, and the loss that `setup` asks for.
pub fn execute<const B: usize, const D: usize, const L: usize>(
    problem: &Problem,
    inputs: &Inputs,
    setup: &Setup,
    queries: &[usize],
    keys: &[usize],
    operator: impl FnOnce(
        Tensor<D>,
        Tensor<D>,
        Tensor<D>,
        Option<Tensor<4>>,
        Option<Tensor<4>>,
        Option<Tensor<B>>,
    ) -> Result<(Tensor<D>, Tensor<L>), AttentionError>,
) -> Result<Results, AttentionError> {
    let Problem { batch, heads, heads_kv, dim, dim_v, additional, .. } = *problem;
    let shape = |space: &[usize], heads: usize, dim: usize| -> [usize; D] {
        [&[batch], space, &[heads, dim]].concat().try_into().expect("rank of the operator")
    };
    let backward = setup.loss != Loss::None;
    let track = |index: usize| backward && setup.tracked[index];
    let [track_q, track_k, track_v, track_more, track_bias] = [0, 1, 2, 3, 4].map(track);
    let leaf = |values: &[f64], shape: [usize; D], track: bool| {
        let tensor = setup.tensor(values, shape);
        if track { tensor.require_grad() } else { tensor }
    };
    let query = leaf(&inputs.query, shape(queries, heads, dim), track_q);
    let key = leaf(&inputs.key, shape(keys, heads_kv, dim), track_k);
    let value = leaf(&inputs.value, shape(keys, heads_kv, dim_v), track_v);
    let more = |values: &[f64], dim: usize| {
        additional.map(|count| {
            let tensor = setup.tensor(values, [batch, count, heads_kv, dim]);
            if track_more { tensor.require_grad() } else { tensor }
        })
    };
    let more_keys = more(&inputs.more_keys, dim);
    let more_values = more(&inputs.more_values, dim_v);
    let bias = problem.bias.then(|| {
        let tensor = setup.tensor(&inputs.bias, bias_shape::<B>(problem));
        if track_bias { tensor.require_grad() } else { tensor }
    });
    let (out, lse) = operator(
        query.clone(),
        key.clone(),
        value.clone(),
        more_keys.clone(),
        more_values.clone(),
        bias.clone(),
    )?;
    assert_eq!(out.dims(), shape(queries, heads, dim_v));
    assert_eq!(out.dtype(), setup.dtype, "out has the dtype of the query");
    let lse_dtype = if setup.dtype == DType::F64 { DType::F64 } else { DType::F32 };
    assert_eq!(lse.dtype(), lse_dtype, "lse is f32, or f64 for f64");
    assert_eq!(lse.dims().as_slice(), &out.dims()[..D - 1]);
    let gradients = backward.then(|| {
        let grad_out = setup.tensor(&inputs.grad_out, out.dims());
        let grad_lse = tensor(&inputs.grad_lse, lse.dims(), &setup.device, lse_dtype);
        let mut terms = vec![];
        if setup.loss != Loss::Lse {
            let term = (out.clone() * grad_out).sum();
            terms.push(term.cast(burn::tensor::FloatDType::from(lse_dtype)));
        }
        if setup.loss != Loss::Out {
            terms.push((lse.clone() * grad_lse).sum());
        }
        let loss = terms.into_iter().reduce(|a, b| a + b).expect("a loss has a term");
        let gradients = loss.backward();
        let more = |tensor: &Option<Tensor<4>>| match tensor {
            Some(tensor) if track_more && tensor.dims()[1] > 0 => {
                values(tensor.grad(&gradients).expect("additional tokens have a gradient"))
            }
            _ => vec![],
        };
        let of = |tensor: &Tensor<D>, track: bool| match (tensor.grad(&gradients), track) {
            (Some(gradient), true) => {
                assert_eq!(gradient.dims(), tensor.dims());
                assert_eq!(gradient.dtype(), setup.dtype);
                values(gradient)
            }
            (None, false) => vec![],
            // Nothing to differentiate: Burn gives such a tensor a gradient or not.
            (None, true) if tensor.shape().num_elements() == 0 => vec![],
            (gradient, _) => panic!("tracked {track}, gradient there {}", gradient.is_some()),
        };
        Gradients {
            query: of(&query, track_q),
            key: of(&key, track_k),
            value: of(&value, track_v),
            more_keys: more(&more_keys),
            more_values: more(&more_values),
            bias: match &bias {
                Some(bias) if track_bias => {
                    let gradient = bias.grad(&gradients).expect("a bias has a gradient");
                    assert_eq!((gradient.dims(), gradient.dtype()), (bias.dims(), setup.dtype));
                    values(gradient)
                }
                _ => vec![],
            },
        }
    });
    for (what, tensor, given) in [
        ("query", query, &inputs.query),
        ("key", key, &inputs.key),
        ("value", value, &inputs.value),
    ] {
        check::identical(&format!("{what} behind the call"), &values(tensor), given);
    }
    Ok(Results { out: values(out), lse: values(lse), gradients })
}
