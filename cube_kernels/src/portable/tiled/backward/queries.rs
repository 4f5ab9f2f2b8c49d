//! dq over tiles of keys.
//!
//! Values pass through shared memory first, then keys, so that those are there to be summed, at least
//! where they are staged whole.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs, clippy::too_many_arguments)]

use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::super::super::blueprint::Blueprint;
use super::super::super::plan::{Launch, additional_or, buffer};
use super::super::mask::{Mask, common, is_common, seen, write_windows};
use super::super::products::{
    Memory, Source, accumulate, memory, scores, store_row, write_weights, zero_lines, zero_scores,
};
use super::super::staging::{Stage, stage};
use super::super::{grid, space};
use super::{AllStrides, all_strides};
use crate::Saved;
use crate::tiles::{Position, Space};

/// What a unit keeps of its rows.
#[derive(CubeType)]
struct State<N: Size> {
    /// Sums of weighted keys.
    sums: Array<Vector<f32, N>>,
    lse: Array<f32>,
    delta: Array<f32>,
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn tiled_query_kernel<F: Float, N: Size>(
    query: &[Vector<F, N>],
    key: &[Vector<F, N>],
    value: &[Vector<F, N>],
    additional_key: &[Vector<F, N>],
    additional_value: &[Vector<F, N>],
    dout: &[Vector<F, N>],
    statistics: &[f32],
    dq: &mut [Vector<F, N>],
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
    let rows_each = comptime!(blueprint.rows_each);
    let (across, down) = comptime!((blueprint.across, blueprint.down));
    let (first, second) = comptime!((blueprint.first(), blueprint.second()));
    let mut memory = memory::<N>(blueprint);
    let corner = Position { z: tile.z.row, y: tile.y.row, x: tile.x.row };
    let queries = Source { walk: space.row_walk(&tile, &strides.query), corner };
    let douts = Source { walk: space.row_walk(&tile, &strides.dout), corner };
    if comptime!(blueprint.holds_rows) {
        let of_first = comptime!(Stage::rows(&blueprint, first));
        let of_second = comptime!(Stage::rows(&blueprint, second));
        stage::<F, N>(query, &mut memory.first, &queries.walk, &corner, unit, of_first);
        stage::<F, N>(dout, &mut memory.second, &douts.walk, &corner, unit, of_second);
    }
    write_windows(&mut memory.windows, &space, &tile, unit, blueprint);
    let mut state = State::<N> {
        sums: zero_lines(comptime!(rows_each * blueprint.lines_each(first))),
        lse: zero_scores(rows_each),
        delta: zero_scores(rows_each),
    };
    #[unroll]
    for i in 0..rows_each {
        let row = unit / across + comptime!(i * down);
        let at = space.nearest_row(&tile, row, comptime!(blueprint.cut()));
        let place = space.row_place(&tile, &at);
        state.lse[i] = statistics[2 * place];
        state.delta[i] = statistics[2 * place + 1];
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
                    dout,
                    &douts,
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
                dout,
                &douts,
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
    #[unroll]
    for i in 0..rows_each {
        let row = unit / across + comptime!(i * down);
        let at = tile.position(row, comptime!(blueprint.cut()));
        if tile.is_row(&at) {
            let place = space.row_place(&tile, &at);
            store_row::<F, N>(&state.sums, scale, dq, place, unit, i, first, blueprint);
        }
    }
}

/// Adds `ds k` of one tile of keys. Shared memory is free for the next one in the end.
#[cube]
fn step<F: Float, N: Size>(
    query: &[Vector<F, N>],
    queries: &Source,
    dout: &[Vector<F, N>],
    douts: &Source,
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
    let first = comptime!(blueprint.first());
    let column_tile = comptime!(match mask {
        Mask::Windows => blueprint.column_tile(),
        Mask::Count => [1, 1, blueprint.columns()],
    });
    let mut gradients =
        scores::<F, N>(dout, douts, value, values, memory, unit, true, column_tile, blueprint);
    sync_cube();
    let weights =
        scores::<F, N>(query, queries, key, keys, memory, unit, false, column_tile, blueprint);
    #[unroll]
    for i in 0..rows_each {
        #[unroll]
        for j in 0..columns_each {
            let at = comptime!(i * columns_each + j);
            let weight = (weights[at] * scale - state.lse[i]).exp();
            gradients[at] = weight * (gradients[at] - state.delta[i]);
        }
    }
    if !is_all {
        #[unroll]
        for i in 0..rows_each {
            let row = unit / across + comptime!(i * down);
            let sight = seen(&memory.windows, &keys.corner, count, row, unit, mask, blueprint);
            #[unroll]
            for j in 0..columns_each {
                let at = comptime!(i * columns_each + j);
                let is_seen = sight & comptime!(1u32 << j) != 0;
                gradients[at] = select(is_seen, gradients[at], 0.0f32);
            }
        }
    }
    write_weights(&mut memory.weights, &gradients, unit, blueprint);
    sync_cube();
    accumulate::<F, N>(
        &mut state.sums,
        key,
        keys,
        memory,
        unit,
        comptime!(first.pieces() == 1),
        column_tile,
        first,
        blueprint,
    );
    sync_cube();
}

/// Launches the kernel.
pub(in super::super::super) fn launch(
    launch: &Launch,
    blueprint: &Blueprint,
    inputs: &Saved<Handle>,
    statistics: &Handle,
    dq: &Handle,
) {
    let problem = &launch.problem.normalized();
    let (cube_count, cube_dim) = grid(launch, problem, blueprint);
    let [additional_key, additional_value] =
        additional_or(&inputs.operands.query, inputs.operands.additional.as_ref());
    // SAFETY: every index is below the sizes that the buffers were checked against.
    unsafe {
        tiled_query_kernel::launch_unchecked(
            launch.client,
            cube_count,
            cube_dim,
            launch.address_type,
            blueprint.vector,
            buffer(&inputs.operands.query),
            buffer(&inputs.operands.key),
            buffer(&inputs.operands.value),
            buffer(additional_key),
            buffer(additional_value),
            buffer(&inputs.gradients.out),
            buffer(statistics),
            buffer(dq),
            space(problem, blueprint),
            all_strides(problem, blueprint.vector),
            problem.scale as f32,
            *blueprint,
            launch.dtype,
        );
    }
}

/// The kernel, to be compiled without a device.
#[cfg(feature = "cuda")]
pub(in super::super) fn definition(
    blueprint: &Blueprint,
    dtype: ElemType,
    settings: cubecl::ir::settings::KernelSettings,
    properties: std::sync::Arc<cubecl::ir::DeviceProperties>,
    target: std::sync::Arc<TargetProperties>,
) -> KernelDefinition {
    let buffer = || BufferCompilationArg { inplace: None };
    let kernel = tiled_query_kernel::TiledQueryKernel::new(
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
        buffer(),
        crate::tiles::space_compilation(&blueprint.cut()),
        super::strides_compilation(),
        (),
        blueprint.vector,
        *blueprint,
        dtype,
    );
    kernel.define()
}
