//! The backward pass in one sweep: `dq`, `dk` and `dv` of a block of queries from scores that are computed once.
//!
//! A task owns the queries of a strip, for all heads that share one of keys and values, and adds to the gradients of the keys that
//! they see. Tasks that run at the same time see no key in common, see [`Strips`]; so there is no race, and the order of a sum does
//! not depend on the number of threads.

use burn_natten_kernels::Problem;
use macerator::Simd;

use super::backward::{Queries, write};
use super::bias::{Bias, Stand};
use super::block::{Block, Meeting};
use super::operand::{Operand, Panel, Place, Tokens, Vectors};
use super::ring::{Forms, Ring};
use super::simd::{self, BLOCK, Real, Run};
use super::strips::{StripTask, Strips};
use super::sweep::{
    Output, Scratch, Segment, chunk_accumulate, chunk_scores, fill_outside, split, split_mut, sweep,
};

/// Every other strip runs, then those between them.
pub(super) const PHASES: usize = 2;

/// `dq`, `dk` and `dv` at once.
pub(super) struct JointPass<'p, 'a, A: Clone> {
    pub problem: &'p Problem,
    pub queries: Queries<'p, 'a, A>,
    /// As [`Tokens::for_query_pass`] makes them, where strips are parts of a line.
    pub space: &'p Tokens<'a, A>,
    pub bias: Option<&'p Bias<'a, A>>,
    pub strips: Strips,
}

/// The gradients.
struct Gradients<'g, A> {
    query: Output<'g, A>,
    key: Output<'g, A>,
    value: Output<'g, A>,
}

impl<A: Real> JointPass<'_, '_, A> {
    /// Adds to `dk` and `dv`, and writes `dq`.
    pub fn run(&self, dq: &mut [A], dk: &mut [A], dv: &mut [A]) {
        let problem = self.problem;
        let grads =
            Gradients { query: Output::new(dq), key: Output::new(dk), value: Output::new(dv) };
        let dims = [problem.head_dim, problem.head_dim_v];
        // Scores are taken with both, and keys are summed up.
        let keys = Forms { panel: true, vectors: true };
        let values = Forms { panel: true, vectors: false };
        let scratch = || (Scratch::new(dims), [keys, values].map(Ring::new));
        self.strips.for_each(problem, PHASES, scratch, |task, (scratch, rings)| {
            run_strip(self, &task, scratch, rings, &grads);
        });
    }
}

#[macerator::with_simd]
fn run_strip<'p, 'a, 'g, 's, S: Simd, A: Real>(
    pass: &JointPass<'p, 'a, A>,
    task: &StripTask<'s>,
    scratch: &mut Scratch<A>,
    rings: &mut [Ring<A>; 2],
    grads: &Gradients<'g, A>,
) {
    let [keys, values] = rings;
    keys.begin(task);
    values.begin(task);
    for row in task.strip.rows.clone() {
        let (keys, vectors) = keys.lines(&pass.space.key, &pass.strips, task, row);
        let (values, _) = values.lines(&pass.space.value, &pass.strips, task, row);
        for head in task.heads(pass.problem) {
            for block in &task.strip.blocks {
                let (batch, group, position) = (task.batch, block.group, block.first);
                let place = Place { batch, head, row, group, position };
                run_block::<S, A>(pass, place, block, ([keys, values], vectors), scratch, grads);
            }
        }
    }
}

#[inline(always)]
fn run_block<S: Simd, A: Real>(
    pass: &JointPass<'_, '_, A>,
    place: Place,
    block: &Block,
    (panels, keys): ([Panel<'_, A>; 2], Vectors<'_, A>),
    scratch: &mut Scratch<A>,
    grads: &Gradients<'_, A>,
) {
    let (problem, tokens) = (pass.problem, pass.space);
    let scale = A::from_f64(problem.scale);
    let Scratch { segments, scores, rows, sums } = &mut *scratch;
    let [lse, delta] = pass.queries.gather(place, block, scale, rows);
    sums[0].fill(A::zero());
    let is_finite = rows.each_ref().map(|rows| simd::is_finite(rows));
    let rows = [split(&rows[0]), split(&rows[1])];
    let outer = pass.queries.query.grid.outer_at(place.row);
    let positions = block.positions();
    let meeting = Meeting::keys(&problem.axes, outer, block.group, positions);
    let stand = Stand { head: place.head, outer, positions, partners: tokens.key.grid };
    let own = Place { head: place.head / problem.group_size(), ..place };
    let mut chunks = sweep(&meeting, tokens.key.grid);
    while let Some(len) = chunks.next_chunk(segments) {
        let [p, ds] = &mut *scores;
        // SAFETY: rows of head_dim and head_dim_v; keys and values have panels.
        unsafe {
            chunk_scores::<S, A>(rows[0], panels[0], own.group, segments, p);
            chunk_scores::<S, A>(rows[1], panels[1], own.group, segments, ds);
        }
        if let Some(bias) = pass.bias {
            bias.add_to_queries(p, &stand, segments);
        }
        for i in 0..BLOCK {
            // SAFETY: an array of scores ends with a margin.
            unsafe { A::exp_sub::<S>(p[i].as_mut_ptr(), len, lse[i]) };
            for (ds, p) in ds[i][..len].iter_mut().zip(&p[i][..len]) {
                *ds = *p * (*ds - delta[i]);
            }
        }
        for weights in [&mut *p, &mut *ds] {
            fill_outside(weights, segments, A::zero());
            // Queries that do not exist have no weight.
            weights[block.live..].iter_mut().for_each(|weights| weights[..len].fill(A::zero()));
        }
        // SAFETY: sums and rows of head_dim and head_dim_v; no other task of the phase sees the keys.
        unsafe {
            chunk_accumulate::<S, A>(ds, keys, own.group, segments, split_mut(&mut sums[0]));
            let vectors = (rows[0], is_finite[0]);
            chunk_scatter::<S, A>(ds, vectors, block.live, &tokens.key, own, segments, &grads.key);
            let vectors = (rows[1], is_finite[1]);
            chunk_scatter::<S, A>(
                p,
                vectors,
                block.live,
                &tokens.value,
                own,
                segments,
                &grads.value,
            );
        }
    }
    write(&grads.query, pass.queries.query, place, block, &sums[0], scale);
}

/// Adds the block's vectors to those of `output`, like `operand`, of all segments, weighted. Weights are zero in the columns that
/// are not a token's own, to which it adds nothing unless all vectors are finite.
///
/// # Safety
///
/// `vectors` hold `operand.dim` elements; no other thread reads or writes the tokens of the segments.
#[inline(always)]
unsafe fn chunk_scatter<S: Simd, A: Real>(
    weights: &[Vec<A>; BLOCK],
    (vectors, is_finite): ([*const A; BLOCK], bool),
    live: usize,
    operand: &Operand<'_, A>,
    place: Place,
    segments: &[Segment],
    output: &Output<'_, A>,
) {
    let (step, dim) = (operand.row_step(), operand.dim);
    let run = |segment: &Segment| {
        let (columns, offset) = (&segment.columns, segment.offset);
        let first = operand.row_at(Place { row: segment.row, position: columns.start, ..place });
        let rows = output.vectors(first..first + (columns.len - 1) * step + dim);
        Run { rows, len: columns.len, offset }
    };
    if is_finite {
        let weights = weights.each_ref().map(|weights| weights.as_ptr());
        let runs = segments.iter().map(run);
        // SAFETY: the columns lie in the chunk and, as just checked, in the output.
        unsafe { simd::scatter::<S, A, BLOCK>(weights, vectors, dim, runs, step) };
        return;
    }
    // A zero weight times a value that is not finite would be NaN.
    for segment in segments {
        let whole = run(segment);
        let own = segment.columns.own.iter().zip(weights).zip(vectors);
        for ((own, weights), vector) in own.take(live) {
            let rows = whole.rows.wrapping_add(own.start * step);
            let run = Run { rows, len: own.len(), offset: whole.offset + own.start };
            let (weights, run) = ([weights.as_ptr()], std::iter::once(run));
            // SAFETY: as above.
            unsafe { simd::scatter::<S, A, 1>(weights, [vector], dim, run, step) };
        }
    }
}

#[cfg(test)]
mod tests;
