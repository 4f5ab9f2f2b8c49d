//! dk and dv over tiles of queries, those of every head of the group in turn.
//!
//! Queries pass through shared memory first, then the output's gradients, which are summed at once; the
//! queries come back for their sums.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs, clippy::too_many_arguments)]

use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::super::super::blueprint::Blueprint;
use super::super::super::plan::{Launch, buffer};
use super::super::mask::{Mask, common, is_common, seen, write_windows};
use super::super::products::{
    Memory, Source, accumulate, memory, scores, store_row, write_weights, zero_lines,
};
use super::super::staging::{Stage, stage};
use super::super::{grid, space};
use super::{AllStrides, all_strides};
use crate::tiles::{CubeTile, Position, Space};
use crate::{Operands, Saved};

/// What a unit sums for its rows.
#[derive(CubeType)]
struct State<N: Size> {
    dk: Array<Vector<f32, N>>,
    dv: Array<Vector<f32, N>>,
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn tiled_key_kernel<F: Float, N: Size>(
    query: &[Vector<F, N>],
    key: &[Vector<F, N>],
    value: &[Vector<F, N>],
    dout: &[Vector<F, N>],
    statistics: &[f32],
    dk: &mut [Vector<F, N>],
    dv: &mut [Vector<F, N>],
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
    let rows_each = comptime!(blueprint.rows_each);
    let (across, down) = comptime!((blueprint.across, blueprint.down));
    let (first, second) = comptime!((blueprint.first(), blueprint.second()));
    let mut memory = memory::<N>(blueprint);
    let corner = Position { z: tile.z.row, y: tile.y.row, x: tile.x.row };
    let keys = Source { walk: space.row_walk(&tile, &strides.key), corner };
    let values = Source { walk: space.row_walk(&tile, &strides.value), corner };
    if comptime!(blueprint.holds_rows) {
        let of_first = comptime!(Stage::rows(&blueprint, first));
        let of_second = comptime!(Stage::rows(&blueprint, second));
        stage::<F, N>(key, &mut memory.first, &keys.walk, &corner, unit, of_first);
        stage::<F, N>(value, &mut memory.second, &values.walk, &corner, unit, of_second);
    }
    write_windows(&mut memory.windows, &space, &tile, unit, blueprint);
    let mut state = State::<N> {
        dk: zero_lines(comptime!(rows_each * blueprint.lines_each(first))),
        dv: zero_lines(comptime!(rows_each * blueprint.lines_each(second))),
    };
    sync_cube();

    let common = common(&space, &tile, blueprint);
    for member in 0..space.group_size {
        let head = tile.head * space.group_size + member;
        let query_walk = space.column_walk(&tile, &strides.query, head);
        let dout_walk = space.column_walk(&tile, &strides.dout, head);
        for z in 0..tile.z.count {
            for y in 0..tile.y.count {
                for x in 0..tile.x.count {
                    let corner = tile.corner(z, y, x, comptime!(blueprint.cut()));
                    let is_all = is_common(&common, &corner, blueprint);
                    let queries = Source { walk: query_walk, corner };
                    let douts = Source { walk: dout_walk, corner };
                    step::<F, N>(
                        key,
                        &keys,
                        value,
                        &values,
                        query,
                        &queries,
                        dout,
                        &douts,
                        statistics,
                        &mut memory,
                        &mut state,
                        &space,
                        &tile,
                        head,
                        is_all,
                        scale,
                        unit,
                        blueprint,
                    );
                }
            }
        }
    }
    #[unroll]
    for i in 0..rows_each {
        let row = unit / across + comptime!(i * down);
        let at = tile.position(row, comptime!(blueprint.cut()));
        if tile.is_row(&at) {
            let place = space.row_place(&tile, &at);
            store_row::<F, N>(&state.dk, scale, dk, place, unit, i, first, blueprint);
            store_row::<F, N>(&state.dv, 1.0f32, dv, place, unit, i, second, blueprint);
        }
    }
}

/// Adds `ds q` and `p dout` of one tile of queries. Shared memory is free for the next one in the end.
#[cube]
fn step<F: Float, N: Size>(
    key: &[Vector<F, N>],
    keys: &Source,
    value: &[Vector<F, N>],
    values: &Source,
    query: &[Vector<F, N>],
    queries: &Source,
    dout: &[Vector<F, N>],
    douts: &Source,
    statistics: &[f32],
    memory: &mut Memory<N>,
    state: &mut State<N>,
    space: &Space,
    tile: &CubeTile,
    head: usize,
    is_all: bool,
    scale: f32,
    unit: usize,
    #[comptime] blueprint: Blueprint,
) {
    let (rows_each, columns_each) = comptime!((blueprint.rows_each, blueprint.columns_each));
    let (across, down) = comptime!((blueprint.across, blueprint.down));
    let (first, second) = comptime!((blueprint.first(), blueprint.second()));
    let column_tile = comptime!(blueprint.column_tile());
    let mut weights =
        scores::<F, N>(key, keys, query, queries, memory, unit, false, column_tile, blueprint);
    sync_cube();
    let mut gradients =
        scores::<F, N>(value, values, dout, douts, memory, unit, true, column_tile, blueprint);
    #[unroll]
    for j in 0..columns_each {
        let column = unit % across * columns_each + j;
        let at = space.nearest_column(tile, &queries.corner, column, column_tile);
        let place = space.column_place(tile, &at, head, space.heads * space.group_size);
        let lse = statistics[2 * place];
        let delta = statistics[2 * place + 1];
        #[unroll]
        for i in 0..rows_each {
            let at = comptime!(i * columns_each + j);
            let weight = (weights[at] * scale - lse).exp();
            weights[at] = weight;
            gradients[at] = weight * (gradients[at] - delta);
        }
    }
    if !is_all {
        #[unroll]
        for i in 0..rows_each {
            let row = unit / across + comptime!(i * down);
            let sight = seen(
                &memory.windows,
                &queries.corner,
                0usize,
                row,
                unit,
                comptime!(Mask::Windows),
                blueprint,
            );
            #[unroll]
            for j in 0..columns_each {
                let at = comptime!(i * columns_each + j);
                let is_seen = sight & comptime!(1u32 << j) != 0;
                weights[at] = select(is_seen, weights[at], 0.0f32);
                gradients[at] = select(is_seen, gradients[at], 0.0f32);
            }
        }
    }
    write_weights(&mut memory.weights, &weights, unit, blueprint);
    sync_cube();
    accumulate::<F, N>(
        &mut state.dv,
        dout,
        douts,
        memory,
        unit,
        comptime!(second.pieces() == 1),
        column_tile,
        second,
        blueprint,
    );
    sync_cube();
    write_weights(&mut memory.weights, &gradients, unit, blueprint);
    accumulate::<F, N>(
        &mut state.dk,
        query,
        queries,
        memory,
        unit,
        false,
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
    outputs: &Operands<Handle>,
) {
    let problem = &launch.problem.normalized();
    let (cube_count, cube_dim) = grid(launch, problem, blueprint);
    // SAFETY: every index is below the sizes that the buffers were checked against.
    unsafe {
        tiled_key_kernel::launch_unchecked(
            launch.client,
            cube_count,
            cube_dim,
            launch.address_type,
            blueprint.vector,
            buffer(&inputs.operands.query),
            buffer(&inputs.operands.key),
            buffer(&inputs.operands.value),
            buffer(&inputs.gradients.out),
            buffer(statistics),
            buffer(&outputs.key),
            buffer(&outputs.value),
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
    let kernel = tiled_key_kernel::TiledKeyKernel::new(
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
        super::strides_compilation(),
        (),
        blueprint.vector,
        *blueprint,
        dtype,
    );
    kernel.define()
}
