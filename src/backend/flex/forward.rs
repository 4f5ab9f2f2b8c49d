//! The forward pass: a task owns blocks of queries of one head and walks over their windows with a
//! streaming softmax.

use macerator::Simd;

use super::bias::{Bias, Stand};
use super::block::Meeting;
use super::operand::{Operand, Panel, Place, Tokens};
use super::ring::Ring;
use super::simd::Real;
use super::softmax::Softmax;
use super::strips::{StripTask, Strips};
use super::sweep::{
    Output, Scratch, Task, chunk_accumulate, chunk_scores, fill_outside, for_each_task, gather,
    split, split_mut, sweep,
};
use burn_natten_kernels::Problem;

pub(super) struct Forward<'a, A: Clone> {
    pub problem: &'a Problem,
    pub query: Operand<'a, A>,
    /// See [`Tokens::for_forward`] and [`Tokens::for_strips`].
    pub space: Tokens<'a, A>,
    pub additional: Option<Tokens<'a, A>>,
    pub bias: Option<Bias<'a, A>>,
    /// If it runs strip by strip. Otherwise keys have a panel.
    pub strips: Option<Strips>,
}

impl<A: Real> Forward<'_, A> {
    /// Computes `out` `[batch, queries, heads, head_dim_v]` and `lse` `[batch, queries, heads]`.
    pub fn run(&self, out: &mut [A], lse: &mut [A]) {
        let outputs = [Output::new(out), Output::new(lse)];
        let problem = self.problem;
        let dims = [problem.head_dim, problem.head_dim_v];
        if let Some(strips) = &self.strips {
            let scratch = || (Scratch::new(dims), Ring::new());
            return strips.for_each(problem, 1, scratch, |task, (scratch, ring)| {
                run_strip(self, strips, &task, scratch, ring, &outputs);
            });
        }
        for_each_task(problem.batch, problem.heads, self.query.grid, dims, |task, scratch| {
            let head = task.head / problem.group_size();
            let panel = self.space.key.whole_panel([task.batch, head]);
            run_task(self, &task, panel, scratch, &outputs);
        });
    }
}

#[macerator::with_simd]
fn run_strip<'a, 'r, S: Simd, A: Real>(
    pass: &Forward<'a, A>,
    strips: &Strips,
    strip: &StripTask<'r>,
    scratch: &mut Scratch<A>,
    ring: &mut Ring<A>,
    outputs: &[Output<'a, A>; 2],
) {
    ring.begin(strip);
    for row in strip.strip.rows.clone() {
        let panel = ring.panel(&pass.space.key, strips, strip, row);
        for head in strip.heads(pass.problem) {
            let task = Task { batch: strip.batch, head, row, blocks: &strip.strip.blocks };
            attend_blocks::<S, A>(pass, &task, panel, scratch, outputs);
        }
    }
}

#[macerator::with_simd]
fn run_task<'a, 'p, S: Simd, A: Real>(
    pass: &Forward<'a, A>,
    task: &Task<'a>,
    panel: Panel<'p, A>,
    scratch: &mut Scratch<A>,
    outputs: &[Output<'a, A>; 2],
) {
    attend_blocks::<S, A>(pass, task, panel, scratch, outputs);
}

/// The blocks of a task; `panel` is that of their keys.
#[inline(always)]
fn attend_blocks<S: Simd, A: Real>(
    pass: &Forward<'_, A>,
    task: &Task<'_>,
    panel: Panel<'_, A>,
    scratch: &mut Scratch<A>,
    [out, lse]: &[Output<'_, A>; 2],
) {
    let (problem, grid) = (pass.problem, pass.query.grid);
    let outer = grid.outer_at(task.row);
    for block in task.blocks {
        let place = task.place(block);
        let scale = A::from_f64(problem.scale);
        gather(&pass.query, place, block, scale, &mut scratch.rows[0]);
        scratch.sums[1].fill(A::zero());
        let mut softmax = Softmax::new();
        let head = task.head / problem.group_size();
        let meeting = Meeting::keys(&problem.axes, outer, block.group, block.positions());
        let is_blind = |i: usize| pass.additional.is_none() && meeting.is_blind(i);
        let bias = pass.bias.as_ref().map(|bias| {
            let partners = pass.space.key.grid;
            (bias, Stand { head: task.head, outer, positions: block.positions(), partners })
        });
        let space = (&pass.space, bias.as_ref());
        attend::<S, A>(space, panel, &meeting, Place { head, ..place }, scratch, &mut softmax);
        if let Some(additional) = &pass.additional {
            let whole = Meeting::whole(additional.key.grid, 0);
            let place = Place { head, group: 0, ..place };
            let panel = additional.key.whole_panel([place.batch, head]);
            attend::<S, A>((additional, None), panel, &whole, place, scratch, &mut softmax);
        }
        let dim = problem.head_dim_v;
        for (i, sums) in scratch.sums[1].chunks(dim).take(block.live).enumerate() {
            let place = Place { position: block.first + i, ..place };
            let row = pass.query.row_at(place) / problem.head_dim;
            let (sum, max) = (softmax.sum[i], softmax.max[i]);
            if is_blind(i) {
                // SAFETY: as below.
                unsafe {
                    out.write(row * dim, sums.iter().map(|_| A::zero()));
                    lse.write(row, [A::neg_infinity()].into_iter());
                }
                continue;
            }
            // SAFETY: a query belongs to one block, and a block to one task.
            unsafe {
                out.write(row * dim, sums.iter().map(|value| *value / sum));
                lse.write(row, [max + sum.ln()].into_iter());
            }
        }
    }
}

#[inline(always)]
fn attend<S: Simd, A: Real>(
    (tokens, bias): (&Tokens<'_, A>, Option<&(&Bias<'_, A>, Stand<'_>)>),
    panel: Panel<'_, A>,
    meeting: &Meeting,
    place: Place,
    scratch: &mut Scratch<A>,
    softmax: &mut Softmax<A>,
) {
    let Scratch { segments, scores: [scores, _], rows: [rows, _], sums: [_, sums] } = scratch;
    let rows = split(rows);
    let dim = tokens.value.dim;
    let place = Place { group: meeting.group, ..place };
    let mut chunks = sweep(meeting, tokens.key.grid);
    while let Some(len) = chunks.next_chunk(segments) {
        // SAFETY: the rows were gathered for this head_dim, and keys have a panel.
        unsafe { chunk_scores::<S, A>(rows, panel, place.group, segments, scores) };
        if let Some((bias, stand)) = bias {
            bias.add_to_queries(scores, stand, segments);
        }
        fill_outside(scores, segments, A::neg_infinity());
        // SAFETY: an array of scores ends with a margin.
        unsafe { softmax.weigh::<S>(scores, len, sums, dim) };
        // SAFETY: the sums of the values' head_dim.
        unsafe {
            let sums = split_mut(sums);
            chunk_accumulate::<S, A>(scores, &tokens.value, place, segments, sums);
        }
    }
}
