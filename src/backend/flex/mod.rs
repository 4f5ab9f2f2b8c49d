//! The Flex tier: direct kernels on the raw buffers of Burn's CPU backend.
//!
//! Work is shared out over the queries (forward, `dq`) or the keys (`dk`, `dv`) of all heads.
//! Scores exist only for four neighboring tokens and some hundred partners at a time, so memory
//! stays proportional to the tensors: two inputs are transposed, and f16 and bf16 are widened to
//! f32. Results do not depend on the number of threads.

mod backward;
mod block;
mod forward;
mod operand;
mod simd;
mod sweep;

use std::borrow::Cow;

use burn::backend::flex::{Flex, FlexTensor};
use burn::tensor::{DType, Element, Shape, TensorData, bf16, f16};
use burn_natten_kernels::Problem;
use bytemuck::Pod;
use num_traits::Zero;
use rayon::prelude::*;

use self::backward::{KeyPass, QueryPass};
use self::forward::Forward;
use self::operand::{Grid, Operand, Tokens};
use self::simd::Real;
use super::reference::{self, Saved};
use super::{AdditionalKv, AttentionBackwardOps, AttentionOps, Plan};
use crate::Tier;

impl AttentionOps for Flex {
    fn attention_forward(
        query: FlexTensor,
        key: FlexTensor,
        value: FlexTensor,
        additional: AdditionalKv<Self>,
        plan: Plan,
    ) -> (FlexTensor, FlexTensor) {
        if plan.tier == Tier::Reference || plan.is_empty() {
            return reference::forward::<Self>(query, key, value, additional, &plan);
        }
        let inputs = Inputs { query, key, value, additional };
        match inputs.query.dtype() {
            DType::F64 => forward::<f64>(inputs, &plan),
            DType::F16 => forward::<f16>(inputs, &plan),
            DType::BF16 => forward::<bf16>(inputs, &plan),
            _ => forward::<f32>(inputs, &plan),
        }
    }
}

impl AttentionBackwardOps for Flex {
    fn attention_backward(
        query: FlexTensor,
        key: FlexTensor,
        value: FlexTensor,
        additional: AdditionalKv<Self>,
        out: FlexTensor,
        lse: FlexTensor,
        grad_out: FlexTensor,
        grad_lse: FlexTensor,
        plan: Plan,
    ) -> (FlexTensor, FlexTensor, FlexTensor, AdditionalKv<Self>) {
        if plan.tier == Tier::Reference || plan.is_empty() {
            let saved = Saved { query, key, value, additional, out, lse };
            return reference::backward::<Self>(saved, grad_out, grad_lse, &plan);
        }
        let inputs = Inputs { query, key, value, additional };
        let outputs = Outputs { out, lse, grad_out, grad_lse };
        match inputs.query.dtype() {
            DType::F64 => backward::<f64>(inputs, outputs, &plan),
            DType::F16 => backward::<f16>(inputs, outputs, &plan),
            DType::BF16 => backward::<bf16>(inputs, outputs, &plan),
            _ => backward::<f32>(inputs, outputs, &plan),
        }
    }
}

struct Inputs {
    query: FlexTensor,
    key: FlexTensor,
    value: FlexTensor,
    additional: AdditionalKv<Flex>,
}

struct Outputs {
    out: FlexTensor,
    lse: FlexTensor,
    grad_out: FlexTensor,
    grad_lse: FlexTensor,
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

fn forward<E: Storage>(inputs: Inputs, plan: &Plan) -> (FlexTensor, FlexTensor) {
    let problem = &plan.problem;
    let [query, key, value] = [inputs.query, inputs.key, inputs.value].map(contiguous);
    let additional = additional_tensors(inputs.additional);
    let grids = Grids::new(problem);
    let pass = Forward {
        problem,
        query: Operand::new(rows::<E>(&query), &grids.query, problem.heads, problem.head_dim),
        space: tokens::<E>(&key, &value, &grids.key, problem).for_forward(problem.batch),
        additional: additional.as_ref().map(|[key, value]| {
            tokens::<E>(key, value, &grids.additional, problem).for_forward(problem.batch)
        }),
    };
    let count = problem.batch * problem.queries() * problem.heads;
    let mut out = vec![E::Sum::zero(); count * problem.head_dim_v];
    let mut lse = vec![E::Sum::zero(); count];
    pass.run(&mut out, &mut lse);

    let query_shape = shape(&query);
    let lse_shape = query_shape.as_slice()[..query_shape.num_dims() - 1].to_vec();
    let out_shape = Shape::from([lse_shape.as_slice(), &[problem.head_dim_v]].concat());
    (tensor(E::narrow(out), out_shape), tensor(lse, Shape::from(lse_shape)))
}

fn backward<E: Storage>(
    inputs: Inputs,
    outputs: Outputs,
    plan: &Plan,
) -> (FlexTensor, FlexTensor, FlexTensor, AdditionalKv<Flex>) {
    let problem = &plan.problem;
    let (batch, heads) = (problem.batch, problem.heads);
    let [query, key, value] = [inputs.query, inputs.key, inputs.value].map(contiguous);
    let additional = additional_tensors(inputs.additional);
    let [out, lse, grad_out, grad_lse] =
        [outputs.out, outputs.lse, outputs.grad_out, outputs.grad_lse].map(contiguous);
    let grids = Grids::new(problem);
    let operand = |rows, dim| Operand::new(rows, &grids.query, heads, dim);

    let grad_out = operand(rows::<E>(&grad_out), problem.head_dim_v);
    let delta = delta(&grad_out.rows, &rows::<E>(&out), &rows::<E::Sum>(&grad_lse));
    let delta = operand(Cow::Owned(delta), 1);
    let lse = operand(rows::<E::Sum>(&lse), 1);
    let query_rows = operand(rows::<E>(&query), problem.head_dim);
    let space = tokens::<E>(&key, &value, &grids.key, problem);
    let more =
        additional.as_ref().map(|[key, value]| tokens::<E>(key, value, &grids.additional, problem));

    // Each pass has the panels of what its tokens meet, and no others.
    let (space, more) = (space.for_query_pass(batch), more.map(|more| more.for_query_pass(batch)));
    let mut dq = vec![E::Sum::zero(); query_rows.rows.len()];
    QueryPass {
        problem,
        query: &query_rows,
        grad_out: &grad_out,
        lse: &lse,
        delta: &delta,
        space: &space,
        additional: more.as_ref(),
    }
    .run(&mut dq);
    let dq = tensor(E::narrow(dq), shape(&query));

    let (space, more) = (space.for_key_pass(), more.map(Tokens::for_key_pass));
    let query_panel = query_rows.with_panel(batch).searched();
    let grad_out = grad_out.with_panel(batch).searched();
    let (lse, delta) = (lse.with_panel(batch), delta.with_panel(batch));
    let key_pass = |tokens: &Tokens<'_, E::Sum>, is_additional| {
        let mut dk = vec![E::Sum::zero(); tokens.key.rows.len()];
        let mut dv = vec![E::Sum::zero(); tokens.value.rows.len()];
        KeyPass {
            problem,
            query: &query_panel,
            grad_out: &grad_out,
            lse: &lse,
            delta: &delta,
            tokens,
            is_additional,
        }
        .run(&mut dk, &mut dv);
        (E::narrow(dk), E::narrow(dv))
    };
    let (dk, dv) = key_pass(&space, false);
    let (dk, dv) = (tensor(dk, shape(&key)), tensor(dv, shape(&value)));
    let more = match (&more, &additional) {
        (Some(more), Some([key, value])) => {
            let (dk, dv) = key_pass(more, true);
            AdditionalKv::Tokens { key: tensor(dk, shape(key)), value: tensor(dv, shape(value)) }
        }
        _ => AdditionalKv::None,
    };
    (dq, dk, dv, more)
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

fn contiguous(tensor: FlexTensor) -> FlexTensor {
    tensor.to_contiguous()
}

fn additional_tensors(additional: AdditionalKv<Flex>) -> Option<[FlexTensor; 2]> {
    match additional {
        AdditionalKv::Tokens { key, value } => Some([key, value].map(contiguous)),
        AdditionalKv::None => None,
    }
}
