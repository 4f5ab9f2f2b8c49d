//! dk and dv of the additional keys, which every query of their sample sees.
//!
//! There are few of them and many queries, so a unit owns one row, one slice and one chunk of the
//! queries; neighboring units own neighboring tokens and read the same queries. The partial sums
//! go to an `f32` workspace `[batch, additional, heads_kv, chunks, head_dim(_v)]`, and a second
//! kernel adds the chunks in order.

// `#[cube]` and `CubeLaunch` add items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;
use cubecl::server::Handle;

use super::super::geometry::{Geometry, Run, geometry, owned};
use super::super::plan::{Launch, RowPlan};
use super::super::rows::{RowsLaunch, fixed, store, zeros};
use super::gather::{Inputs, InputsLaunch, Outputs, OutputsLaunch, Sums, gather};
use crate::cube::{buffer, narrow_all};
use crate::slicing::GATHER_LINES;
use crate::{KeyValue, Saved};

/// Units to aim for: enough to fill a large GPU, while their sums, at most 512 bytes a unit, take
/// 16 MiB.
const TARGET_UNITS: usize = 1 << 15;
/// Fewest queries worth a chunk of their own.
const MIN_CHUNK: usize = 64;

/// How queries are shared among units.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Split {
    units: usize,
    chunks: usize,
    /// Queries of a chunk.
    chunk: usize,
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn partial_kernel<F: Float, N: Size>(
    inputs: &Inputs<'_, F, N>,
    outputs: &mut Outputs<f32, N>,
    geometry: Geometry,
    scale: f32,
    split: Split,
    #[comptime] plan: RowPlan,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= split.units {
        terminate!();
    }
    let slices = comptime!(plan.key.slices);
    // The chunk is the index behind the token's; without it, units are divided as always.
    let index = ABSOLUTE_POS / geometry.additional % split.chunks;
    let unit = ABSOLUTE_POS / geometry.additional / split.chunks * geometry.additional
        + ABSOLUTE_POS % geometry.additional;
    let own = owned(unit, geometry.additional, geometry.heads_kv, slices);
    let group = geometry.group_size();

    let row = fixed::<F, N>(inputs.rows.first, inputs.rows.second, &own, scale);
    let mut sums =
        Sums::<N> { dk: zeros::<N>(comptime!(plan.key)), dv: zeros::<N>(comptime!(plan.value)) };
    let first = index * split.chunk;
    let count = min(split.chunk, geometry.queries() - first);
    for head in own.head * group..(own.head + 1) * group {
        let run = Run {
            row: (own.batch * geometry.queries() + first) * geometry.heads + head,
            step: geometry.heads,
            count,
        };
        gather::<F, N>(&mut sums, &row, inputs, run, ComptimeOption::new_None(), plan);
    }
    let place = own.row * split.chunks + index;
    let (dk, dv) = (&mut outputs.dk, &mut outputs.dv);
    store::<f32, N>(&sums.dk, scale, dk, place, own.slice, comptime!(plan.key));
    store::<f32, N>(&sums.dv, 1.0, dv, place, own.slice, comptime!(plan.value));
}

/// Sums the chunks of every row; a unit owns one line of one row.
#[cube(launch_unchecked, address_type = "dynamic")]
fn reduce_kernel<F: Float, N: Size>(
    partial: &[Vector<f32, N>],
    gradient: &mut [Vector<F, N>],
    units: usize,
    chunks: usize,
    #[comptime] lines: usize,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= units {
        terminate!();
    }
    let row = ABSOLUTE_POS / lines;
    let line = ABSOLUTE_POS % lines;
    let mut sum = Vector::<f32, N>::new(0.0f32);
    for index in 0..chunks {
        sum += partial[(row * chunks + index) * lines + line];
    }
    gradient[ABSOLUTE_POS] = narrow_all(sum);
}

/// Number of chunks and queries in a chunk; no chunk is empty.
fn chunks(queries: usize, units: usize) -> (usize, usize) {
    let wanted = TARGET_UNITS.div_ceil(units);
    let chunk = queries.div_ceil(wanted).max(MIN_CHUNK);
    (queries.div_ceil(chunk), chunk)
}

pub(super) fn launch(
    launch: &Launch,
    inputs: &Saved<Handle>,
    tokens: &KeyValue<Handle>,
    statistics: &Handle,
    gradients: &KeyValue<Option<Handle>>,
) {
    let problem = launch.problem;
    let rows = launch.additional_rows();
    if rows == 0 || gradients.key.is_none() && gradients.value.is_none() {
        return;
    }
    let plan = launch.gather_plan(GATHER_LINES);
    let (chunks, chunk) = chunks(problem.queries(), rows * plan.key.slices);
    // No query, no chunk: the reduction writes zeros, and the workspace is never read. WebGPU still binds no buffer that is
    // shorter than what a kernel reads at once.
    let workspace = |dim: usize| {
        let elements = (rows * chunks * dim).max(launch.vector_size);
        launch.client.empty(elements * size_of::<f32>())
    };
    let partial_dk = workspace(problem.head_dim);
    let partial_dv = workspace(problem.head_dim_v);
    if chunks > 0 {
        let units = rows * plan.key.slices * chunks;
        let (cube_count, cube_dim) = launch.cubes(units);
        // SAFETY: every index is below the sizes that the buffers were checked against, or that
        // the workspace was made with.
        unsafe {
            partial_kernel::launch_unchecked(
                launch.client,
                cube_count,
                cube_dim,
                launch.address_type,
                launch.vector_size,
                InputsLaunch::new(
                    RowsLaunch::new(buffer(&tokens.key), buffer(&tokens.value)),
                    RowsLaunch::new(buffer(&inputs.operands.query), buffer(&inputs.gradients.out)),
                    buffer(statistics),
                    None.into(),
                    None.into(),
                ),
                OutputsLaunch::new(buffer(&partial_dk), buffer(&partial_dv)),
                geometry(launch),
                problem.scale as f32,
                SplitLaunch::new(units, chunks, chunk),
                plan,
                launch.dtype,
            );
        }
    }
    let sums = [
        (&partial_dk, &gradients.key, plan.key.lines),
        (&partial_dv, &gradients.value, plan.value.lines),
    ];
    for (partial, gradient, lines) in sums {
        let Some(gradient) = gradient else { continue };
        let units = rows * lines;
        let (cube_count, cube_dim) = launch.cubes(units);
        // SAFETY: as above.
        unsafe {
            reduce_kernel::launch_unchecked(
                launch.client,
                cube_count,
                cube_dim,
                launch.address_type,
                launch.vector_size,
                buffer(partial),
                buffer(gradient),
                units,
                chunks,
                lines,
                launch.dtype,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_the_queries_and_none_is_empty() {
        for queries in [0, 1, 63, 64, 65, 1000, 65536, 100_003] {
            for units in [1, 7, 384, 1 << 20] {
                let (chunks, chunk) = chunks(queries, units);
                let case = format!("{queries} queries, {units} units");
                assert!(chunks * chunk >= queries, "{case}");
                assert!(chunks.saturating_sub(1) * chunk <= queries.saturating_sub(1), "{case}");
            }
        }
    }
}
