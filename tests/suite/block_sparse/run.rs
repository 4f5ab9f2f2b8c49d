//! A problem on a device, through the public API.

use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_natten::{
    AttentionError, BlockSparseOptions, BlockSparseOutput, try_block_sparse1d, try_block_sparse2d,
    try_block_sparse3d,
};

use super::oracle::{Axis, Inputs, Problem, Results};
use crate::support::run::{tensor, values};

pub use crate::suite::unfused::run::Setup;

/// The operator of a rank.
pub trait Operator<const D: usize, const L: usize> {
    fn run(
        self,
        query: Tensor<D>,
        key: Tensor<D>,
        value: Tensor<D>,
        blocks: Tensor<4, Int>,
    ) -> Result<BlockSparseOutput<D, L>, AttentionError>;
}

macro_rules! operator {
    ($rank:literal, $d:literal, $l:literal, $name:ident) => {
        impl Operator<$d, $l> for BlockSparseOptions<$rank> {
            fn run(
                self,
                query: Tensor<$d>,
                key: Tensor<$d>,
                value: Tensor<$d>,
                blocks: Tensor<4, Int>,
            ) -> Result<BlockSparseOutput<$d, $l>, AttentionError> {
                $name(query, key, value, blocks, self)
            }
        }
    };
}

operator!(1, 4, 3, try_block_sparse1d);
operator!(2, 5, 4, try_block_sparse2d);
operator!(3, 6, 5, try_block_sparse3d);

pub fn lists(problem: &Problem, inputs: &Inputs, device: &Device) -> Tensor<4, Int> {
    let shape = [problem.batch, problem.query_blocks(), problem.list_heads, problem.entries];
    Tensor::from_data(TensorData::new(inputs.lists.clone(), shape), device)
}

pub fn options<const N: usize>(problem: &Problem) -> BlockSparseOptions<N> {
    let along = |of: fn(&Axis) -> usize| -> [usize; N] {
        problem.axes.iter().map(of).collect::<Vec<_>>().try_into().expect("rank")
    };
    let causal: Vec<bool> = problem.axes.iter().map(|axis| axis.is_causal).collect();
    BlockSparseOptions::new(along(|axis| axis.query_block), along(|axis| axis.key_block))
        .with_causal(<[bool; N]>::try_from(causal).expect("rank"))
        .with_scale(problem.scale)
}

/// A length of an axis.
type Length = fn(&Axis) -> usize;

/// Makes a tensor that lies otherwise of one with the same values.
pub type Lay<'a, const D: usize> = &'a dyn Fn(Tensor<D>) -> Tensor<D>;

/// Forward and backward on tensors that are laid out otherwise.
pub fn run_laid<const N: usize, const D: usize, const L: usize>(
    problem: &Problem,
    inputs: &Inputs,
    setup: &Setup,
    lay: Lay<'_, D>,
) -> Results
where
    BlockSparseOptions<N>: Operator<D, L>,
{
    let shape = |of: Length, heads: usize, dim: usize| -> [usize; D] {
        let space: Vec<usize> = problem.axes.iter().map(of).collect();
        [&[problem.batch], space.as_slice(), &[heads, dim]].concat().try_into().expect("rank")
    };
    let (queries, keys): (Length, Length) = (|axis| axis.queries, |axis| axis.keys);
    let leaf = |values: &[f64], shape: [usize; D]| {
        tensor(values, shape, &setup.device, setup.dtype).require_grad()
    };
    let query = leaf(&inputs.query, shape(queries, problem.heads, problem.dim));
    let key = leaf(&inputs.key, shape(keys, problem.heads_kv, problem.dim));
    let value = leaf(&inputs.value, shape(keys, problem.heads_kv, problem.dim_v));
    let lists = lists(problem, inputs, &setup.device);
    let options = options::<N>(problem).with_strategy(setup.strategy);
    let (q, k, v) = (lay(query.clone()), lay(key.clone()), lay(value.clone()));
    let BlockSparseOutput { out, logsumexp } = options.run(q, k, v, lists).expect("valid");
    let out_shape = shape(queries, problem.heads, problem.dim_v);
    assert_eq!((out.dims(), out.dtype()), (out_shape, setup.dtype));
    assert_eq!(logsumexp.dims()[..], out_shape[..D - 1]);
    // A loss whose gradient comes through the same layout. That of a logsumexp of -inf is ignored.
    let cotangent = tensor(&inputs.grad_out, out.dims(), &setup.device, setup.dtype);
    let grad_lse = tensor(&inputs.grad_lse, logsumexp.dims(), &setup.device, logsumexp.dtype());
    let blind = logsumexp.clone().equal_elem(f32::NEG_INFINITY);
    let lse_loss = (logsumexp.clone().mask_fill(blind, 0.0) * grad_lse).sum();
    let loss = (lay(out.clone()) * lay(cotangent)).sum();
    let tape = (loss.cast(logsumexp.dtype()) + lse_loss).backward();
    let of = |leaf: &Tensor<D>| values(leaf.grad(&tape).expect("tracked"));
    Results {
        grad_query: of(&query),
        grad_key: of(&key),
        grad_value: of(&value),
        out: values(out),
        lse: values(logsumexp),
    }
}

/// The same on tensors as they come.
pub fn run(problem: &Problem, inputs: &Inputs, setup: &Setup) -> Results {
    match problem.axes.len() {
        1 => run_laid::<1, 4, 3>(problem, inputs, setup, &|tensor| tensor),
        2 => run_laid::<2, 5, 4>(problem, inputs, setup, &|tensor| tensor),
        _ => run_laid::<3, 6, 5>(problem, inputs, setup, &|tensor| tensor),
    }
}
