//! Block-sparse attention on Flex.
//!
//! Keys are packed by their blocks, so that a listed block is one run of memory whatever its shape. The rows that
//! share a list, queries of a block for each head of a group, are the rows of the inner loops: four of them walk over their list
//! (forward, `dq`). `dk` and `dv` go the other way: a block of keys gathers the rows that list it.
//!
//! Memory beyond the results: keys and values once or twice more, the lists, and their inverse.

mod forward;
mod keys;
mod lists;
mod queries;
mod rows;
mod space;
#[cfg(test)]
mod tests;
mod walk;

use std::borrow::Cow;

use burn::backend::flex::{Flex, FlexTensor};
use burn::tensor::{DType, Shape, bf16, f16};
use burn_natten_kernels::{BlockSparse, Operands, Outputs, Saved};
use num_traits::One;

use self::forward::Forward;
use self::keys::KeyPass;
use self::lists::{Inverse, Lists};
use self::queries::QueryPass;
use self::rows::Edges;
use self::space::Space;
use super::memory::zeros;
use super::simd::Real;
use super::{Storage, delta, rows as elements, shape, tensor};
use crate::Tier;
use crate::backend::block_sparse::{
    BlockSparseBackwardOps, BlockSparseOps, BlockSparsePlan, reference,
};
use crate::backend::extension::{saved, with_out};
use crate::backend::{AttentionGradients, AttentionInputs, AttentionResults};

/// Whether tensor operations compute the problem.
fn is_composed(plan: &BlockSparsePlan) -> bool {
    plan.ladder.first() == Tier::Reference || plan.is_empty()
}

impl BlockSparseOps for Flex {
    fn block_sparse_forward(
        inputs: AttentionInputs<Self>,
        lists: FlexTensor,
        plan: BlockSparsePlan,
    ) -> AttentionResults<Self> {
        let operands = inputs.operands();
        if is_composed(&plan) {
            return AttentionResults::new(reference::forward::<Self>(operands, lists, &plan));
        }
        let operands = operands.map(|_, tensor| tensor.to_contiguous());
        let (sparse, lists) = (&plan.sparse, Lists::new(&lists, &plan.sparse));
        AttentionResults::new(match operands.query.dtype() {
            DType::F64 => forward::<f64>(operands, &lists, sparse),
            DType::F16 => forward::<f16>(operands, &lists, sparse),
            DType::BF16 => forward::<bf16>(operands, &lists, sparse),
            _ => forward::<f32>(operands, &lists, sparse),
        })
    }
}

impl BlockSparseBackwardOps for Flex {
    fn block_sparse_backward(
        inputs: AttentionInputs<Self>,
        lists: FlexTensor,
        results: AttentionResults<Self>,
        gradients: AttentionResults<Self>,
        has_out: bool,
        wanted: Operands<bool>,
        plan: BlockSparsePlan,
    ) -> AttentionGradients<Self> {
        let saved = saved(inputs, results, gradients, has_out);
        if is_composed(&plan) {
            let gradients = reference::backward::<Self>(saved, lists, wanted, &plan);
            return AttentionGradients::new(gradients);
        }
        let Saved { operands, outputs, gradients, .. } = with_out::<Self>(saved);
        let contiguous = |tensor: FlexTensor| tensor.to_contiguous();
        let saved = Saved {
            operands: operands.map(|_, tensor| contiguous(tensor)),
            outputs: outputs.map(contiguous),
            gradients: gradients.map(contiguous),
            has_out: true,
        };
        let (sparse, lists) = (&plan.sparse, Lists::new(&lists, &plan.sparse));
        AttentionGradients::new(match saved.operands.query.dtype() {
            DType::F64 => backward::<f64>(saved, &lists, wanted, sparse),
            DType::F16 => backward::<f16>(saved, &lists, wanted, sparse),
            DType::BF16 => backward::<bf16>(saved, &lists, wanted, sparse),
            _ => backward::<f32>(saved, &lists, wanted, sparse),
        })
    }
}

/// The forward pass on contiguous tensors.
fn forward<E: Storage>(
    operands: Operands<FlexTensor>,
    lists: &Lists,
    sparse: &BlockSparse,
) -> Outputs<FlexTensor> {
    let problem = &sparse.problem;
    let Operands { query, key, value, .. } = operands;
    let space = Space::new(sparse);
    let scale = E::Sum::from_f64(problem.scale);
    let count = problem.batch * problem.queries() * problem.heads;
    let mut out = zeros(count * problem.head_dim_v);
    let mut lse = zeros(count);
    Forward {
        space: &space,
        edges: &Edges::new(sparse),
        lists,
        query: &elements::<E>(&query),
        key: &space.panels(&elements::<E>(&key), problem.head_dim, scale),
        value: &space.vectors(&elements::<E>(&value), problem.head_dim_v),
    }
    .run(&mut out, &mut lse);

    let query_shape = shape(&query);
    let lse_shape = query_shape.as_slice()[..query_shape.num_dims() - 1].to_vec();
    let out_shape = Shape::from([lse_shape.as_slice(), &[problem.head_dim_v]].concat());
    Outputs { out: tensor(E::narrow(out), out_shape), lse: tensor(lse, Shape::from(lse_shape)) }
}

/// What both halves of a backward pass read of the queries: rows of all heads.
struct Statistics<'a, A: Clone> {
    query: Cow<'a, [A]>,
    grad_out: Cow<'a, [A]>,
    lse: Cow<'a, [A]>,
    /// `rowsum(dout * out) - dlse`
    delta: Vec<A>,
}

/// The backward pass on contiguous tensors: the halves of which something is wanted.
fn backward<E: Storage>(
    saved: Saved<FlexTensor>,
    lists: &Lists,
    wanted: Operands<bool>,
    sparse: &BlockSparse,
) -> Operands<Option<FlexTensor>> {
    let problem = &sparse.problem;
    let Saved { operands, outputs, gradients, .. } = saved;
    let Operands { query, key, value, .. } = operands;
    let grad_out = elements::<E>(&gradients.out);
    let statistics = Statistics {
        query: elements::<E>(&query),
        delta: delta(&grad_out, &elements::<E>(&outputs.out), &elements::<E::Sum>(&gradients.lse)),
        grad_out,
        lse: elements::<E::Sum>(&outputs.lse),
    };
    let (space, edges) = (&Space::new(sparse), &Edges::new(sparse));
    let scale = E::Sum::from_f64(problem.scale);
    let (keys, values) = (elements::<E>(&key), elements::<E>(&value));
    let key_panels = &space.panels(&keys, problem.head_dim, scale);
    let value_panels = &space.panels(&values, problem.head_dim_v, E::Sum::one());
    let stored = |sums, like| tensor(E::narrow(sums), shape(like));

    let mut results = Operands::new(None, None, None);
    if wanted.query {
        let mut dq = zeros(statistics.query.len());
        QueryPass {
            space,
            edges,
            lists,
            rows: &statistics,
            panels: [key_panels, value_panels],
            key: &space.vectors(&keys, problem.head_dim),
        }
        .run(&mut dq);
        results.query = Some(stored(dq, &query));
    }
    if wanted.key || wanted.value {
        let mut dk = zeros(keys.len());
        let mut dv = zeros(values.len());
        let visitors = &Inverse::new(lists, sparse);
        let panels = [key_panels, value_panels];
        // Sums both at once, of which one may be for nobody.
        KeyPass { space, edges, visitors, rows: &statistics, panels }.run(&mut dk, &mut dv);
        results.key = wanted.key.then(|| stored(dk, &key));
        results.value = wanted.value.then(|| stored(dv, &value));
    }
    results
}
