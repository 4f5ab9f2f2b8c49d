//! The inner loops: products of a few rows with many, and exponentials.
//!
//! Everything here is generic over the instruction set `S` and inlined into a function that was
//! dispatched on it, so that a loop never pays for the dispatch.

use macerator::{
    ReduceAdd, ReduceMax, Simd, VAdd, VMulAdd, VOrd, Vector, vload_unaligned, vstore_unaligned,
};

/// Rows that are computed together, so that what they share is loaded once.
pub(super) const BLOCK: usize = crate::plan::FLEX_QUERIES;

/// Elements behind the end of a panel or a row of scores that may be read or written: one vector
/// of the widest instruction set.
pub(super) const MARGIN: usize = 16;

/// A type that sums are held in.
pub(super) trait Real:
    VMulAdd
    + VOrd
    + VAdd
    + ReduceMax
    + ReduceAdd
    + num_traits::Float
    + Into<f64>
    + Send
    + Sync
    + std::iter::Sum
{
    /// Replaces each `x` with `exp(x - shift)` and returns their sum.
    ///
    /// # Safety
    ///
    /// `MARGIN` elements behind `values` may be overwritten.
    unsafe fn exp_sub<S: Simd>(values: *mut Self, len: usize, shift: Self) -> Self;

    fn from_f64(value: f64) -> Self;
}

impl Real for f32 {
    #[inline(always)]
    unsafe fn exp_sub<S: Simd>(values: *mut f32, len: usize, shift: f32) -> f32 {
        let lanes = lanes::<S, f32>();
        let shift_vector = vector::<S, f32>(shift);
        let mut sum = vector::<S, f32>(0.0);
        let whole = len / lanes * lanes;
        let mut i = 0;
        while i < whole {
            // SAFETY: `i + lanes <= len`.
            unsafe {
                let x = vload_unaligned(values.add(i)) - shift_vector;
                let y = exp::<S>(x);
                sum += y;
                vstore_unaligned(values.add(i), y);
            }
            i += lanes;
        }
        let mut total = sum.reduce_add();
        if whole < len {
            // SAFETY: the vector ends within the margin.
            unsafe {
                let y = exp::<S>(vload_unaligned(values.add(whole)) - shift_vector);
                vstore_unaligned(values.add(whole), y);
                for i in whole..len {
                    total += *values.add(i);
                }
            }
        }
        total
    }

    fn from_f64(value: f64) -> Self {
        value as f32
    }
}

impl Real for f64 {
    #[inline(always)]
    unsafe fn exp_sub<S: Simd>(values: *mut f64, len: usize, shift: f64) -> f64 {
        let mut total = 0.0;
        for i in 0..len {
            // SAFETY: `i < len`.
            unsafe {
                let y = (*values.add(i) - shift).exp();
                *values.add(i) = y;
                total += y;
            }
        }
        total
    }

    fn from_f64(value: f64) -> Self {
        value
    }
}

/// `e^x` within two units in the last place; zero below -87.3, NaN for NaN, for `x <= 88`.
///
/// `x = n ln 2 + r` with `|r| <= ln(2) / 2`; `e^r` by its Taylor polynomial to the seventh power,
/// whose remainder is below 2^-27.
#[inline(always)]
fn exp<S: Simd>(x: Vector<S, f32>) -> Vector<S, f32> {
    const LOWEST: f32 = -87.3;
    let v = vector::<S, f32>;
    let clamped = x.max(v(LOWEST));
    let n = (clamped * v(std::f32::consts::LOG2_E)).round_to_int();
    let n_float = n.to_float();
    // ln 2 in two parts, so that n * ln 2 is subtracted without loss.
    let r = n_float.mul_add(v(-0.693_359_4), x);
    let r = n_float.mul_add(v(2.121_944_4e-4), r);
    let mut p = v(1.0 / 5040.0);
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = p.mul_add(r, v(c));
    }
    let power = ((n + vector::<S, i32>(127)) << 23).reinterpret::<f32>();
    let lowest = v(LOWEST);
    x.lt(lowest).select(v(0.0), p * power)
}

#[inline(always)]
pub(super) fn vector<S: Simd, T: macerator::Scalar>(value: T) -> Vector<S, T> {
    value.splat::<S>()
}

#[inline(always)]
pub(super) fn lanes<S: Simd, T: macerator::Scalar>() -> usize {
    T::lanes::<S>()
}

/// `out[q][v] = sum_d rows[q][d] * columns[v][d * pitch]` for `V` vectors of columns.
///
/// `V = 2` gives eight independent chains of multiply-adds, as many as it takes to hide their
/// latency. Vectors are stored in order, so that a later one may overwrite what an earlier one
/// wrote behind its last column.
///
/// # Safety
///
/// `rows` hold `dim` elements, and at each of `columns` begin `dim` lines of `pitch` elements, the
/// last of which holds a vector. So does each of `out`.
#[inline(always)]
pub(super) unsafe fn scores<S: Simd, A: Real, const V: usize>(
    rows: [*const A; BLOCK],
    dim: usize,
    columns: [*const A; V],
    pitch: usize,
    out: [[*mut A; V]; BLOCK],
) {
    let mut sums = [[vector::<S, A>(A::zero()); V]; BLOCK];
    for d in 0..dim {
        // SAFETY: line `d` of the panel, element `d` of the rows.
        unsafe {
            let mut lines = [vector::<S, A>(A::zero()); V];
            for (line, columns) in lines.iter_mut().zip(columns) {
                *line = vload_unaligned(columns.add(d * pitch));
            }
            for (sums, row) in sums.iter_mut().zip(rows) {
                let factor = vector::<S, A>(*row.add(d));
                for (sum, line) in sums.iter_mut().zip(lines) {
                    *sum = factor.mul_add(line, *sum);
                }
            }
        }
    }
    for (sums, out) in sums.into_iter().zip(out) {
        for (sum, out) in sums.into_iter().zip(out) {
            // SAFETY: the caller's.
            unsafe { vstore_unaligned(out, sum) };
        }
    }
}

/// Rows that lie the same step apart, and where their weights begin.
#[derive(Clone, Copy)]
pub(super) struct Run<P> {
    pub rows: P,
    pub len: usize,
    pub offset: usize,
}

/// `sums[q][d] += sum_j weights[q][j * along] * rows[j * step + d]` for `d < dim`, `j < len`.
///
/// # Safety
///
/// `weights` hold `len` elements so far apart, `sums` `dim`, and so does each of the `len` rows.
#[inline(always)]
pub(super) unsafe fn accumulate<S: Simd, A: Real, const Q: usize>(
    weights: ([*const A; Q], usize),
    len: usize,
    rows: *const A,
    step: usize,
    dim: usize,
    sums: [*mut A; Q],
) {
    let run = std::iter::once(Run { rows, len, offset: 0 });
    // SAFETY: the caller's.
    unsafe { accumulate_runs::<S, A, Q>(weights, run, step, dim, sums) };
}

/// [`accumulate`] for all runs, one after the other: sums stay in registers from one to the next.
///
/// # Safety
///
/// As for [`accumulate`], for each run with the weights from its offset on.
#[inline(always)]
pub(super) unsafe fn accumulate_runs<S: Simd, A: Real, const Q: usize>(
    (weights, along): ([*const A; Q], usize),
    runs: impl Iterator<Item = Run<*const A>> + Clone,
    step: usize,
    dim: usize,
    sums: [*mut A; Q],
) {
    let lanes = lanes::<S, A>();
    let mut d = 0;
    // SAFETY: the caller's; whole vectors end at or before `dim`.
    unsafe {
        while d + 2 * lanes <= dim {
            let sums = sums.map(|sum| sum.add(d));
            accumulate_tile::<S, A, Q, 2>((weights, along), runs.clone(), d, step, sums);
            d += 2 * lanes;
        }
        while d + lanes <= dim {
            let sums = sums.map(|sum| sum.add(d));
            accumulate_tile::<S, A, Q, 1>((weights, along), runs.clone(), d, step, sums);
            d += lanes;
        }
        for d in d..dim {
            for (weights, sum) in weights.into_iter().zip(sums) {
                let mut total = *sum.add(d);
                for run in runs.clone() {
                    let weights = weights.add(run.offset);
                    for j in 0..run.len {
                        total = total + *weights.add(j * along) * *run.rows.add(j * step + d);
                    }
                }
                *sum.add(d) = total;
            }
        }
    }
}

/// # Safety
///
/// As for [`accumulate_runs`], with `V` vectors from `d` on.
#[inline(always)]
unsafe fn accumulate_tile<S: Simd, A: Real, const Q: usize, const V: usize>(
    (weights, along): ([*const A; Q], usize),
    runs: impl Iterator<Item = Run<*const A>>,
    d: usize,
    step: usize,
    sums: [*mut A; Q],
) {
    let lanes = lanes::<S, A>();
    let mut totals = [[vector::<S, A>(A::zero()); V]; Q];
    // SAFETY: the caller's.
    unsafe {
        for (totals, sum) in totals.iter_mut().zip(sums) {
            for (v, total) in totals.iter_mut().enumerate() {
                *total = vload_unaligned(sum.add(v * lanes));
            }
        }
        for run in runs {
            let weights = weights.map(|weights| weights.add(run.offset));
            for j in 0..run.len {
                let row = run.rows.add(j * step + d);
                let mut columns = [vector::<S, A>(A::zero()); V];
                for (v, column) in columns.iter_mut().enumerate() {
                    *column = vload_unaligned(row.add(v * lanes));
                }
                for (totals, weights) in totals.iter_mut().zip(weights) {
                    let weight = vector::<S, A>(*weights.add(j * along));
                    for (total, column) in totals.iter_mut().zip(columns) {
                        *total = weight.mul_add(column, *total);
                    }
                }
            }
        }
        for (totals, sum) in totals.into_iter().zip(sums) {
            for (v, total) in totals.into_iter().enumerate() {
                vstore_unaligned(sum.add(v * lanes), total);
            }
        }
    }
}

/// `rows[j * step + d] += sum_q weights[q][j] * vectors[q][d]` for `d < dim` and all rows of all runs.
///
/// # Safety
///
/// `weights` hold as many elements behind a run's offset as it has rows, `vectors` `dim`, and so does each of the rows.
#[inline(always)]
pub(super) unsafe fn scatter<S: Simd, A: Real, const Q: usize>(
    weights: [*const A; Q],
    vectors: [*const A; Q],
    dim: usize,
    runs: impl Iterator<Item = Run<*mut A>> + Clone,
    step: usize,
) {
    let lanes = lanes::<S, A>();
    let mut d = 0;
    // SAFETY: the caller's; whole vectors end at or before `dim`.
    unsafe {
        while d + 2 * lanes <= dim {
            scatter_tile::<S, A, Q, 2>(weights, vectors, d, runs.clone(), step);
            d += 2 * lanes;
        }
        while d + lanes <= dim {
            scatter_tile::<S, A, Q, 1>(weights, vectors, d, runs.clone(), step);
            d += lanes;
        }
        for d in d..dim {
            for run in runs.clone() {
                for j in 0..run.len {
                    let row = run.rows.add(j * step + d);
                    for (weights, vector) in weights.into_iter().zip(vectors) {
                        *row = *row + *weights.add(run.offset + j) * *vector.add(d);
                    }
                }
            }
        }
    }
}

/// Vectors stay in registers while rows pass by.
///
/// # Safety
///
/// As for [`scatter`], with `V` vectors from `d` on.
#[inline(always)]
unsafe fn scatter_tile<S: Simd, A: Real, const Q: usize, const V: usize>(
    weights: [*const A; Q],
    vectors: [*const A; Q],
    d: usize,
    runs: impl Iterator<Item = Run<*mut A>>,
    step: usize,
) {
    let lanes = lanes::<S, A>();
    let mut kept = [[vector::<S, A>(A::zero()); V]; Q];
    // SAFETY: the caller's.
    unsafe {
        for (kept, vector) in kept.iter_mut().zip(vectors) {
            for (v, kept) in kept.iter_mut().enumerate() {
                *kept = vload_unaligned(vector.add(d + v * lanes));
            }
        }
        for run in runs {
            let weights = weights.map(|weights| weights.add(run.offset));
            for j in 0..run.len {
                let row = run.rows.add(j * step + d);
                let mut totals = [vector::<S, A>(A::zero()); V];
                for (v, total) in totals.iter_mut().enumerate() {
                    *total = vload_unaligned(row.add(v * lanes));
                }
                for (kept, weights) in kept.iter().zip(weights) {
                    let weight = vector::<S, A>(*weights.add(j));
                    for (total, kept) in totals.iter_mut().zip(kept) {
                        *total = weight.mul_add(*kept, *total);
                    }
                }
                for (v, total) in totals.into_iter().enumerate() {
                    vstore_unaligned(row.add(v * lanes), total);
                }
            }
        }
    }
}

/// Whether no value is infinite or NaN.
#[inline(always)]
pub(super) fn is_finite<A: Real>(values: &[A]) -> bool {
    values.iter().fold(true, |finite, value| finite & value.is_finite())
}

/// The greatest of `values`, `-inf` if there are none.
#[inline(always)]
pub(super) fn max<S: Simd, A: Real>(values: &[A]) -> A {
    let lanes = lanes::<S, A>();
    let mut chunks = values.chunks_exact(lanes);
    let mut greatest = vector::<S, A>(A::neg_infinity());
    for chunk in &mut chunks {
        // SAFETY: a chunk holds a vector.
        greatest = greatest.max(unsafe { vload_unaligned(chunk.as_ptr()) });
    }
    chunks.remainder().iter().copied().fold(greatest.reduce_max(), A::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[macerator::with_simd]
    fn exp_all<S: Simd>(values: &mut [f32], len: usize) -> f32 {
        assert!(values.len() >= len + MARGIN);
        // SAFETY: just checked.
        unsafe { f32::exp_sub::<S>(values.as_mut_ptr(), len, 0.0) }
    }

    #[test]
    fn exp_is_within_two_units_of_the_last_place() {
        let inputs: Vec<f32> = (0..=20_000).map(|i| -(i as f32) * 0.00437).collect();
        let mut values = inputs.clone();
        values.resize(inputs.len() + MARGIN, f32::NAN);
        let sum = exp_all(&mut values, inputs.len());
        let mut expected_sum = 0.0;
        for (x, y) in inputs.iter().zip(&values) {
            let expected = f64::from(*x).exp();
            expected_sum += expected;
            if *x >= -87.3 {
                let error = (f64::from(*y) - expected).abs() / expected;
                assert!(error < 2.4e-7, "exp({x}) = {y}, off by {error:e}");
            } else {
                assert_eq!(*y, 0.0, "exp({x})");
            }
        }
        assert!((f64::from(sum) / expected_sum - 1.0).abs() < 1e-6);
    }

    #[test]
    fn exp_keeps_what_is_not_finite() {
        let mut values = vec![0.0; 3 + MARGIN];
        values[..3].copy_from_slice(&[f32::NEG_INFINITY, f32::NAN, 0.0]);
        exp_all(&mut values, 3);
        assert_eq!(values[0], 0.0);
        assert!(values[1].is_nan());
        assert_eq!(values[2], 1.0);
    }
}
