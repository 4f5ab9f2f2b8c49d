//! The backward pass in two passes, without atomics: a query pass for `dq`, and a key pass over the inverse
//! windows for `dk` and `dv`. The joint pass makes all three at once, where it can.
//!
//! ```text
//! p = exp(s - lse)    ds = p (dp - delta)    dp = dout . v    delta = rowsum(dout * out) - dlse
//! dq = scale sum ds k             dk = scale sum ds q             dv = sum p dout
//! dbias = sum ds
//! ```

use burn_natten_kernels::Problem;
use macerator::Simd;

use super::bias::{Bias, BiasGradient, Stand, strands};
use super::block::{Block, Meeting};
use super::operand::{Operand, Panel, Place, Tokens};
use super::simd::{BLOCK, Real};
use super::sweep::{
    Output, Scratch, Segment, Task, chunk_accumulate, chunk_scores, fill_outside, for_each_strand,
    for_each_task, gather, split, split_mut, sweep,
};

/// What the passes read of the queries.
pub(super) struct Queries<'p, 'a, A: Clone> {
    pub query: &'p Operand<'a, A>,
    pub grad_out: &'p Operand<'a, A>,
    pub lse: &'p Operand<'a, A>,
    pub delta: &'p Operand<'a, A>,
}

impl<A: Real> Queries<'_, '_, A> {
    /// Copies the vectors of a block, those of the queries times `scale`, and gives its logsumexps and deltas.
    #[inline(always)]
    pub fn gather(
        &self,
        place: Place,
        block: &Block,
        scale: A,
        rows: &mut [Vec<A>; 2],
    ) -> [[A; BLOCK]; 2] {
        gather(self.query, place, block, scale, &mut rows[0]);
        gather(self.grad_out, place, block, A::one(), &mut rows[1]);
        let [mut lse, mut delta] = [[A::zero(); BLOCK]; 2];
        gather(self.lse, place, block, A::one(), &mut lse);
        gather(self.delta, place, block, A::one(), &mut delta);
        [lse, delta]
    }
}

/// `dq`, and `dbias` on the way: a task owns blocks of queries.
pub(super) struct QueryPass<'p, 'a, A: Clone> {
    pub problem: &'p Problem,
    pub queries: Queries<'p, 'a, A>,
    /// Those of the space, see [`Tokens::for_query_pass`].
    pub space: &'p Tokens<'a, A>,
    /// As those of the space.
    pub additional: Option<&'p Tokens<'a, A>>,
    pub bias: Option<&'p Bias<'a, A>>,
}

impl<A: Real> QueryPass<'_, '_, A> {
    pub fn run(&self, dq: &mut [A]) {
        let (problem, dq) = (self.problem, Output::new(dq));
        let dims = [problem.head_dim, problem.head_dim_v];
        for_each_task(
            problem.batch,
            problem.heads,
            self.queries.query.grid,
            dims,
            |task, scratch| {
                query_task(self, &task, scratch, &dq, None);
            },
        );
    }

    /// The same with the gradient of the bias, `[heads, *distances]`.
    pub fn run_with_bias(&self, dq: &mut [A]) -> Vec<A> {
        let (problem, dq) = (self.problem, Output::new(dq));
        let (parts, strands) = for_each_strand(
            [problem.batch, problem.heads],
            self.queries.query.grid,
            [problem.head_dim, problem.head_dim_v],
            strands,
            || BiasGradient::new(problem),
            |task, scratch, dbias| query_task(self, &task, scratch, &dq, Some(dbias)),
        );
        BiasGradient::total(&parts, strands)
    }
}

#[macerator::with_simd]
fn query_task<'p, 'a, 's, S: Simd, A: Real>(
    pass: &QueryPass<'p, 'a, A>,
    task: &Task<'p>,
    scratch: &mut Scratch<A>,
    dq: &Output<'p, A>,
    mut dbias: Option<&'s mut BiasGradient>,
) {
    let (problem, grid) = (pass.problem, pass.queries.query.grid);
    let scale = A::from_f64(problem.scale);
    for block in task.blocks {
        let place = task.place(block);
        let Scratch { segments, scores, rows, sums } = &mut *scratch;
        let [lse, delta] = pass.queries.gather(place, block, scale, rows);
        sums[0].fill(A::zero());
        let rows = [split(&rows[0]), split(&rows[1])];
        let outer = grid.outer_at(task.row);
        let positions = block.positions();
        let window = Meeting::keys(&problem.axes, outer, block.group, positions);
        let stand = Stand { head: task.head, outer, positions, partners: pass.space.key.grid };
        let space = (pass.space, window, pass.bias);
        let additional =
            pass.additional.map(|tokens| (tokens, Meeting::whole(tokens.key.grid, 0), None));
        for (tokens, meeting, bias) in [space].into_iter().chain(additional) {
            let head = task.head / problem.group_size();
            let place = Place { head, group: meeting.group, ..place };
            let panels = [&tokens.key, &tokens.value]
                .map(|operand| operand.whole_panel([place.batch, head]));
            let mut chunks = sweep(&meeting, tokens.key.grid);
            while let Some(len) = chunks.next_chunk(segments) {
                let [s, dp] = &mut *scores;
                // SAFETY: rows of head_dim and head_dim_v; keys and values have panels.
                unsafe {
                    chunk_scores::<S, A>(rows[0], panels[0], place.group, segments, s);
                    chunk_scores::<S, A>(rows[1], panels[1], place.group, segments, dp);
                }
                if let Some(bias) = bias {
                    bias.add_to_queries(s, &stand, segments);
                }
                for i in 0..BLOCK {
                    // SAFETY: an array of scores ends with a margin.
                    unsafe { A::exp_sub::<S>(s[i].as_mut_ptr(), len, lse[i]) };
                    for (p, dp) in s[i][..len].iter_mut().zip(&dp[i][..len]) {
                        *p = *p * (*dp - delta[i]);
                    }
                }
                if let (Some(_), Some(dbias)) = (bias, dbias.as_deref_mut()) {
                    dbias.add(s, block.live, &stand, segments);
                }
                fill_outside(s, segments, A::zero());
                // SAFETY: sums of head_dim.
                unsafe {
                    chunk_accumulate::<S, A>(
                        s,
                        tokens.key.vectors([place.batch, head]),
                        place.group,
                        segments,
                        split_mut(&mut sums[0]),
                    )
                };
            }
        }
        write(dq, pass.queries.query, place, block, &sums[0], scale);
    }
}

/// `dk` and `dv` of the space or of the additional tokens: a task owns blocks of keys.
pub(super) struct KeyPass<'p, 'a, A: Clone> {
    pub problem: &'p Problem,
    /// All with a panel, and both vectors searched.
    pub queries: Queries<'p, 'a, A>,
    pub tokens: &'p Tokens<'a, A>,
    /// Whether every query sees these tokens, wherever it is.
    pub is_additional: bool,
    /// In reverse. Additional tokens have none.
    pub bias: Option<&'p Bias<'a, A>>,
}

impl<A: Real> KeyPass<'_, '_, A> {
    pub fn run(&self, dk: &mut [A], dv: &mut [A]) {
        let (problem, grads) = (self.problem, [Output::new(dk), Output::new(dv)]);
        let dims = [problem.head_dim, problem.head_dim_v];
        let grid = self.tokens.key.grid;
        for_each_task(problem.batch, problem.heads_kv, grid, dims, |task, scratch| {
            key_task(self, &task, scratch, &grads);
        });
    }

    /// The queries that see a block.
    fn meetings(&self, row: usize, block: &Block) -> impl Iterator<Item = Meeting> + '_ {
        let (grid, axes) = (self.tokens.key.grid, &self.problem.axes);
        let visitors = (!self.is_additional)
            .then(|| Meeting::visitors(axes, grid.outer_at(row), block.group, block.positions()));
        let groups = if self.is_additional { self.queries.query.grid.dilation } else { 0 };
        let all = (0..groups).map(|group| Meeting::whole(self.queries.query.grid, group));
        visitors.into_iter().chain(all)
    }
}

#[macerator::with_simd]
fn key_task<'p, 'a, S: Simd, A: Real>(
    pass: &KeyPass<'p, 'a, A>,
    task: &Task<'p>,
    scratch: &mut Scratch<A>,
    grads: &[Output<'p, A>; 2],
) {
    let (problem, tokens) = (pass.problem, pass.tokens);
    let scale = A::from_f64(problem.scale);
    let heads = problem.group_size();
    for block in task.blocks {
        let own = task.place(block);
        let Scratch { segments, scores, rows, sums } = &mut *scratch;
        gather(&tokens.key, own, block, scale, &mut rows[0]);
        gather(&tokens.value, own, block, A::one(), &mut rows[1]);
        sums[0].fill(A::zero());
        sums[1].fill(A::zero());
        let rows = [split(&rows[0]), split(&rows[1])];
        for meeting in pass.meetings(task.row, block) {
            for head in task.head * heads..(task.head + 1) * heads {
                let place = Place { head, group: meeting.group, ..own };
                let [query, grad_out, lse, delta] = [
                    pass.queries.query,
                    pass.queries.grad_out,
                    pass.queries.lse,
                    pass.queries.delta,
                ]
                .map(|operand| operand.whole_panel([place.batch, head]));
                let mut chunks = sweep(&meeting, pass.queries.query.grid);
                while let Some(len) = chunks.next_chunk(segments) {
                    let [p, dp] = &mut *scores;
                    // SAFETY: rows of head_dim and head_dim_v; query and grad_out have panels.
                    unsafe {
                        chunk_scores::<S, A>(rows[0], query, place.group, segments, p);
                        chunk_scores::<S, A>(rows[1], grad_out, place.group, segments, dp);
                    }
                    if let Some(bias) = pass.bias {
                        let outer = tokens.key.grid.outer_at(task.row);
                        let (positions, partners) = (block.positions(), pass.queries.query.grid);
                        let stand = Stand { head, outer, positions, partners };
                        bias.add_to_keys(p, &stand, segments);
                    }
                    subtract(p, lse, place.group, segments);
                    subtract(dp, delta, place.group, segments);
                    for (p, dp) in p.iter_mut().zip(dp.iter_mut()) {
                        // SAFETY: an array of scores ends with a margin.
                        unsafe { A::exp_sub::<S>(p.as_mut_ptr(), len, A::zero()) };
                        for (ds, p) in dp[..len].iter_mut().zip(&p[..len]) {
                            *ds = *ds * *p;
                        }
                    }
                    fill_outside(p, segments, A::zero());
                    fill_outside(dp, segments, A::zero());
                    let [dk, dv] = &mut *sums;
                    // SAFETY: sums of head_dim and head_dim_v.
                    unsafe {
                        let (dk, dv) = (split_mut(dk), split_mut(dv));
                        let [query, grad_out] = [pass.queries.query, pass.queries.grad_out]
                            .map(|operand| operand.vectors([place.batch, head]));
                        chunk_accumulate::<S, A>(dp, query, place.group, segments, dk);
                        chunk_accumulate::<S, A>(p, grad_out, place.group, segments, dv);
                    }
                }
            }
        }
        write(&grads[0], &tokens.key, own, block, &sums[0], scale);
        write(&grads[1], &tokens.value, own, block, &sums[1], A::one());
    }
}

/// Subtracts from every score what belongs to its column.
#[inline(always)]
fn subtract<A: Real>(
    scores: &mut [Vec<A>; BLOCK],
    panel: Panel<'_, A>,
    group: usize,
    segments: &[Segment],
) {
    for segment in segments {
        let (start, len) = (segment.columns.start, segment.columns.len);
        let values = &panel.at(segment.row, group, start)[..len];
        for scores in scores.iter_mut() {
            for (score, value) in scores[segment.offset..].iter_mut().zip(values) {
                *score = *score - *value;
            }
        }
    }
}

/// Writes the sums of the tokens of a block that exist, times `factor`.
pub(super) fn write<A: Real>(
    output: &Output<'_, A>,
    like: &Operand<'_, A>,
    place: Place,
    block: &Block,
    sums: &[A],
    factor: A,
) {
    for (i, sums) in sums.chunks(like.dim).take(block.live).enumerate() {
        let row = like.row_at(Place { position: block.first + i, ..place });
        // SAFETY: a token belongs to one block, and a block to one task.
        unsafe { output.write(row, sums.iter().map(|sum| *sum * factor)) };
    }
}
