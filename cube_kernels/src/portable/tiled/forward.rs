//! Forward: streaming softmax over tiles of keys.
//!
//! A cube owns a tile of queries of one head. Keys and values take turns in the same shared memory. The
//! units of a row agree on its largest score through shared memory; each sums the exponentials of its own
//! columns, and the sums are added up in the end.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs, clippy::too_many_arguments)]

use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::super::blueprint::Blueprint;
use super::super::plan::{Launch, additional_or, buffer};
use super::mask::{Mask, common, is_common, seen, write_windows};
use super::products::{
    Memory, Source, accumulate, memory, scores, store_row, write_weights, zero_lines, zero_scores,
};
use super::staging::{Stage, stage};
use super::{grid, space, strides};
#[cfg(feature = "cuda")]
use crate::tiles::strides_compilation;
use crate::tiles::{CubeTile, Position, Space, Strides};
use crate::{Operands, Outputs};

/// Strides of all inputs.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
struct AllStrides {
    query: Strides,
    key: Strides,
    value: Strides,
    additional_key: Strides,
    additional_value: Strides,
}

/// What a unit keeps of its rows.
#[derive(CubeType)]
struct State<N: Size> {
    /// Sums of weighted values.
    sums: Array<Vector<f32, N>>,
    /// The largest score of all units so far.
    maxima: Array<f32>,
    /// Sums of this unit's exponentials relative to it.
    totals: Array<f32>,
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn tiled_forward_kernel<F: Float, N: Size>(
    query: &[Vector<F, N>],
    key: &[Vector<F, N>],
    value: &[Vector<F, N>],
    additional_key: &[Vector<F, N>],
    additional_value: &[Vector<F, N>],
    out: &mut [Vector<F, N>],
    lse: &mut [f32],
    space: Space,
    strides: AllStrides,
    scale: f32,
    #[comptime] blueprint: Blueprint,
    #[define(F)] _dtype: ElemType,
) {
    if CUBE_POS >= space.cubes {
        terminate!();
    }
    let tile = space.tile(CUBE_POS, comptime!(blueprint.cut()));
    if !tile.has_rows() {
        terminate!();
    }
    let unit = UNIT_POS as usize;
    let head_kv = tile.head / space.group_size;
    let (rows, rows_each) = comptime!((blueprint.rows(), blueprint.rows_each));
    let mut memory = memory::<N>(blueprint);
    let queries = Source {
        walk: space.row_walk(&tile, &strides.query),
        corner: Position { z: tile.z.row, y: tile.y.row, x: tile.x.row },
    };
    if comptime!(blueprint.holds_rows) {
        stage::<F, N>(
            query,
            &mut memory.first,
            &queries.walk,
            &queries.corner,
            unit,
            comptime!(Stage::rows(&blueprint, blueprint.first())),
        );
    }
    write_windows(&mut memory.windows, &space, &tile, unit, blueprint);
    for turn in 0..comptime!(rows.div_ceil(blueprint.units())) {
        let row = unit + turn * comptime!(blueprint.units());
        if row < rows {
            // The least finite number: below every finite score, and WGSL has no literal for infinity.
            memory.maxima[row] = f32::min_value();
        }
    }
    let mut state = State::<N> {
        sums: zero_lines(comptime!(rows_each * blueprint.lines_each(blueprint.second()))),
        maxima: zero_scores(rows_each),
        totals: zero_scores(rows_each),
    };
    #[unroll]
    for i in 0..rows_each {
        state.maxima[i] = f32::min_value();
    }
    sync_cube();

    let common = common(&space, &tile, blueprint);
    let key_walk = space.column_walk(&tile, &strides.key, head_kv);
    let value_walk = space.column_walk(&tile, &strides.value, head_kv);
    for z in 0..tile.z.count {
        for y in 0..tile.y.count {
            for x in 0..tile.x.count {
                let corner = tile.corner(z, y, x, comptime!(blueprint.cut()));
                let is_all = is_common(&common, &corner, blueprint);
                let keys = Source { walk: key_walk, corner };
                let values = Source { walk: value_walk, corner };
                step::<F, N>(
                    query,
                    &queries,
                    key,
                    &keys,
                    value,
                    &values,
                    &mut memory,
                    &mut state,
                    0usize,
                    is_all,
                    scale,
                    unit,
                    comptime!(Mask::Windows),
                    blueprint,
                );
            }
        }
    }
    if comptime!(blueprint.has_additional) {
        let columns = comptime!(blueprint.columns());
        let key_walk = space.additional_walk(&tile, &strides.additional_key);
        let value_walk = space.additional_walk(&tile, &strides.additional_value);
        for number in 0..space.additional.div_ceil(columns) {
            let corner = Position { z: 0usize, y: 0usize, x: number * columns };
            let is_all = corner.x + columns <= space.additional;
            let keys = Source { walk: key_walk, corner };
            let values = Source { walk: value_walk, corner };
            step::<F, N>(
                query,
                &queries,
                additional_key,
                &keys,
                additional_value,
                &values,
                &mut memory,
                &mut state,
                space.additional,
                is_all,
                scale,
                unit,
                comptime!(Mask::Count),
                blueprint,
            );
        }
    }
    finish::<F, N>(&mut memory, &state, out, lse, &space, &tile, unit, blueprint);
}

/// Takes one tile of keys into the sums. Shared memory is free for the next one in the end.
#[cube]
fn step<F: Float, N: Size>(
    query: &[Vector<F, N>],
    queries: &Source,
    key: &[Vector<F, N>],
    keys: &Source,
    value: &[Vector<F, N>],
    values: &Source,
    memory: &mut Memory<N>,
    state: &mut State<N>,
    count: usize,
    is_all: bool,
    scale: f32,
    unit: usize,
    #[comptime] mask: Mask,
    #[comptime] blueprint: Blueprint,
) {
    let (rows_each, columns_each) = comptime!((blueprint.rows_each, blueprint.columns_each));
    let (across, down) = comptime!((blueprint.across, blueprint.down));
    let (rows, units) = comptime!((blueprint.rows(), blueprint.units()));
    let second = comptime!(blueprint.second());
    let column_tile = comptime!(match mask {
        Mask::Windows => blueprint.column_tile(),
        Mask::Count => [1, 1, blueprint.columns()],
    });
    let mut weights =
        scores::<F, N>(query, queries, key, keys, memory, unit, false, column_tile, blueprint);
    let mut sights = Array::<u32>::new(rows_each);
    #[unroll]
    for i in 0..rows_each {
        sights[i] = u32::MAX;
        #[unroll]
        for j in 0..columns_each {
            weights[comptime!(i * columns_each + j)] *= scale;
        }
    }
    if !is_all {
        #[unroll]
        for i in 0..rows_each {
            let row = unit / across + comptime!(i * down);
            let sight = seen(&memory.windows, &keys.corner, count, row, unit, mask, blueprint);
            sights[i] = sight;
            #[unroll]
            for j in 0..columns_each {
                let at = comptime!(i * columns_each + j);
                let is_seen = sight & comptime!(1u32 << j) != 0;
                weights[at] = select(is_seen, weights[at], f32::min_value());
            }
        }
    }
    #[unroll]
    for i in 0..rows_each {
        let row = unit / across + comptime!(i * down);
        let mut maximum = weights[comptime!(i * columns_each)];
        #[unroll]
        for j in 1..columns_each {
            maximum = max(maximum, weights[comptime!(i * columns_each + j)]);
        }
        memory.partials[row * comptime!(blueprint.partial_pitch()) + unit % across] = maximum;
    }
    sync_cube();
    stage::<F, N>(
        value,
        &mut memory.columns,
        &values.walk,
        &values.corner,
        unit,
        comptime!(Stage::columns(&blueprint, second, column_tile, 0)),
    );
    for turn in 0..comptime!(rows.div_ceil(units)) {
        let row = unit + turn * units;
        if row < rows {
            let mut maximum = memory.maxima[row];
            #[unroll]
            for x in 0..across {
                maximum =
                    max(maximum, memory.partials[row * comptime!(blueprint.partial_pitch()) + x]);
            }
            memory.maxima[row] = maximum;
        }
    }
    sync_cube();
    #[unroll]
    for i in 0..rows_each {
        let maximum = memory.maxima[unit / across + comptime!(i * down)];
        let decay = (state.maxima[i] - maximum).exp();
        state.maxima[i] = maximum;
        #[unroll]
        for j in 0..columns_each {
            let at = comptime!(i * columns_each + j);
            weights[at] = (weights[at] - maximum).exp();
        }
        if !is_all {
            // Where nothing was seen yet, what a row does not see is as large as its maximum.
            #[unroll]
            for j in 0..columns_each {
                let at = comptime!(i * columns_each + j);
                let is_seen = sights[i] & comptime!(1u32 << j) != 0;
                weights[at] = select(is_seen, weights[at], 0.0f32);
            }
        }
        let mut total = state.totals[i] * decay;
        #[unroll]
        for j in 0..columns_each {
            total += weights[comptime!(i * columns_each + j)];
        }
        state.totals[i] = total;
        let lines = comptime!(blueprint.lines_each(second));
        #[unroll]
        for l in 0..lines {
            state.sums[comptime!(i * lines + l)] *= Vector::new(decay);
        }
    }
    write_weights(&mut memory.weights, &weights, unit, blueprint);
    sync_cube();
    accumulate::<F, N>(
        &mut state.sums,
        value,
        values,
        memory,
        unit,
        true,
        column_tile,
        second,
        blueprint,
    );
    sync_cube();
}

/// Writes output and logsumexp.
#[cube]
fn finish<F: Float, N: Size>(
    memory: &mut Memory<N>,
    state: &State<N>,
    out: &mut [Vector<F, N>],
    lse: &mut [f32],
    space: &Space,
    tile: &CubeTile,
    unit: usize,
    #[comptime] blueprint: Blueprint,
) {
    let across = comptime!(blueprint.across);
    let pitch = comptime!(blueprint.partial_pitch());
    let x = unit % across;
    #[unroll]
    for i in 0..comptime!(blueprint.rows_each) {
        let row = unit / across + comptime!(i * blueprint.down);
        memory.partials[row * pitch + x] = state.totals[i];
    }
    sync_cube();
    #[unroll]
    for i in 0..comptime!(blueprint.rows_each) {
        let row = unit / across + comptime!(i * blueprint.down);
        let mut total = 0.0f32;
        #[unroll]
        for other in 0..across {
            total += memory.partials[row * pitch + other];
        }
        let at = tile.position(row, comptime!(blueprint.cut()));
        if tile.is_row(&at) {
            let place = space.row_place(tile, &at);
            store_row::<F, N>(
                &state.sums,
                1.0 / total,
                out,
                place,
                unit,
                i,
                comptime!(blueprint.second()),
                blueprint,
            );
            if x == 0 {
                lse[place] = state.maxima[i] + total.ln();
            }
        }
    }
}

/// Launches the kernel.
pub(in super::super) fn launch(
    launch: &Launch,
    blueprint: &Blueprint,
    inputs: &Operands<Handle>,
    outputs: &Outputs<Handle>,
) {
    let problem = &launch.problem.normalized();
    let (cube_count, cube_dim) = grid(launch, problem, blueprint);
    let [additional_key, additional_value] =
        additional_or(&inputs.query, inputs.additional.as_ref());
    let queries = problem.axes.map(|axis| axis.queries);
    let keys = problem.axes.map(|axis| axis.keys);
    let additional = [1, 1, problem.additional];
    let (heads, heads_kv) = (problem.heads, problem.heads_kv);
    let (dim, dim_v) = (problem.head_dim, problem.head_dim_v);
    let vector = blueprint.vector;
    // SAFETY: every index is below the sizes that the buffers were checked against.
    unsafe {
        tiled_forward_kernel::launch_unchecked(
            launch.client,
            cube_count,
            cube_dim,
            launch.address_type,
            vector,
            buffer(&inputs.query),
            buffer(&inputs.key),
            buffer(&inputs.value),
            buffer(additional_key),
            buffer(additional_value),
            buffer(&outputs.out),
            buffer(&outputs.lse),
            space(problem, blueprint),
            AllStridesLaunch::new(
                strides(queries, heads, dim, vector),
                strides(keys, heads_kv, dim, vector),
                strides(keys, heads_kv, dim_v, vector),
                strides(additional, heads_kv, dim, vector),
                strides(additional, heads_kv, dim_v, vector),
            ),
            problem.scale as f32,
            *blueprint,
            launch.dtype,
        );
    }
}

/// The kernel, to be compiled without a device.
#[cfg(feature = "cuda")]
pub(super) fn definition(
    blueprint: &Blueprint,
    dtype: ElemType,
    settings: cubecl::ir::settings::KernelSettings,
    properties: std::sync::Arc<cubecl::ir::DeviceProperties>,
    target: std::sync::Arc<TargetProperties>,
) -> KernelDefinition {
    let buffer = || BufferCompilationArg { inplace: None };
    let kernel = tiled_forward_kernel::TiledForwardKernel::new(
        settings,
        properties,
        target,
        buffer(),
        buffer(),
        buffer(),
        buffer(),
        buffer(),
        buffer(),
        buffer(),
        crate::tiles::space_compilation(&blueprint.cut()),
        AllStridesCompilationArg {
            query: strides_compilation(),
            key: strides_compilation(),
            value: strides_compilation(),
            additional_key: strides_compilation(),
            additional_value: strides_compilation(),
        },
        (),
        blueprint.vector,
        *blueprint,
        dtype,
    );
    kernel.define()
}
