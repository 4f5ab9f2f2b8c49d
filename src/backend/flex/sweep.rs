//! What the passes share: their tasks, and the walk over the partners of a block.

use std::ops::Range;

use rayon::prelude::*;

use super::block::{Block, Columns, Meeting, blocks};
use super::operand::{Grid, Operand, Panel, Place, Vectors};
use super::simd::{self, BLOCK, MARGIN, Real, Run};

/// Columns whose scores are held at a time: with both score arrays of a backward pass 16 KB in
/// f32, so that they stay in the first-level cache.
pub(super) const CHUNK: usize = 512;

/// Blocks in a task: enough to outweigh its start, few enough to share out a single line.
pub(super) const TASK_BLOCKS: usize = 8;

/// Some columns of one line of partners.
pub(super) struct Segment {
    pub row: usize,
    pub columns: Columns,
    /// Where the scores of the columns begin.
    pub offset: usize,
}

/// The walk over the partners of a block, at most [`CHUNK`] columns at a time.
///
/// An iterator in all but name: a closure around the inner loops would be compiled without the
/// instruction set that its caller was dispatched on.
pub(super) struct Sweep<'m, R> {
    columns: &'m Columns,
    rows: R,
    /// The line that is next, and the column in it.
    row: Option<usize>,
    start: usize,
}

pub(super) fn sweep<'m>(
    meeting: &'m Meeting,
    grid: &Grid,
) -> Sweep<'m, impl Iterator<Item = usize> + use<>> {
    let mut rows = meeting.rows(grid);
    let columns = &meeting.columns;
    let row = if columns.len > 0 { rows.next() } else { None };
    Sweep { columns, rows, row, start: 0 }
}

impl<R: Iterator<Item = usize>> Sweep<'_, R> {
    /// Fills `segments` with the next chunk and returns its number of columns, at least one.
    pub fn next_chunk(&mut self, segments: &mut Vec<Segment>) -> Option<usize> {
        segments.clear();
        let (total, mut used) = (self.columns.len, 0);
        while let Some(row) = self.row {
            let (left, room) = (total - self.start, CHUNK - used);
            // A line that would be cut for want of room waits for a chunk that holds it whole.
            let waits = left > room && used > 0 && total <= CHUNK;
            if room == 0 || waits {
                break;
            }
            let len = left.min(room);
            let columns = if len == total {
                self.columns.clone()
            } else {
                self.columns.part(self.start..self.start + len)
            };
            segments.push(Segment { row, columns, offset: used });
            used += len;
            self.start += len;
            if self.start == total {
                (self.row, self.start) = (self.rows.next(), 0);
            }
        }
        (used > 0).then_some(used)
    }
}

/// Working memory of a thread.
pub(super) struct Scratch<A> {
    pub segments: Vec<Segment>,
    /// Two arrays of scores for each token of a block.
    pub scores: [[Vec<A>; BLOCK]; 2],
    /// Two vectors for each token of a block: what goes into the scores.
    pub rows: [Vec<A>; 2],
    /// Two vectors for each token of a block: what is summed up.
    pub sums: [Vec<A>; 2],
}

impl<A: Real> Scratch<A> {
    pub fn new(dims: [usize; 2]) -> Self {
        let vectors = || dims.map(|dim| vec![A::zero(); BLOCK * dim]);
        let line = || vec![A::zero(); CHUNK + MARGIN];
        Self {
            segments: Vec::new(),
            scores: std::array::from_fn(|_| std::array::from_fn(|_| line())),
            rows: vectors(),
            sums: vectors(),
        }
    }
}

/// Pointers to the vectors of a block that lie one behind the other.
pub(super) fn split<A>(vectors: &[A]) -> [*const A; BLOCK] {
    let dim = vectors.len() / BLOCK;
    std::array::from_fn(|i| vectors[i * dim..][..dim].as_ptr())
}

/// Mutable pointers to the vectors of a block that lie one behind the other.
pub(super) fn split_mut<A>(vectors: &mut [A]) -> [*mut A; BLOCK] {
    let dim = vectors.len() / BLOCK;
    let first = vectors.as_mut_ptr();
    // SAFETY: `BLOCK` vectors of `dim` elements lie in the slice.
    std::array::from_fn(|i| unsafe { first.add(i * dim) })
}

/// Copies the vectors of a block, times `factor`.
#[inline(always)]
pub(super) fn gather<A: Real>(
    operand: &Operand<'_, A>,
    place: Place,
    block: &Block,
    factor: A,
    vectors: &mut [A],
) {
    for (position, vector) in block.positions().into_iter().zip(vectors.chunks_mut(operand.dim)) {
        let row = operand.row(Place { position, ..place });
        for (to, from) in vector.iter_mut().zip(row) {
            *to = *from * factor;
        }
    }
}

/// A block of tokens of one head.
pub(super) struct Task<'b> {
    pub batch: usize,
    pub head: usize,
    pub row: usize,
    pub blocks: &'b [Block],
}

impl Task<'_> {
    /// Where the first token of one of the blocks is.
    pub fn place(&self, block: &Block) -> Place {
        Place {
            batch: self.batch,
            head: self.head,
            row: self.row,
            group: block.group,
            position: block.first,
        }
    }
}

/// The tasks of a pass.
struct Tasks {
    batch: usize,
    rows: usize,
    blocks: Vec<Block>,
}

impl Tasks {
    fn new(batch: usize, grid: &Grid) -> Self {
        Self { batch, rows: grid.rows(), blocks: blocks(grid) }
    }

    /// Tasks of a line of one sample and head.
    fn of_row(&self) -> usize {
        self.blocks.len().div_ceil(TASK_BLOCKS)
    }

    /// Tasks of one head.
    fn of_head(&self) -> usize {
        self.batch * self.rows * self.of_row()
    }

    /// Task number `index` of a head.
    fn get(&self, head: usize, index: usize) -> Task<'_> {
        let (part, row) = (index % self.of_row(), index / self.of_row());
        let first = part * TASK_BLOCKS;
        let last = self.blocks.len().min(first + TASK_BLOCKS);
        Task {
            batch: row / self.rows,
            head,
            row: row % self.rows,
            blocks: &self.blocks[first..last],
        }
    }
}

/// Runs `body` for all blocks of `heads` heads, in parallel.
pub(super) fn for_each_task<A: Real>(
    batch: usize,
    heads: usize,
    grid: &Grid,
    dims: [usize; 2],
    body: impl Fn(Task<'_>, &mut Scratch<A>) + Sync,
) {
    let tasks = Tasks::new(batch, grid);
    // Of a sample, one head after the other.
    let of_sample = tasks.rows * tasks.of_row();
    (0..tasks.of_head() * heads).into_par_iter().for_each_init(
        || Scratch::new(dims),
        |scratch, index| {
            let (within, index) = (index % of_sample, index / of_sample);
            let (head, sample) = (index % heads, index / heads);
            body(tasks.get(head, sample * of_sample + within), scratch);
        },
    );
}

/// Runs `body` for all blocks of `heads` heads, in parallel, the tasks of a head in strands of which each passes a state of its
/// own from task to task. Gives the states, those of a head one after the other, and how many a head has.
pub(super) fn for_each_strand<A: Real, T: Send>(
    [batch, heads]: [usize; 2],
    grid: &Grid,
    dims: [usize; 2],
    strands: fn(usize, usize) -> usize,
    state: impl Fn() -> T + Sync,
    body: impl Fn(Task<'_>, &mut Scratch<A>, &mut T) + Sync,
) -> (Vec<T>, usize) {
    let tasks = Tasks::new(batch, grid);
    let (count, strands) = (tasks.of_head(), strands(heads, tasks.of_head()));
    let run = |scratch: &mut Scratch<A>, strand: usize| {
        let (head, strand) = (strand / strands, strand % strands);
        let mut state = state();
        for index in count * strand / strands..count * (strand + 1) / strands {
            body(tasks.get(head, index), scratch, &mut state);
        }
        state
    };
    let states = (0..heads * strands).into_par_iter().map_init(|| Scratch::new(dims), run);
    (states.collect(), strands)
}

/// A buffer to which tasks write vectors of their own.
pub(super) struct Output<'a, A> {
    first: *mut A,
    len: usize,
    lifetime: std::marker::PhantomData<&'a mut [A]>,
}

// SAFETY: `write` is unsafe and asks for places that no other thread writes.
unsafe impl<A: Send> Sync for Output<'_, A> {}

impl<'a, A: Copy> Output<'a, A> {
    pub fn new(buffer: &'a mut [A]) -> Self {
        Self { first: buffer.as_mut_ptr(), len: buffer.len(), lifetime: std::marker::PhantomData }
    }

    /// Writes a vector.
    ///
    /// # Safety
    ///
    /// No other thread writes to these elements.
    pub unsafe fn write(&self, start: usize, values: impl ExactSizeIterator<Item = A>) {
        assert!(start + values.len() <= self.len, "a vector lies within the buffer");
        for (i, value) in values.enumerate() {
            // SAFETY: inside the buffer, as just checked; nobody else writes there.
            unsafe { *self.first.add(start + i) = value };
        }
    }

    /// Where elements lie that a task reads and writes. To do so is unsafe, as [`Self::write`] is.
    pub fn vectors(&self, range: Range<usize>) -> *mut A {
        assert!(range.start <= range.end && range.end <= self.len, "vectors lie within the buffer");
        self.first.wrapping_add(range.start)
    }
}

/// Scores of a chunk: the block's `rows` with the columns of all segments. Columns that are not a
/// token's own hold anything, until [`fill_outside`].
///
/// # Safety
///
/// `rows` hold `panel.dim` elements.
#[inline(always)]
pub(super) unsafe fn chunk_scores<S: macerator::Simd, A: Real>(
    rows: [*const A; BLOCK],
    panel: Panel<'_, A>,
    group: usize,
    segments: &[Segment],
    scores: &mut [Vec<A>; BLOCK],
) {
    let pieces = segments.iter().map(|segment| {
        let panel = panel.at(segment.row, group, segment.columns.start);
        Piece { panel, len: segment.columns.len, offset: segment.offset }
    });
    let scores = scores.each_mut().map(|scores| &mut scores[..]);
    // SAFETY: the caller's; panel and scores end with a margin.
    unsafe { piece_scores::<S, A>(rows, [panel.dim, panel.pitch()], pieces, scores) };
}

/// Neighboring columns of a panel, and where their scores begin.
pub(super) struct Piece<'p, A> {
    /// From the first column to the end of the panel.
    pub panel: &'p [A],
    pub len: usize,
    pub offset: usize,
}

/// Scores of rows with the columns of all pieces, of which each begins where the one before ends or
/// behind. Up to a vector behind a piece's last column is read and written.
///
/// # Safety
///
/// `rows` hold `dim` elements, panels are `dim` lines of `pitch`, and whole vectors lie in panels and
/// scores.
#[inline(always)]
pub(super) unsafe fn piece_scores<'p, S: macerator::Simd, A: Real>(
    rows: [*const A; BLOCK],
    [dim, pitch]: [usize; 2],
    pieces: impl Iterator<Item = Piece<'p, A>>,
    mut scores: [&mut [A]; BLOCK],
) {
    let lanes = simd::lanes::<S, A>();
    // Vectors of columns are taken in pairs, whatever pieces they come from.
    let mut waiting: Option<(*const A, usize)> = None;
    for Piece { panel, len, offset } in pieces {
        for start in (0..len).step_by(lanes) {
            let vector = (panel[start..].as_ptr(), offset + start);
            let Some(first) = waiting.take() else {
                waiting = Some(vector);
                continue;
            };
            let out = scores
                .each_mut()
                .map(|scores| [first.1, vector.1].map(|offset| scores[offset..].as_mut_ptr()));
            // SAFETY: the caller's.
            unsafe { simd::scores::<S, A, 2>(rows, dim, [first.0, vector.0], pitch, out) };
        }
    }
    if let Some((panel, offset)) = waiting {
        let out = scores.each_mut().map(|scores| [scores[offset..].as_mut_ptr()]);
        // SAFETY: as above.
        unsafe { simd::scores::<S, A, 1>(rows, dim, [panel], pitch, out) };
    }
}

/// Puts `value` into the columns that are not a token's own.
#[inline(always)]
pub(super) fn fill_outside<A: Real>(scores: &mut [Vec<A>; BLOCK], segments: &[Segment], value: A) {
    for segment in segments {
        let (columns, offset) = (&segment.columns, segment.offset);
        for (scores, own) in scores.iter_mut().zip(&columns.own) {
            let scores = &mut scores[offset..][..columns.len];
            scores[..own.start].fill(value);
            scores[own.end..].fill(value);
        }
    }
}

/// Adds the vectors of all segments to the block's sums, weighted. Weights are zero in the columns
/// that are not a token's own, whose vectors are left out unless all are finite.
///
/// # Safety
///
/// `sums` hold `vectors.dim` elements.
#[inline(always)]
pub(super) unsafe fn chunk_accumulate<S: macerator::Simd, A: Real>(
    weights: &[Vec<A>; BLOCK],
    vectors: Vectors<'_, A>,
    group: usize,
    segments: &[Segment],
    sums: [*mut A; BLOCK],
) {
    let (step, dim) = (vectors.step, vectors.dim);
    let run = |segment: &Segment| {
        let (start, len) = (segment.columns.start, segment.columns.len);
        let rows = vectors.at(segment.row, group, start, len).as_ptr();
        Run { rows, len, offset: segment.offset }
    };
    if vectors.is_finite {
        let all = weights.each_ref().map(|weights| weights.as_ptr());
        let runs = segments.iter().map(run);
        // SAFETY: the columns lie in the chunk and, as `at` checks, in the tensor.
        unsafe { simd::accumulate_runs::<S, A, BLOCK>((all, 1), runs, step, dim, sums) };
        return;
    }
    // A zero weight times a value that is not finite would be NaN: only own columns, in
    // the same order, so that the same bits come out where nothing is amiss.
    for segment in segments {
        let (columns, whole) = (&segment.columns, run(segment));
        let (before, after) = columns.around_shared();
        let part = |range: &Range<usize>| Run {
            rows: whole.rows.wrapping_add(range.start * step),
            len: range.len(),
            offset: whole.offset + range.start,
        };
        for ((weights, sums), own) in weights.iter().zip(sums).zip(&before) {
            let (weights, run) = ([weights.as_ptr()], std::iter::once(part(own)));
            // SAFETY: as above.
            unsafe { simd::accumulate_runs::<S, A, 1>((weights, 1), run, step, dim, [sums]) };
        }
        let all = weights.each_ref().map(|weights| weights.as_ptr());
        let shared = std::iter::once(part(&columns.shared));
        // SAFETY: as above.
        unsafe { simd::accumulate_runs::<S, A, BLOCK>((all, 1), shared, step, dim, sums) };
        for ((weights, sums), own) in weights.iter().zip(sums).zip(&after) {
            let (weights, run) = ([weights.as_ptr()], std::iter::once(part(own)));
            // SAFETY: as above.
            unsafe { simd::accumulate_runs::<S, A, 1>((weights, 1), run, step, dim, [sums]) };
        }
    }
}
