//! The gradient of the relative position bias: `dbias` at a head and an offset is the sum of `ds` over the queries of
//! all samples that see the key at that offset.
//!
//! There are few sums and many queries, so a unit owns one head, one offset and one chunk of the queries, in the
//! order in which they lie in memory, and computes the score and `dout v` of each pair again. Neighboring units own
//! neighboring offsets of one chunk: they read the same query, and keys that are neighbors. The partial sums go
//! to an `f32` workspace `[chunks, heads, 2 * kernel_size - 1, ..]`, and a second kernel adds the chunks in order. A
//! pair that is not seen is not loaded, so that nothing of it reaches a sum.

// `#[cube]` and `CubeLaunch` add items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;
use cubecl::server::Handle;

use super::super::geometry::{Geometry, geometry};
use super::super::plan::{Launch, RowPlan};
use super::super::reduce;
use super::super::rows::{Rows, RowsLaunch, dots};
use crate::cube::buffer;
use crate::{Operand, Saved};

/// Units to aim for: of two axes a quarter of the offsets is seen from most places, so that enough remain to fill a
/// large GPU. Their sums take 1 MiB.
const TARGET_UNITS: usize = 1 << 18;
/// Fewest queries worth a chunk of their own.
const MIN_CHUNK: usize = 64;
/// Most chunks: one unit adds them up.
const MAX_CHUNKS: usize = 1 << 10;

/// What the kernel reads.
#[derive(CubeType, CubeLaunch)]
struct Inputs<'a, F: Float, N: Size> {
    /// Queries and the output's gradient.
    rows: Rows<'a, F, N>,
    columns: Rows<'a, F, N>,
    statistics: &'a [f32],
    /// Where the bias begins in `statistics`.
    bias_at: usize,
}

/// How queries are shared among units.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct Split {
    units: usize,
    /// Queries of all samples.
    queries: usize,
    /// Queries of a chunk.
    chunk: usize,
}

/// Writes the bias behind the statistics, as `f32`; a unit owns one entry.
#[cube(launch_unchecked, address_type = "dynamic")]
fn widen_kernel<F: Float>(
    bias: &[F],
    statistics: &mut [f32],
    units: usize,
    bias_at: usize,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= units {
        terminate!();
    }
    statistics[bias_at + ABSOLUTE_POS] = f32::cast_from(bias[ABSOLUTE_POS]);
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn partial_kernel<F: Float, N: Size>(
    inputs: &Inputs<'_, F, N>,
    partial: &mut [f32],
    geometry: Geometry,
    scale: f32,
    split: Split,
    #[comptime] plan: RowPlan,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= split.units {
        terminate!();
    }
    let places = geometry.heads * geometry.offsets();
    let place = ABSOLUTE_POS % places;
    let head = place / geometry.offsets();
    let at = geometry.offset_position(place % geometry.offsets());
    let bias = inputs.statistics[inputs.bias_at + place];

    let first = ABSOLUTE_POS / places * split.chunk;
    let end = min(first + split.chunk, split.queries);
    let length = geometry.x.queries;
    let mut sum = 0.0f32;
    // By lines of queries along the fastest axis, of which those that see nothing at the offset are left out at
    // once. Those of samples follow each other along the slowest axis.
    for line in first / length..(end - 1) / length + 1 {
        let query = geometry.query_position(line * length);
        let z = geometry.z.key_at_offset(query.z % geometry.z.queries, at.z);
        let y = geometry.y.key_at_offset(query.y, at.y);
        if z.count * y.count > 0 {
            let batch = query.z / geometry.z.queries;
            for token in max(first, line * length)..min(end, (line + 1) * length) {
                let x = geometry.x.key_at_offset(token - line * length, at.x);
                if x.count > 0 {
                    let head_kv = head / geometry.group_size();
                    let key = geometry.key_run(batch, head_kv, z.first, y.first, x);
                    let row = token * geometry.heads + head;
                    let (lines, lines_v) = comptime!((plan.key.lines, plan.value.lines));
                    let (rows, columns) = (&inputs.rows, &inputs.columns);
                    let score = dots::<F, N>(rows.first, row, columns.first, key, lines, 1usize);
                    let dp = dots::<F, N>(rows.second, row, columns.second, key, lines_v, 1usize);
                    let p = (score[0] * scale + bias - inputs.statistics[2 * row]).exp();
                    sum += p * (dp[0] - inputs.statistics[2 * row + 1]);
                }
            }
        }
    }
    partial[ABSOLUTE_POS] = sum;
}

/// Number of chunks and queries in a chunk; no chunk is empty.
fn chunks(queries: usize, places: usize) -> (usize, usize) {
    let wanted = TARGET_UNITS.div_ceil(places).min(MAX_CHUNKS);
    let chunk = queries.div_ceil(wanted).max(MIN_CHUNK);
    (queries.div_ceil(chunk), chunk)
}

/// Writes the bias where the kernels that compute scores again read it.
pub(super) fn widen(launch: &Launch, bias: &Handle, statistics: &Handle) {
    let units = Operand::Bias.shape(launch.problem).elements();
    let Some(bias_at) = launch.bias_at() else { return };
    let (cube_count, cube_dim) = launch.cubes(units);
    // SAFETY: every index is below the sizes that the buffers were checked against, or made with.
    unsafe {
        widen_kernel::launch_unchecked(
            launch.client,
            cube_count,
            cube_dim,
            launch.address_type,
            buffer(bias),
            buffer(statistics),
            units,
            bias_at,
            launch.dtype,
        );
    }
}

pub(super) fn launch(launch: &Launch, inputs: &Saved<Handle>, statistics: &Handle, dbias: &Handle) {
    let problem = launch.problem;
    let places = Operand::Bias.shape(problem).elements();
    if places == 0 {
        return;
    }
    let queries = problem.batch * problem.queries();
    let (chunks, chunk) = match launch.bias_at() {
        Some(_) => chunks(queries, places),
        // No pair of a query and a key: the reduction writes zeros, and the workspace is never read.
        None => (0, MIN_CHUNK),
    };
    let partial = reduce::workspace(launch, places * chunks);
    if let Some(bias_at) = launch.bias_at() {
        let units = places * chunks;
        let (cube_count, cube_dim) = launch.cubes(units);
        let Saved { operands, gradients, .. } = inputs;
        // SAFETY: every index is below the sizes that the buffers were checked against, or made with.
        unsafe {
            partial_kernel::launch_unchecked(
                launch.client,
                cube_count,
                cube_dim,
                launch.address_type,
                launch.vector_size,
                InputsLaunch::new(
                    RowsLaunch::new(buffer(&operands.query), buffer(&gradients.out)),
                    RowsLaunch::new(buffer(&operands.key), buffer(&operands.value)),
                    buffer(statistics),
                    bias_at,
                ),
                buffer(&partial),
                geometry(launch),
                problem.scale as f32,
                SplitLaunch::new(units, queries, chunk),
                launch.gather_plan(1),
                launch.dtype,
            );
        }
    }
    reduce::launch(launch, &partial, dbias, [places, chunks], 1);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_the_queries_none_is_empty_and_their_sums_are_few() {
        for queries in [1, 63, 64, 65, 1000, 65536, 100_003, 50_000_000] {
            for places in [1, 7, 338, 13 * 13 * 13 * 16, 1 << 20] {
                let (chunks, chunk) = chunks(queries, places);
                let case = format!("{queries} queries, {places} places");
                assert!(chunks * chunk >= queries && (chunks - 1) * chunk < queries, "{case}");
                assert!(chunks * places < TARGET_UNITS + places && chunks <= MAX_CHUNKS, "{case}");
            }
        }
    }
}
