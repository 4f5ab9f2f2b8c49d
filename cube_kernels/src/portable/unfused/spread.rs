//! A token for each key: the rows of the queries that see it, by their weights, in the order of query heads and queries.
//!
//! A unit owns one vector of a token of the space, and walks over its visitors. Additional tokens are seen by every query: there a unit owns
//! one vector and a chunk of the queries, and the chunks are added up in order.

// `#[cube]` and `CubeLaunch` add items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;
use cubecl::server::Handle;

use super::super::geometry::{Geometry, geometry_as_is};
use super::super::plan::Launch;
use super::launch::{is_strided, tensor};
use crate::Strided;
use crate::cube::{Input, buffer, narrow_all};
use crate::portable::reduce::{self, Chunks};

#[derive(CubeType, CubeLaunch)]
struct Inputs<'a, F: Float, N: Size> {
    weights: &'a [F],
    rows: Input<'a, F, N>,
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn space_kernel<F: Float, N: Size>(
    inputs: &Inputs<'_, F, N>,
    tokens: &mut [Vector<F, N>],
    geometry: Geometry,
    scale: f32,
    units: usize,
    #[comptime] lines: usize,
    #[comptime] is_strided: bool,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= units {
        terminate!();
    }
    let (row, line) = (ABSOLUTE_POS / lines, ABSOLUTE_POS % lines);
    let (head_kv, token) = (row % geometry.heads_kv, row / geometry.heads_kv);
    let (batch, key) = (token / geometry.keys(), token % geometry.keys());
    let at = geometry.key_position(key);
    let along_z = geometry.z.visitors_of(at.z, is_strided);
    let along_y = geometry.y.visitors_of(at.y, is_strided);
    let along_x = geometry.x.visitors_of(at.x, is_strided);
    let group = geometry.group_size();
    let slots = geometry.slots();
    let strides = &inputs.rows.strides;
    // From one visitor along the fastest axis to the next.
    let (next_weight, next_row) =
        (geometry.x.dilation * geometry.heads * slots, geometry.x.dilation * strides.x);

    let mut sum = Vector::<f32, N>::new(0.0f32);
    for head in head_kv * group..(head_kv + 1) * group {
        for i in 0..along_z.count {
            let z = along_z.query + i * geometry.z.dilation;
            let slot_z = along_z.slot(i);
            for j in 0..along_y.count {
                let y = along_y.query + j * geometry.y.dilation;
                let slot =
                    (slot_z * geometry.y.kernel_size + along_y.slot(j)) * geometry.x.kernel_size;
                let query = ((batch * geometry.z.queries + z) * geometry.y.queries + y)
                    * geometry.x.queries
                    + along_x.query;
                let weight = (query * geometry.heads + head) * slots + slot;
                let place = strides.vector(batch, z, y, along_x.query, head) + line;
                for k in 0..along_x.count {
                    let weight = inputs.weights[weight + k * next_weight + along_x.slot(k)];
                    let factor = Vector::new(f32::cast_from(weight));
                    let vector = inputs.rows.vectors[place + k * next_row];
                    sum += factor * Vector::<f32, N>::cast_from(vector);
                }
            }
        }
    }
    tokens[ABSOLUTE_POS] = narrow_all(sum * Vector::new(scale));
}

/// Sums over chunks of the queries, `[chunks, batch, additional, heads_kv, head_dim]`.
#[cube(launch_unchecked, address_type = "dynamic")]
fn additional_kernel<F: Float, N: Size>(
    inputs: &Inputs<'_, F, N>,
    partial: &mut [Vector<f32, N>],
    geometry: Geometry,
    scale: f32,
    chunks: Chunks,
    #[comptime] lines: usize,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= chunks.units {
        terminate!();
    }
    let (place, first) =
        (ABSOLUTE_POS % chunks.results, ABSOLUTE_POS / chunks.results * chunks.chunk);
    let (row, line) = (place / lines, place % lines);
    let (head_kv, rest) = (row % geometry.heads_kv, row / geometry.heads_kv);
    let (batch, token) = (rest / geometry.additional, rest % geometry.additional);
    let end = min(first + chunks.chunk, geometry.queries());
    let group = geometry.group_size();
    let (slots, slot) = (geometry.slots(), geometry.window_slots() + token);
    let strides = &inputs.rows.strides;

    let mut sum = Vector::<f32, N>::new(0.0f32);
    for query in first..end {
        let at = geometry.query_position(query);
        for head in head_kv * group..(head_kv + 1) * group {
            let row = (batch * geometry.queries() + query) * geometry.heads + head;
            let factor = Vector::new(f32::cast_from(inputs.weights[row * slots + slot]));
            let vector = inputs.rows.vectors[strides.vector(batch, at.z, at.y, at.x, head) + line];
            sum += factor * Vector::<f32, N>::cast_from(vector);
        }
    }
    partial[ABSOLUTE_POS] = sum * Vector::new(scale);
}

/// Launches the kernel for the tokens of the space.
pub(super) fn launch_space(launch: &Launch<'_>, weights: &Handle, rows: &Strided, tokens: &Handle) {
    let (problem, vector) = (launch.problem, launch.vector_size);
    let lines = problem.head_dim / vector;
    let units = launch.key_rows() * lines;
    let (cube_count, cube_dim) = launch.cubes(units);
    // SAFETY: every index is below the sizes that the buffers were checked against.
    unsafe {
        space_kernel::launch_unchecked(
            launch.client,
            cube_count,
            cube_dim,
            launch.address_type,
            vector,
            InputsLaunch::new(buffer(weights), Input::argument(tensor(rows), vector)),
            buffer(tokens),
            geometry_as_is(problem),
            problem.scale as f32,
            units,
            lines,
            is_strided(problem),
            launch.dtype,
        );
    }
}

/// Launches the kernels for the additional tokens.
pub(super) fn launch_additional(
    launch: &Launch<'_>,
    weights: &Handle,
    rows: &Strided,
    tokens: &Handle,
) {
    let (problem, vector) = (launch.problem, launch.vector_size);
    let lines = problem.head_dim / vector;
    let results = launch.additional_rows() * lines;
    let (argument, chunks) = reduce::chunks(results, problem.queries());
    let partial = reduce::workspace(launch, results * chunks * vector);
    let (cube_count, cube_dim) = launch.cubes(results * chunks);
    // SAFETY: every index is below the sizes that the buffers were checked against, or that the workspace was made with.
    unsafe {
        additional_kernel::launch_unchecked(
            launch.client,
            cube_count,
            cube_dim,
            launch.address_type,
            vector,
            InputsLaunch::new(buffer(weights), Input::argument(tensor(rows), vector)),
            buffer(&partial),
            geometry_as_is(problem),
            problem.scale as f32,
            argument,
            lines,
            launch.dtype,
        );
    }
    reduce::launch(launch, &partial, tokens, [results, chunks], vector);
}
