//! dq over tiles of keys.
//!
//! Values pass through shared memory first, then keys, so that those are there to be summed, at least
//! where they are staged whole.

// `#[cube]` and `CubeLaunch` add items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::super::super::blueprint::Blueprint;
use super::super::super::plan::{Launch, additional_or};
use super::super::bias::{HeadBias, Keys, Places, keys, with_bias};
use super::super::grid;
use super::super::mask::{Mask, Sight, common, is_common, seen, write_windows};
use super::super::products::{
    Memory, OwnRow, Summed, accumulate, memory, scores, store_row, write_weights, zero_lines,
    zero_scores,
};
use super::super::source::{SourcePair, Work, row_pair, sources, work};
use super::super::staging::{Stage, stage};
use super::super::tensor::Tensors;
#[cfg(feature = "cuda")]
use crate::cube::optional_buffer;
use crate::cube::{InputPair, Position, Space, buffer};
use crate::{KernelError, Saved};

/// What the kernel reads.
#[derive(CubeType, CubeLaunch)]
struct Inputs<'a, F: Float, N: Size> {
    /// Queries and the output's gradient.
    rows: InputPair<'a, F, N>,
    columns: InputPair<'a, F, N>,
    /// There only with additional tokens, or without sequences: buffers are few.
    additional: ComptimeOption<InputPair<'a, F, N>>,
    statistics: &'a [f32],
    /// Of the bias in `statistics`, if there is one.
    places: ComptimeOption<Places>,
    sequences: ComptimeOption<&'a [u32]>,
}

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
    space: Space,
    inputs: &Inputs<'_, F, N>,
    dq: &mut [Vector<F, N>],
    scale: f32,
    #[comptime] blueprint: Blueprint,
    #[define(F)] _dtype: ElemType,
) {
    let work = work(space, inputs.sequences, scale, blueprint);
    let rows_each = comptime!(blueprint.rows_each);
    let (first, second) = comptime!((blueprint.first(), blueprint.second()));
    let mut memory = memory::<N>(blueprint);
    let rows = row_pair::<F, N>(&inputs.rows, &work);
    if comptime!(blueprint.holds_rows) {
        let of_first = comptime!(Stage::rows(&blueprint, first));
        let of_second = comptime!(Stage::rows(&blueprint, second));
        stage::<F, N>(&rows.first, &mut memory.first, work.unit, of_first);
        stage::<F, N>(&rows.second, &mut memory.second, work.unit, of_second);
    }
    write_windows(&mut memory.windows, &work, blueprint);
    let mut state = State::<N> {
        sums: zero_lines(comptime!(rows_each * blueprint.lines_each(first))),
        lse: zero_scores(rows_each),
        delta: zero_scores(rows_each),
    };
    #[unroll]
    for i in 0..rows_each {
        let row = work.row(i, blueprint);
        let at = work.space.nearest_row(&work.tile, row, comptime!(blueprint.cut()));
        let place = work.space.row_place(&work.tile, &at);
        state.lse[i] = inputs.statistics[2 * place];
        state.delta[i] = inputs.statistics[2 * place + 1];
    }
    sync_cube();

    let common = common(&work, blueprint);
    let head = work.tile.head / work.space.group_size;
    let feed = inputs.columns.columns(&work.space, &work.tile, head);
    let bias = inputs.places.map(|places| HeadBias::new(inputs.statistics, places, work.tile.head));
    for z in 0..work.tile.z.count {
        for y in 0..work.tile.y.count {
            for x in 0..work.tile.x.count {
                let corner = work.tile.corner(&Position { z, y, x }, comptime!(blueprint.cut()));
                let is_all = is_common(&common, &corner, blueprint);
                let sight = Sight { corner, is_all, mask: comptime!(Mask::Windows) };
                let keys = keys::<F, N, f32>(sources::<F, N>(&feed, corner), bias);
                step::<F, N>(&rows, &keys, &mut memory, &mut state, &sight, &work, blueprint);
            }
        }
    }
    if comptime!(blueprint.has_additional) {
        let columns = comptime!(blueprint.columns());
        let additional = inputs.additional.as_ref().unwrap();
        let feed = additional.additional(&work.space, &work.tile);
        for number in 0..work.space.additional.div_ceil(columns) {
            let corner = Position { z: 0usize, y: 0usize, x: number * columns };
            let is_all = corner.x + columns <= work.space.additional;
            let sight = Sight { corner, is_all, mask: comptime!(Mask::Count) };
            let none = ComptimeOption::new_None();
            let keys = keys::<F, N, f32>(sources::<F, N>(&feed, corner), none);
            step::<F, N>(&rows, &keys, &mut memory, &mut state, &sight, &work, blueprint);
        }
    }
    #[unroll]
    for i in 0..rows_each {
        let at = work.tile.position(work.row(i, blueprint), comptime!(blueprint.cut()));
        if work.tile.is_row(&at) {
            let place = work.space.row_place(&work.tile, &at);
            let row = comptime!(OwnRow { i, operand: first, blueprint });
            store_row::<F, N>(&state.sums, scale, dq, place, work.unit, row);
        }
    }
}

/// Adds `ds k` of one tile of keys. Shared memory is free for the next one in the end.
#[cube]
fn step<F: Float, N: Size>(
    rows: &SourcePair<'_, F, N>,
    keys: &Keys<'_, F, N, f32>,
    memory: &mut Memory<N>,
    state: &mut State<N>,
    sight: &Sight,
    work: &Work,
    #[comptime] blueprint: Blueprint,
) {
    let (rows_each, columns_each) = comptime!((blueprint.rows_each, blueprint.columns_each));
    let first = comptime!(blueprint.first());
    let unit = work.unit;
    let tile = comptime!(sight.mask.column_tile(&blueprint));
    let (own, others) = (&rows.second, &keys.vectors.second);
    let mut gradients = scores::<F, N>(own, others, memory, unit, true, tile, blueprint);
    sync_cube();
    let (own, others) = (&rows.first, &keys.vectors.first);
    let weights = scores::<F, N>(own, others, memory, unit, false, tile, blueprint);
    let bias = keys.bias.map(|bias| bias.of_step(&sight.corner, work, blueprint));
    #[unroll]
    for i in 0..rows_each {
        #[unroll]
        for j in 0..columns_each {
            let at = comptime!(i * columns_each + j);
            let score = with_bias(weights[at] * work.scale, &bias, i, j);
            let weight = (score - state.lse[i]).exp();
            gradients[at] = weight * (gradients[at] - state.delta[i]);
        }
    }
    if !sight.is_all {
        #[unroll]
        for i in 0..rows_each {
            let bits = seen(&memory.windows, sight, work.row(i, blueprint), work, blueprint);
            #[unroll]
            for j in 0..columns_each {
                let at = comptime!(i * columns_each + j);
                let is_seen = bits & comptime!(1u32 << j) != 0;
                gradients[at] = select(is_seen, gradients[at], 0.0f32);
            }
        }
    }
    write_weights(&mut memory.weights, &gradients, unit, blueprint);
    sync_cube();
    let is_staged = comptime!(first.pieces() == 1);
    let summed = comptime!(Summed { operand: first, column_tile: tile, is_staged });
    accumulate::<F, N>(&mut state.sums, &keys.vectors.first, memory, unit, summed, blueprint);
    sync_cube();
}

/// Launches the kernel.
pub(in super::super::super) fn launch(
    launch: &Launch,
    blueprint: &Blueprint,
    inputs: &Saved<Handle>,
    statistics: &Handle,
    dq: &Handle,
) -> Result<(), KernelError> {
    let problem = &launch.problem.normalized();
    let (cubes, cube_count, cube_dim) = grid(launch, problem, blueprint)?;
    let tensors = Tensors::new(problem);
    let Saved { operands, gradients, .. } = inputs;
    let more = additional_or(&operands.query, operands.additional.as_ref());
    let vector = blueprint.vector;
    let additional = || InputPair::argument(tensors.additional(more), vector);
    let additional = (!blueprint.is_packed).then(additional);
    // SAFETY: every index is below the sizes that the buffers were checked against.
    unsafe {
        tiled_query_kernel::launch_unchecked(
            launch.client,
            cube_count,
            cube_dim,
            launch.address_type,
            vector,
            cubes.space,
            InputsLaunch::new(
                InputPair::argument(tensors.queries([&operands.query, &gradients.out]), vector),
                InputPair::argument(tensors.keys([&operands.key, &operands.value]), vector),
                additional.into(),
                buffer(statistics),
                launch.bias_at().map(|first| Places::argument(problem, first)).into(),
                cubes.sequences.as_ref().map(buffer).into(),
            ),
            buffer(dq),
            problem.scale as f32,
            *blueprint,
            launch.dtype,
        );
    }
    Ok(())
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
    let (pair, buffer) = (InputPair::compilation, || BufferCompilationArg { inplace: None });
    let inputs = InputsCompilationArg {
        rows: pair(),
        columns: pair(),
        additional: match blueprint.is_packed {
            true => ComptimeOptionCompilationArg::None,
            false => ComptimeOptionCompilationArg::Some(pair()),
        },
        statistics: buffer(),
        places: Places::compilation_if(blueprint.has_bias),
        sequences: optional_buffer(blueprint.is_packed),
    };
    let kernel = tiled_query_kernel::TiledQueryKernel::new(
        settings,
        properties,
        target,
        Space::compilation(&blueprint.cut()),
        inputs,
        buffer(),
        (),
        blueprint.vector,
        *blueprint,
        dtype,
    );
    kernel.define()
}
