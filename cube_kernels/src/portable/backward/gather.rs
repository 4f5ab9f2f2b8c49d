//! The gradient of one key and value row from a run of queries: what the key pass and the
//! additional keys have in common.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs, clippy::too_many_arguments)]

use cubecl::prelude::*;

use super::super::geometry::Run;
use super::super::plan::RowPlan;
use super::super::rows::{accumulate, dots};

/// Adds `ds q` and `p dout` for the queries of `run`.
#[cube]
pub(super) fn gather<F: Float, N: Size>(
    dk: &mut Array<Vector<f32, N>>,
    dv: &mut Array<Vector<f32, N>>,
    key: &[Vector<F, N>],
    value: &[Vector<F, N>],
    key_row: usize,
    query: &[Vector<F, N>],
    dout: &[Vector<F, N>],
    statistics: &[f32],
    run: Run,
    slice: usize,
    scale: f32,
    #[comptime] plan: RowPlan,
) {
    let block = comptime!(plan.block);
    let whole = run.count / block;
    for i in 0..whole {
        let row = run.row + i * block * run.step;
        gather_block::<F, N>(
            dk, dv, key, value, key_row, query, dout, statistics, row, run.step, slice, scale,
            plan, block,
        );
    }
    for i in whole * block..run.count {
        let row = run.row + i * run.step;
        gather_block::<F, N>(
            dk, dv, key, value, key_row, query, dout, statistics, row, run.step, slice, scale,
            plan, 1usize,
        );
    }
}

#[cube]
fn gather_block<F: Float, N: Size>(
    dk: &mut Array<Vector<f32, N>>,
    dv: &mut Array<Vector<f32, N>>,
    key: &[Vector<F, N>],
    value: &[Vector<F, N>],
    key_row: usize,
    query: &[Vector<F, N>],
    dout: &[Vector<F, N>],
    statistics: &[f32],
    row: usize,
    step: usize,
    slice: usize,
    scale: f32,
    #[comptime] plan: RowPlan,
    #[comptime] block: usize,
) {
    let (key_lines, value_lines) = comptime!((plan.key.lines, plan.value.lines));
    let mut p = dots::<F, N>(key, key_row, query, row, step, key_lines, block);
    let mut ds = dots::<F, N>(value, key_row, dout, row, step, value_lines, block);
    #[unroll]
    for b in 0..block {
        let at = 2 * (row + b * step);
        p[b] = (p[b] * scale - statistics[at]).exp();
        ds[b] = p[b] * (ds[b] - statistics[at + 1]);
    }
    accumulate::<F, N>(dk, &ds, query, row, step, slice, comptime!(plan.key), block);
    accumulate::<F, N>(dv, &p, dout, row, step, slice, comptime!(plan.value), block);
}
