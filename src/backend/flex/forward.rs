//! The forward pass: a task owns blocks of queries of one head and walks over their windows with a
//! streaming softmax.

use macerator::Simd;

use super::bias::{Bias, Stand};
use super::block::Meeting;
use super::operand::{Grid, Operand, Panel, Place, Tokens, Vectors};
use super::ring::{Forms, Ring};
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
    /// As [`Tokens::for_forward`] makes them, unless it runs strip by strip.
    pub space: Tokens<'a, A>,
    pub additional: Option<Tokens<'a, A>>,
    pub bias: Option<Bias<'a, A>>,
    /// If it runs strip by strip.
    pub strips: Option<Strips>,
}

impl<A: Real> Forward<'_, A> {
    /// Computes `out` `[batch, queries, heads, head_dim_v]` and `lse` `[batch, queries, heads]`.
    pub fn run(&self, out: &mut [A], lse: &mut [A]) {
        let outputs = [Output::new(out), Output::new(lse)];
        let problem = self.problem;
        let dims = [problem.head_dim, problem.head_dim_v];
        if let Some(strips) = &self.strips {
            // Scores are taken with keys, and values are summed up.
            let keys = Forms { panel: true, vectors: false };
            let values = Forms { panel: false, vectors: true };
            let scratch = || (Scratch::new(dims), [keys, values].map(Ring::new));
            return strips.for_each(problem, 1, scratch, |task, (scratch, rings)| {
                run_strip(self, strips, &task, scratch, rings, &outputs);
            });
        }
        for_each_task(problem.batch, problem.heads, self.query.grid, dims, |task, scratch| {
            let head = task.head / problem.group_size();
            let seen = self.space.scores_and_sums([task.batch, head]);
            run_task(self, &task, seen, scratch, &outputs);
        });
    }
}

/// Panel and vectors, and the bias of the scores.
type Seen<'p, 'b, A> = ((Panel<'p, A>, Vectors<'p, A>), Option<&'b (&'b Bias<'b, A>, Stand<'b>)>);

#[macerator::with_simd]
fn run_strip<'a, 'r, S: Simd, A: Real>(
    pass: &Forward<'a, A>,
    strips: &Strips,
    strip: &StripTask<'r>,
    scratch: &mut Scratch<A>,
    rings: &mut [Ring<A>; 2],
    outputs: &[Output<'a, A>; 2],
) {
    let [keys, values] = rings;
    keys.begin(strip);
    values.begin(strip);
    for row in strip.strip.rows.clone() {
        let (keys, _) = keys.lines(&pass.space.key, strips, strip, row);
        let (_, values) = values.lines(&pass.space.value, strips, strip, row);
        for head in strip.heads(pass.problem) {
            let task = Task { batch: strip.batch, head, row, blocks: &strip.strip.blocks };
            attend_blocks::<S, A>(pass, &task, (keys, values), scratch, outputs);
        }
    }
}

#[macerator::with_simd]
fn run_task<'a, 'p, S: Simd, A: Real>(
    pass: &Forward<'a, A>,
    task: &Task<'a>,
    seen: (Panel<'p, A>, Vectors<'p, A>),
    scratch: &mut Scratch<A>,
    outputs: &[Output<'a, A>; 2],
) {
    attend_blocks::<S, A>(pass, task, seen, scratch, outputs);
}

/// The blocks of a task, with the keys and values that they see.
#[inline(always)]
fn attend_blocks<S: Simd, A: Real>(
    pass: &Forward<'_, A>,
    task: &Task<'_>,
    seen: (Panel<'_, A>, Vectors<'_, A>),
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
        attend::<S, A>((seen, bias.as_ref()), &meeting, pass.space.key.grid, scratch, &mut softmax);
        if let Some(additional) = &pass.additional {
            let whole = Meeting::whole(additional.key.grid, 0);
            let seen = (additional.scores_and_sums([place.batch, head]), None);
            attend::<S, A>(seen, &whole, additional.key.grid, scratch, &mut softmax);
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
    ((keys, values), bias): Seen<'_, '_, A>,
    meeting: &Meeting,
    grid: &Grid,
    scratch: &mut Scratch<A>,
    softmax: &mut Softmax<A>,
) {
    let Scratch { segments, scores: [scores, _], rows: [rows, _], sums: [_, sums] } = scratch;
    let rows = split(rows);
    let mut chunks = sweep(meeting, grid);
    while let Some(len) = chunks.next_chunk(segments) {
        // SAFETY: the rows were gathered for this head_dim.
        unsafe { chunk_scores::<S, A>(rows, keys, meeting.group, segments, scores) };
        if let Some((bias, stand)) = bias {
            bias.add_to_queries(scores, stand, segments);
        }
        fill_outside(scores, segments, A::neg_infinity());
        // SAFETY: an array of scores ends with a margin.
        unsafe { softmax.weigh::<S>(scores, len, sums, values.dim) };
        // SAFETY: the sums of the values' head_dim.
        unsafe {
            let sums = split_mut(sums);
            chunk_accumulate::<S, A>(scores, values, meeting.group, segments, sums);
        }
    }
}
