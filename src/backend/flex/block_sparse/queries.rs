//! The half of the backward pass that sums `dq`: rows walk over their lists again.

use macerator::Simd;

use super::Statistics;
use super::lists::Lists;
use super::rows::{Edges, Quad, Rows, Task, for_each_task};
use super::space::{Panels, Space, Vectors};
use super::walk::{Scratch, Walk, chunk_accumulate, chunk_scores, hide};
use crate::backend::flex::simd::Real;
use crate::backend::flex::sweep::{Output, split_mut};

pub(super) struct QueryPass<'a, A: Clone> {
    pub space: &'a Space<'a>,
    pub edges: &'a Edges,
    pub lists: &'a Lists,
    pub rows: &'a Statistics<'a, A>,
    /// Keys times the scale, and values.
    pub panels: [&'a Panels<A>; 2],
    pub key: &'a Vectors<A>,
}

impl<A: Real> QueryPass<'_, A> {
    pub fn run(&self, dq: &mut [A]) {
        let dq = Output::new(dq);
        for_each_task(
            self.space.sparse,
            || Scratch::new(self.key.dim),
            |task, scratch| run_task(self, task, scratch, &dq),
        );
    }
}

#[macerator::with_simd]
fn run_task<'a, S: Simd, A: Real>(
    pass: &QueryPass<'a, A>,
    task: &Task,
    scratch: &mut Scratch<A>,
    dq: &Output<'a, A>,
) {
    let (sparse, dim) = (pass.space.sparse, pass.key.dim);
    let scale = A::from_f64(sparse.problem.scale);
    for block in task.blocks.clone() {
        let list = [task.sample, task.list_head, block];
        let rows = Rows::new(sparse, pass.edges, list);
        for quad in task.quads(&rows) {
            let head = sparse.kv_head_of_list(task.list_head);
            let blocks = pass.lists.of(list);
            let walk = Walk::new(pass.space, blocks, [task.sample, head], &quad);
            descend::<S, A, _>(pass, walk, &quad, scratch);
            for (row, sums) in quad.rows[..quad.live].iter().zip(scratch.sums.chunks(dim)) {
                let is_blind = pass.rows.lse[row.vector] == A::neg_infinity();
                let result = |sum: &A| if is_blind { A::zero() } else { *sum * scale };
                // SAFETY: a row belongs to one list, and to one task.
                unsafe { dq.write(row.vector * dim, sums.iter().map(result)) };
            }
        }
    }
}

#[inline(always)]
fn descend<S: Simd, A: Real, I: Iterator<Item = usize>>(
    pass: &QueryPass<'_, A>,
    mut walk: Walk<'_, I>,
    quad: &Quad,
    scratch: &mut Scratch<A>,
) {
    let Scratch { segments, scores: [s, dp], sums } = scratch;
    let Statistics { query, grad_out, lse, delta } = pass.rows;
    let (space, rows, [key, value]) = (pass.space, &quad.rows, pass.panels);
    let query = rows.map(|row| query[row.vector * key.dim..][..key.dim].as_ptr());
    let grad_out = rows.map(|row| grad_out[row.vector * value.dim..][..value.dim].as_ptr());
    sums.fill(A::zero());
    while let Some(len) = walk.next_chunk(segments) {
        // SAFETY: rows of head_dim and head_dim_v.
        unsafe {
            chunk_scores::<S, A>(query, key, segments, s);
            chunk_scores::<S, A>(grad_out, value, segments, dp);
        }
        for (i, row) in rows.iter().enumerate() {
            let (lse, delta) = (lse[row.vector], delta[row.vector]);
            // SAFETY: an array of scores ends with a margin.
            unsafe { A::exp_sub::<S>(s[i].as_mut_ptr(), len, lse) };
            for (p, dp) in s[i][..len].iter_mut().zip(&dp[i][..len]) {
                *p = *p * (*dp - delta);
            }
        }
        hide(s, space, rows, segments, A::zero());
        // SAFETY: sums of head_dim.
        unsafe {
            chunk_accumulate::<S, A>(s, pass.key, (space, rows), segments, split_mut(sums));
        }
    }
}
