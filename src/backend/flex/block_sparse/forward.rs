//! The forward pass: rows walk over their lists with a streaming softmax.

use macerator::Simd;

use super::lists::Lists;
use super::rows::{Edges, Quad, Rows, Task, for_each_task};
use super::space::{Panels, Space, Vectors};
use super::walk::{Scratch, Walk, chunk_accumulate, chunk_scores, hide};
use crate::backend::flex::simd::Real;
use crate::backend::flex::softmax::Softmax;
use crate::backend::flex::sweep::{Output, split_mut};

pub(super) struct Forward<'a, A> {
    pub space: &'a Space<'a>,
    pub edges: &'a Edges,
    pub lists: &'a Lists,
    pub query: &'a [A],
    /// Times the scale.
    pub key: &'a Panels<A>,
    pub value: &'a Vectors<A>,
}

impl<A: Real> Forward<'_, A> {
    /// Computes `out` `[batch, queries, heads, head_dim_v]` and `lse` `[batch, queries, heads]`.
    pub fn run(&self, out: &mut [A], lse: &mut [A]) {
        let results = [Output::new(out), Output::new(lse)];
        let scratch = || Scratch::new(self.value.dim);
        for_each_task(self.space.sparse, scratch, |task, scratch| {
            run_task(self, task, scratch, &results);
        });
    }
}

#[macerator::with_simd]
fn run_task<'a, S: Simd, A: Real>(
    pass: &Forward<'a, A>,
    task: &Task,
    scratch: &mut Scratch<A>,
    results: &[Output<'a, A>; 2],
) {
    let sparse = pass.space.sparse;
    for block in task.blocks.clone() {
        let list = [task.sample, task.list_head, block];
        let rows = Rows::new(sparse, pass.edges, list);
        for quad in task.quads(&rows) {
            let head = sparse.kv_head_of_list(task.list_head);
            let blocks = pass.lists.of(list);
            let walk = Walk::new(pass.space, blocks, [task.sample, head], &quad);
            let softmax = attend::<S, A, _>(pass, walk, &quad, scratch);
            write(&softmax, &quad, &scratch.sums, results);
        }
    }
}

#[inline(always)]
fn attend<S: Simd, A: Real, I: Iterator<Item = usize>>(
    pass: &Forward<'_, A>,
    mut walk: Walk<'_, I>,
    quad: &Quad,
    scratch: &mut Scratch<A>,
) -> Softmax<A> {
    let Scratch { segments, scores: [scores, _], sums } = scratch;
    let (space, rows, dim) = (pass.space, &quad.rows, pass.key.dim);
    let query = rows.map(|row| pass.query[row.vector * dim..][..dim].as_ptr());
    let mut softmax = Softmax::new();
    sums.fill(A::zero());
    while let Some(len) = walk.next_chunk(segments) {
        // SAFETY: rows of head_dim.
        unsafe { chunk_scores::<S, A>(query, pass.key, segments, scores) };
        hide(scores, space, rows, segments, A::neg_infinity());
        // SAFETY: an array of scores ends with a margin; sums of the values' head_dim.
        unsafe {
            softmax.weigh::<S>(scores, len, sums, pass.value.dim);
            let sums = split_mut(sums);
            chunk_accumulate::<S, A>(scores, pass.value, (space, rows), segments, sums);
        }
    }
    softmax
}

/// Writes the results of the rows that exist.
fn write<A: Real>(softmax: &Softmax<A>, quad: &Quad, sums: &[A], [out, lse]: &[Output<'_, A>; 2]) {
    let dim = sums.len() / quad.rows.len();
    for (i, row) in quad.rows[..quad.live].iter().enumerate() {
        let (sum, max) = (softmax.sum[i], softmax.max[i]);
        // No key that weighs anything.
        let is_blind = sum == A::zero();
        let result = |value: &A| if is_blind { A::zero() } else { *value / sum };
        let logarithm = if is_blind { A::neg_infinity() } else { max + sum.ln() };
        // SAFETY: a row belongs to one list, and to one task.
        unsafe {
            out.write(row.vector * dim, sums[i * dim..][..dim].iter().map(result));
            lse.write(row.vector, [logarithm].into_iter());
        }
    }
}
