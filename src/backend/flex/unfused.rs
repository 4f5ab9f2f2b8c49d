//! The products of the unfused operators, each shared out over what it gives: queries, or tokens.
//!
//! Memory beyond the results is that of f16 and bf16 widened to f32. Results do not depend on the number of threads.

use burn::backend::flex::{Flex, FlexTensor};
use burn::tensor::{DType, bf16, f16};
use burn_natten_kernels::Problem;
use num_traits::{One, Zero};
use rayon::prelude::*;

use super::memory::zeros;
use super::simd::Real;
use super::{Storage, rows as elements, shape, tensor};
use crate::Tier;
use crate::backend::unfused::{
    Optional, Tokens, UnfusedGradientOps, UnfusedOps, UnfusedPlan, additional_shape, reference,
    space_shape, with_last,
};

/// Whether tensor operations compute a product.
fn is_composed(plan: &UnfusedPlan) -> bool {
    plan.tier == Tier::Reference || plan.problem.batch == 0
}

/// A call with the element type of a tensor.
macro_rules! for_dtype {
    ($tensor:expr, $function:ident($($argument:expr),*)) => {
        match $tensor.dtype() {
            DType::F64 => $function::<f64>($($argument),*),
            DType::F16 => $function::<f16>($($argument),*),
            DType::BF16 => $function::<bf16>($($argument),*),
            _ => $function::<f32>($($argument),*),
        }
    };
}

impl UnfusedOps for Flex {
    fn unfused_dots(
        rows: FlexTensor,
        tokens: Tokens<Self>,
        bias: Optional<Self>,
        plan: UnfusedPlan,
    ) -> FlexTensor {
        let bias = bias.into_option();
        match is_composed(&plan) {
            true => reference::dots::<Self>(rows, tokens, bias, &plan),
            false => for_dtype!(rows, dots(&rows, tokens, bias, &plan)),
        }
    }

    fn unfused_sums(weights: FlexTensor, tokens: Tokens<Self>, plan: UnfusedPlan) -> FlexTensor {
        match is_composed(&plan) {
            true => reference::sums::<Self>(weights, tokens, &plan),
            false => for_dtype!(weights, sums(&weights, tokens, &plan)),
        }
    }
}

impl UnfusedGradientOps for Flex {
    fn unfused_spread(weights: FlexTensor, rows: FlexTensor, plan: UnfusedPlan) -> Tokens<Self> {
        match is_composed(&plan) {
            true => reference::spread::<Self>(weights, rows, &plan),
            false => for_dtype!(rows, spread(&weights, &rows, &plan)),
        }
    }

    fn unfused_offsets(weights: FlexTensor, like: FlexTensor, plan: UnfusedPlan) -> FlexTensor {
        match is_composed(&plan) {
            true => reference::offsets::<Self>(weights, like, &plan),
            false => for_dtype!(weights, offsets(&weights, &like, &plan)),
        }
    }
}

/// The part of a window that lies along the fastest axis: neighboring slots, whose keys are a dilation apart.
struct Run {
    slot: usize,
    key: usize,
    count: usize,
}

/// The runs of a query's window, in the order of slots.
fn runs(problem: &Problem, query: usize) -> impl Iterator<Item = Run> {
    let at = problem.query_coordinates(query);
    let [z, y, x] = std::array::from_fn(|axis| problem.axes[axis].window(at[axis]));
    let [along_z, along_y, _] = problem.axes.map(|axis| axis.dilation);
    let [_, lines, length] = problem.axes.map(|axis| axis.keys);
    let [_, slots_y, slots_x] = problem.slot_axes();
    (0..z.1 * y.1).map(move |line| {
        let (i, j) = (line / y.1, line % y.1);
        let key = ((z.0 + i * along_z) * lines + y.0 + j * along_y) * length + x.0;
        Run { slot: (i * slots_y + j) * slots_x, key, count: x.1 }
    })
}

/// Tokens of one kind, as vectors.
struct Vectors<'a, A> {
    all: &'a [A],
    /// Tokens of a sample.
    tokens: usize,
    heads: usize,
    dim: usize,
}

impl<A> Vectors<'_, A> {
    fn at(&self, sample: usize, token: usize, head: usize) -> &[A] {
        let vector = (sample * self.tokens + token) * self.heads + head;
        &self.all[vector * self.dim..][..self.dim]
    }
}

/// Every slot of a query that is not hidden, with its token's vector.
fn for_each_slot<A>(
    plan: &UnfusedPlan,
    space: &Vectors<'_, A>,
    additional: Option<&Vectors<'_, A>>,
    [sample, query, head]: [usize; 3],
    mut visit: impl FnMut(usize, &[A]),
) {
    let problem = &plan.problem;
    let (head, step) = (head / problem.group_size(), problem.axes[2].dilation);
    for Run { slot, key, count } in runs(problem, query) {
        for i in 0..count {
            visit(slot + i, space.at(sample, key + i * step, head));
        }
    }
    if let Some(tokens) = additional {
        for token in 0..problem.additional {
            visit(problem.slots() + token, tokens.at(sample, token, head));
        }
    }
}

fn vectors<'a, A>(all: &'a [A], tokens: usize, problem: &Problem) -> Vectors<'a, A> {
    Vectors { all, tokens, heads: problem.heads_kv, dim: problem.head_dim }
}

fn dots<E: Storage>(
    rows: &FlexTensor,
    tokens: Tokens<Flex>,
    bias: Option<FlexTensor>,
    plan: &UnfusedPlan,
) -> FlexTensor {
    let (problem, slots) = (&plan.problem, plan.slots());
    let contiguous =
        [Some(rows.clone()), Some(tokens.space), tokens.additional.into_option(), bias]
            .map(|tensor| tensor.map(|tensor| tensor.to_contiguous()));
    let [row_elements, space, more, bias] =
        contiguous.each_ref().map(|tensor| tensor.as_ref().map(elements::<E>).unwrap_or_default());
    let space = vectors(&space, problem.keys(), problem);
    let more = (problem.additional > 0).then(|| vectors(&more, problem.additional, problem));
    let scale = E::Sum::from_f64(problem.scale);
    let extent = problem.bias_entries();
    let hidden = E::Sum::from_f64(f64::from(plan.hidden));
    let mut weights = vec![hidden; problem.batch * problem.queries() * problem.heads * slots];
    let of_query = problem.heads * slots;
    weights.par_chunks_mut(of_query).enumerate().for_each(|(index, weights)| {
        let (sample, query) = (index / problem.queries(), index % problem.queries());
        for (head, weights) in weights.chunks_mut(slots).enumerate() {
            let row = (index * problem.heads + head) * problem.head_dim;
            let row = &row_elements[row..][..problem.head_dim];
            for_each_slot(plan, &space, more.as_ref(), [sample, query, head], |slot, token| {
                weights[slot] = scale * dot(row, token);
            });
            if !bias.is_empty() {
                let bias = &bias[head * extent..][..extent];
                for (slot, offset) in slot_offsets(problem, query) {
                    weights[slot] = weights[slot] + bias[offset];
                }
            }
        }
    });
    tensor(E::narrow(weights), with_last(&shape(rows), slots))
}

/// The offset of each slot of a window that is not hidden.
fn slot_offsets(problem: &Problem, query: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
    runs(problem, query).flat_map(move |Run { slot, count, .. }| {
        // Keys that are neighbors in a window have neighboring offsets.
        let first = problem.slot_offset(query, slot).unwrap_or_default();
        (0..count).map(move |i| (slot + i, first + i))
    })
}

fn sums<E: Storage>(weights: &FlexTensor, tokens: Tokens<Flex>, plan: &UnfusedPlan) -> FlexTensor {
    let (problem, slots, dim) = (&plan.problem, plan.slots(), plan.problem.head_dim);
    let contiguous = [Some(weights.clone()), Some(tokens.space), tokens.additional.into_option()]
        .map(|tensor| tensor.map(|tensor| tensor.to_contiguous()));
    let [factors, space, more] =
        contiguous.each_ref().map(|tensor| tensor.as_ref().map(elements::<E>).unwrap_or_default());
    let space = vectors(&space, problem.keys(), problem);
    let more = (problem.additional > 0).then(|| vectors(&more, problem.additional, problem));
    let scale = E::Sum::from_f64(problem.scale);
    let mut rows = zeros(problem.batch * problem.queries() * problem.heads * dim);
    rows.par_chunks_mut(problem.heads * dim).enumerate().for_each(|(index, rows)| {
        let (sample, query) = (index / problem.queries(), index % problem.queries());
        for (head, row) in rows.chunks_mut(dim).enumerate() {
            let factors = &factors[(index * problem.heads + head) * slots..][..slots];
            for_each_slot(plan, &space, more.as_ref(), [sample, query, head], |slot, token| {
                add(row, factors[slot], token);
            });
            row.iter_mut().for_each(|x| *x = *x * scale);
        }
    });
    tensor(E::narrow(rows), with_last(&shape(weights), dim))
}

fn spread<E: Storage>(weights: &FlexTensor, rows: &FlexTensor, plan: &UnfusedPlan) -> Tokens<Flex> {
    let (problem, slots, dim) = (&plan.problem, plan.slots(), plan.problem.head_dim);
    let (weights, contiguous) = (weights.to_contiguous(), rows.to_contiguous());
    let (weights, row_elements) = (elements::<E>(&weights), elements::<E>(&contiguous));
    let scale = E::Sum::from_f64(problem.scale);
    // What a query gives a token in one of its slots, of all heads that share the token's.
    let take = |token: &mut [E::Sum], sample: usize, query: usize, slot: usize| {
        let heads = problem.heads;
        let group = problem.group_size();
        for (head_kv, token) in token.chunks_mut(dim).enumerate() {
            for head in head_kv * group..(head_kv + 1) * group {
                let row = (sample * problem.queries() + query) * heads + head;
                add(token, weights[row * slots + slot], &row_elements[row * dim..][..dim]);
            }
        }
    };
    let finish = |tokens: Vec<E::Sum>| {
        E::narrow(tokens.into_par_iter().map(|x| x * scale).collect::<Vec<_>>())
    };
    let of_token = problem.heads_kv * dim;
    let mut space = zeros(problem.batch * problem.keys() * of_token);
    space.par_chunks_mut(of_token).enumerate().for_each(|(index, token)| {
        let (sample, key) = (index / problem.keys(), index % problem.keys());
        for_each_visitor(problem, key, |query, slot| take(token, sample, query, slot));
    });
    let mut more = zeros(problem.batch * problem.additional * of_token);
    more.par_chunks_mut(of_token).enumerate().for_each(|(index, token)| {
        let (sample, slot) = (index / problem.additional, index % problem.additional);
        for query in 0..problem.queries() {
            take(token, sample, query, problem.slots() + slot);
        }
    });
    let additional = additional_shape(problem).map(|shape| tensor(finish(more), shape));
    Tokens {
        space: tensor(finish(space), space_shape(&shape(rows), problem)),
        additional: additional.into(),
    }
}

/// The queries that see a key, each with the slot that it has it in.
fn for_each_visitor(problem: &Problem, key: usize, mut visit: impl FnMut(usize, usize)) {
    let at = problem.key_coordinates(key);
    let along = |axis: usize| {
        let line = problem.axes[axis];
        let (first, count) = line.visitors(at[axis]);
        (0..count).map(move |i| {
            let query = first + i * line.dilation;
            (query, (at[axis] - line.window(query).0) / line.dilation)
        })
    };
    let [_, lines, length] = problem.axes.map(|axis| axis.queries);
    let [_, slots_y, slots_x] = problem.slot_axes();
    for (z, slot_z) in along(0) {
        for (y, slot_y) in along(1) {
            for (x, slot_x) in along(2) {
                let slot = (slot_z * slots_y + slot_y) * slots_x + slot_x;
                visit((z * lines + y) * length + x, slot);
            }
        }
    }
}

fn offsets<E: Storage>(weights: &FlexTensor, like: &FlexTensor, plan: &UnfusedPlan) -> FlexTensor {
    let (problem, slots) = (&plan.problem, plan.slots());
    let weights = weights.to_contiguous();
    let weights = elements::<E>(&weights);
    let extent = problem.bias_entries();
    // A sum of each sample, and of those in order.
    let of_sample = |index: usize| {
        let (head, sample) = (index / problem.batch, index % problem.batch);
        let mut sums = vec![E::Sum::zero(); extent];
        for query in 0..problem.queries() {
            let row = (sample * problem.queries() + query) * problem.heads + head;
            let weights = &weights[row * slots..][..slots];
            for (slot, offset) in slot_offsets(problem, query) {
                sums[offset] = sums[offset] + weights[slot];
            }
        }
        sums
    };
    let count = problem.heads * problem.batch;
    let parts: Vec<_> = (0..count).into_par_iter().map(of_sample).collect();
    let mut bias = vec![E::Sum::zero(); problem.heads * extent];
    for (index, part) in parts.iter().enumerate() {
        let to = &mut bias[index / problem.batch * extent..][..extent];
        add(to, E::Sum::one(), part);
    }
    tensor(E::narrow(bias), shape(like))
}

/// Partial sums that a product of vectors has, so that it is computed in registers.
const LANES: usize = 8;

fn dot<A: Real>(a: &[A], b: &[A]) -> A {
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    let mut sums = [A::zero(); LANES];
    for (a, b) in a.iter().zip(b) {
        for lane in 0..LANES {
            sums[lane] = sums[lane] + a[lane] * b[lane];
        }
    }
    let rest: A = a_rest.iter().zip(b_rest).map(|(a, b)| *a * *b).sum();
    sums.into_iter().sum::<A>() + rest
}

/// `to += factor * from`
fn add<A: Real>(to: &mut [A], factor: A, from: &[A]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = *to + factor * *from;
    }
}
