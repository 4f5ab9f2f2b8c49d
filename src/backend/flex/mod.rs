//! The Flex tier: direct kernels on the raw buffers of Burn's CPU backend.
//!
//! Work is shared out over strips of queries, or over the queries (forward, `dq`) or the keys (`dk`,
//! `dv`) of all heads where windows are too long for strips. Scores exist only for four neighboring
//! tokens and some hundred partners at a time, so memory stays proportional to the tensors: inputs
//! are transposed, some lines or all of them, and f16 and bf16 are widened to f32. Results do not
//! depend on the number of threads.

mod backward;
mod bias;
mod block;
mod block_sparse;
mod forward;
mod joint;
mod memory;
mod operand;
mod ring;
mod select;
mod simd;
mod softmax;
mod strips;
mod sweep;
mod unfused;

use std::borrow::Cow;

use burn::backend::flex::{Flex, FlexTensor};
use burn::tensor::{DType, Element, Shape, TensorData, bf16, f16};
use burn_natten_kernels::{KeyValue, Operands, Outputs, Problem, Saved};
use bytemuck::Pod;
use rayon::prelude::*;

use self::backward::{KeyPass, Queries, QueryPass};
use self::bias::Bias;
use self::forward::Forward;
use self::joint::JointPass;
use self::memory::zeros;
use self::operand::{Grid, Operand, Tokens};
use self::simd::Real;
use self::strips::Strips;
use super::extension::{saved, with_out};
use super::{
    AttentionBackwardOps, AttentionGradients, AttentionInputs, AttentionOps, AttentionResults,
    Plan, packed, reference,
};

impl AttentionOps for Flex {
    fn attention_forward(inputs: AttentionInputs<Self>, plan: Plan) -> AttentionResults<Self> {
        let operands = inputs.operands();
        if let Some(parts) = &plan.parts {
            return AttentionResults::new(packed::forward::<Self>(operands, parts));
        }
        if plan.is_empty() || !plan.forward.has_kernels() {
            return AttentionResults::new(reference::forward::<Self>(operands, &plan));
        }
        let operands = operands.map(|_, tensor| tensor.to_contiguous());
        AttentionResults::new(match operands.query.dtype() {
            DType::F64 => forward::<f64>(operands, &plan),
            DType::F16 => forward::<f16>(operands, &plan),
            DType::BF16 => forward::<bf16>(operands, &plan),
            _ => forward::<f32>(operands, &plan),
        })
    }
}

impl AttentionBackwardOps for Flex {
    fn attention_backward(
        inputs: AttentionInputs<Self>,
        results: AttentionResults<Self>,
        gradients: AttentionResults<Self>,
        has_out: bool,
        wanted: Operands<bool>,
        plan: Plan,
    ) -> AttentionGradients<Self> {
        let saved = saved(inputs, results, gradients, has_out);
        if let Some(parts) = &plan.parts {
            return AttentionGradients::new(packed::backward::<Self>(saved, wanted, parts));
        }
        if plan.is_empty() || !plan.backward.has_kernels() {
            return AttentionGradients::new(reference::backward::<Self>(saved, wanted, &plan));
        }
        let Saved { operands, outputs, gradients, .. } = with_out::<Self>(saved);
        let contiguous = |tensor: FlexTensor| tensor.to_contiguous();
        let saved = Saved {
            operands: operands.map(|_, tensor| contiguous(tensor)),
            outputs: outputs.map(contiguous),
            gradients: gradients.map(contiguous),
            has_out: true,
        };
        AttentionGradients::new(match saved.operands.query.dtype() {
            DType::F64 => backward::<f64>(saved, wanted, &plan),
            DType::F16 => backward::<f16>(saved, wanted, &plan),
            DType::BF16 => backward::<bf16>(saved, wanted, &plan),
            _ => backward::<f32>(saved, wanted, &plan),
        })
    }
}

/// An element type, and the type in which its sums are held.
trait Storage: Element + Pod {
    type Sum: Real + Storage<Sum = Self::Sum>;

    fn widen(values: &[Self]) -> Cow<'_, [Self::Sum]>;
    fn narrow(values: Vec<Self::Sum>) -> Vec<Self>;
}

macro_rules! storage {
    (wide $type:ty) => {
        impl Storage for $type {
            type Sum = $type;

            fn widen(values: &[Self]) -> Cow<'_, [Self]> {
                Cow::Borrowed(values)
            }
            fn narrow(values: Vec<Self>) -> Vec<Self> {
                values
            }
        }
    };
    (narrow $type:ty) => {
        impl Storage for $type {
            type Sum = f32;

            fn widen(values: &[Self]) -> Cow<'_, [f32]> {
                Cow::Owned(values.par_iter().map(|value| value.to_f32()).collect())
            }
            fn narrow(values: Vec<f32>) -> Vec<Self> {
                values.into_par_iter().map(Self::from_f32).collect()
            }
        }
    };
}

storage!(wide f64);
storage!(wide f32);
storage!(narrow f16);
storage!(narrow bf16);

/// The elements of a contiguous tensor, in the type of their sums.
fn rows<E: Storage>(tensor: &FlexTensor) -> Cow<'_, [E::Sum]> {
    let elements = tensor.as_slice::<E>().expect("a contiguous tensor of the dispatched dtype");
    E::widen(elements)
}

fn tensor<E: Element + Pod>(elements: Vec<E>, shape: Shape) -> FlexTensor {
    FlexTensor::from_data(TensorData::new(elements, shape))
}

fn shape(tensor: &FlexTensor) -> Shape {
    tensor.layout().shape().clone()
}

/// The tokens of a problem, as the passes walk over them.
struct Grids {
    query: Grid,
    key: Grid,
    additional: Grid,
}

impl Grids {
    fn new(problem: &Problem) -> Self {
        Self {
            query: Grid::new(problem.axes.map(|axis| axis.queries), problem.axes[2].dilation),
            key: Grid::new(problem.axes.map(|axis| axis.keys), problem.axes[2].dilation),
            additional: Grid::new([1, 1, problem.additional], 1),
        }
    }
}

/// Keys and values of contiguous tensors.
fn tokens<'a, E: Storage>(
    key: &'a FlexTensor,
    value: &'a FlexTensor,
    grid: &'a Grid,
    problem: &Problem,
) -> Tokens<'a, E::Sum> {
    Tokens {
        key: Operand::new(rows::<E>(key), grid, problem.heads_kv, problem.head_dim),
        value: Operand::new(rows::<E>(value), grid, problem.heads_kv, problem.head_dim_v),
    }
}

/// The forward pass on contiguous tensors.
fn forward<E: Storage>(operands: Operands<FlexTensor>, plan: &Plan) -> Outputs<FlexTensor> {
    let problem = &plan.problem;
    let Operands { query, key, value, additional, bias } = operands;
    let grids = Grids::new(problem);
    let strips = Strips::of_lines(problem, &grids.query);
    let space = tokens::<E>(&key, &value, &grids.key, problem);
    let pass = Forward {
        problem,
        query: Operand::new(rows::<E>(&query), &grids.query, problem.heads, problem.head_dim),
        space: match strips {
            Some(_) => space,
            None => space.for_forward(problem.batch),
        },
        additional: additional.as_ref().map(|KeyValue { key, value }| {
            tokens::<E>(key, value, &grids.additional, problem).for_forward(problem.batch)
        }),
        bias: bias.as_ref().map(|bias| Bias::new(rows::<E>(bias), problem)),
        strips,
    };
    let count = problem.batch * problem.queries() * problem.heads;
    let mut out = zeros(count * problem.head_dim_v);
    let mut lse = zeros(count);
    pass.run(&mut out, &mut lse);

    let query_shape = shape(&query);
    let lse_shape = query_shape.as_slice()[..query_shape.num_dims() - 1].to_vec();
    let out_shape = Shape::from([lse_shape.as_slice(), &[problem.head_dim_v]].concat());
    Outputs { out: tensor(E::narrow(out), out_shape), lse: tensor(lse, Shape::from(lse_shape)) }
}

/// The backward pass on contiguous tensors: the passes that sum something that is wanted.
fn backward<E: Storage>(
    saved: Saved<FlexTensor>,
    wanted: Operands<bool>,
    plan: &Plan,
) -> Operands<Option<FlexTensor>> {
    let problem = &plan.problem;
    let (batch, heads) = (problem.batch, problem.heads);
    let Saved { operands, outputs, gradients, .. } = saved;
    let Operands { query, key, value, additional, bias } = operands;
    let Outputs { out, lse } = outputs;
    let Outputs { out: grad_out, lse: grad_lse } = gradients;
    let grids = Grids::new(problem);
    let operand = |rows, dim| Operand::new(rows, &grids.query, heads, dim);

    let grad_out = operand(rows::<E>(&grad_out), problem.head_dim_v);
    let delta = delta(&grad_out.rows, &rows::<E>(&out), &rows::<E::Sum>(&grad_lse));
    let delta = operand(Cow::Owned(delta), 1);
    let lse = operand(rows::<E::Sum>(&lse), 1);
    let query_rows = operand(rows::<E>(&query), problem.head_dim);
    let space = tokens::<E>(&key, &value, &grids.key, problem);
    let more = additional
        .as_ref()
        .map(|KeyValue { key, value }| tokens::<E>(key, value, &grids.additional, problem));

    let position_bias = bias.as_ref().map(|bias| Bias::new(rows::<E>(bias), problem));
    let mut gradients = Operands {
        additional: wanted.additional.map(|more| more.map(|_| None)),
        bias: wanted.bias.map(|_| None),
        ..Operands::new(None, None, None)
    };

    let own = KeyValue { key: wanted.key, value: wanted.value };
    let has_wanted = |wanted: &KeyValue<bool>| wanted.key || wanted.value;
    let stored = |sums: Option<Vec<E>>, like| sums.map(|sums| tensor(sums, shape(like)));

    let sums = |like: &Operand<'_, E::Sum>| zeros::<E::Sum>(like.rows.len());
    let wants_bias = wanted.bias == Some(true);

    // What all queries share, they cannot add to in strips.
    let is_shared = problem.additional > 0 || wants_bias;
    let is_joint = has_wanted(&own) && !is_shared;
    let strips = || Strips::new(problem, &grids.query);
    if let Some(strips) = is_joint.then(strips).flatten() {
        let space = match strips.have_lines() {
            true => space,
            false => space.for_query_pass(batch),
        };
        let (mut dq, mut dk, mut dv) = (sums(&query_rows), sums(&space.key), sums(&space.value));
        let pass = JointPass {
            problem,
            queries: Queries { query: &query_rows, grad_out: &grad_out, lse: &lse, delta: &delta },
            space: &space,
            bias: position_bias.as_ref(),
            strips,
        };
        pass.run(&mut dq, &mut dk, &mut dv);
        gradients.query = stored(wanted.query.then(|| E::narrow(dq)), &query);
        gradients.key = stored(wanted.key.then(|| E::narrow(dk)), &key);
        gradients.value = stored(wanted.value.then(|| E::narrow(dv)), &value);
        return gradients;
    }

    // Each pass has the panels of what its tokens meet, and no others.
    let (mut space, mut more) = match wanted.query || wants_bias {
        false => (space, more),
        true => {
            let space = space.for_query_pass(batch);
            let more = more.map(|more| more.for_query_pass(batch));
            let mut dq = sums(&query_rows);
            let pass = QueryPass {
                problem,
                queries: Queries {
                    query: &query_rows,
                    grad_out: &grad_out,
                    lse: &lse,
                    delta: &delta,
                },
                space: &space,
                additional: more.as_ref(),
                bias: position_bias.as_ref(),
            };
            // Sums both, of which that of the queries may be for nobody.
            match &bias {
                Some(bias) if wants_bias => {
                    let dbias = tensor(E::narrow(pass.run_with_bias(&mut dq)), shape(bias));
                    gradients.bias = Some(Some(dbias));
                }
                _ => pass.run(&mut dq),
            }
            gradients.query = stored(wanted.query.then(|| E::narrow(dq)), &query);
            (space, more)
        }
    };
    if ![Some(own), wanted.additional].iter().flatten().any(has_wanted) {
        return gradients;
    }

    let position_bias = position_bias.map(Bias::reversed);
    if let Some(more) = &mut more {
        more.take_panels();
    }
    let [of_keys, of_values] = space.take_panels();
    let query_panel = query_rows.with_panel_in(batch, of_keys).searched();
    let grad_out = grad_out.with_panel_in(batch, of_values).searched();
    let (lse, delta) = (lse.with_panel(batch), delta.with_panel(batch));
    // Sums both at once, of which one may be for nobody.
    let key_pass = |tokens: &Tokens<'_, E::Sum>, wanted: KeyValue<bool>, is_additional| {
        let (mut dk, mut dv) = (sums(&tokens.key), sums(&tokens.value));
        KeyPass {
            problem,
            queries: Queries { query: &query_panel, grad_out: &grad_out, lse: &lse, delta: &delta },
            tokens,
            is_additional,
            bias: position_bias.as_ref().filter(|_| !is_additional),
        }
        .run(&mut dk, &mut dv);
        [wanted.key.then(|| E::narrow(dk)), wanted.value.then(|| E::narrow(dv))]
    };
    if has_wanted(&own) {
        let [dk, dv] = key_pass(&space, own, false);
        (gradients.key, gradients.value) = (stored(dk, &key), stored(dv, &value));
    }
    if let (Some(tokens), Some(like), Some(wanted)) = (&more, &additional, wanted.additional)
        && has_wanted(&wanted)
    {
        let [dk, dv] = key_pass(tokens, wanted, true);
        let (key, value) = (stored(dk, &like.key), stored(dv, &like.value));
        gradients.additional = Some(KeyValue { key, value });
    }
    gradients
}

/// `rowsum(dout * out) - dlse`
fn delta<A: Real>(grad_out: &[A], out: &[A], grad_lse: &[A]) -> Vec<A> {
    let dim = out.len() / grad_lse.len();
    let rows = grad_out.par_chunks(dim).zip(out.par_chunks(dim));
    rows.zip(grad_lse)
        .map(|((grad_out, out), grad_lse)| {
            let sum: A = grad_out.iter().zip(out).map(|(a, b)| *a * *b).sum();
            sum - *grad_lse
        })
        .collect()
}
