//! The gradient of one key and value row from a run of queries: what the key pass and the
//! additional keys have in common.

// `#[cube]` and `CubeLaunch` add items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use super::super::bias::{RunBias, with_bias};
use super::super::geometry::Run;
use super::super::plan::RowPlan;
use super::super::rows::{Fixed, Rows, accumulate, dots};

/// What the kernels read.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Inputs<'a, F: Float, N: Size> {
    /// Keys and values.
    pub rows: Rows<'a, F, N>,
    /// Queries and the output's gradient.
    pub columns: Rows<'a, F, N>,
    pub statistics: &'a [f32],
    /// Where the bias begins in `statistics`, if there is one.
    pub bias_at: ComptimeOption<usize>,
    /// Of a packed batch.
    pub sequences: ComptimeOption<&'a [u32]>,
}

/// What they write: gradients, or parts of them.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Outputs<F: Float, N: Size> {
    pub dk: Box<[Vector<F, N>]>,
    pub dv: Box<[Vector<F, N>]>,
}

/// Sums of a unit's row.
#[derive(CubeType)]
pub(super) struct Sums<N: Size> {
    pub dk: Array<Vector<f32, N>>,
    pub dv: Array<Vector<f32, N>>,
}

/// Adds `ds q` and `p dout` for the queries of `run`.
#[cube]
pub(super) fn gather<F: Float, N: Size>(
    sums: &mut Sums<N>,
    row: &Fixed<'_, F, N>,
    inputs: &Inputs<'_, F, N>,
    run: Run,
    bias: ComptimeOption<RunBias<'_, f32>>,
    #[comptime] plan: RowPlan,
) {
    let block = comptime!(plan.block);
    let whole = run.count / block;
    for i in 0..whole {
        let first = i * block;
        let bias = bias.map(|bias| bias.from(first));
        gather_block::<F, N>(sums, row, inputs, run.from(first), bias, plan, block);
    }
    for i in whole * block..run.count {
        let bias = bias.map(|bias| bias.from(i));
        gather_block::<F, N>(sums, row, inputs, run.from(i), bias, plan, 1usize);
    }
}

#[cube]
fn gather_block<F: Float, N: Size>(
    sums: &mut Sums<N>,
    row: &Fixed<'_, F, N>,
    inputs: &Inputs<'_, F, N>,
    at: Run,
    bias: ComptimeOption<RunBias<'_, f32>>,
    #[comptime] plan: RowPlan,
    #[comptime] block: usize,
) {
    let (lines, lines_v) = comptime!((plan.key.lines, plan.value.lines));
    let (queries, douts) = (inputs.columns.first, inputs.columns.second);
    let mut p = dots::<F, N>(row.first, row.row, queries, at, lines, block);
    let mut ds = dots::<F, N>(row.second, row.row, douts, at, lines_v, block);
    #[unroll]
    for b in 0..block {
        let place = 2 * (at.row + b * at.step);
        let score = with_bias(p[b] * row.scale, bias, b);
        p[b] = (score - inputs.statistics[place]).exp();
        ds[b] = p[b] * (ds[b] - inputs.statistics[place + 1]);
    }
    accumulate::<F, N>(&mut sums.dk, &ds, queries, at, row.slice, comptime!(plan.key), block);
    accumulate::<F, N>(&mut sums.dv, &p, douts, at, row.slice, comptime!(plan.value), block);
}
