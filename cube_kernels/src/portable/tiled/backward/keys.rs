//! dk and dv over tiles of queries, those of every head of the group in turn.
//!
//! Queries pass through shared memory first, then the output's gradients, which are summed at once; the
//! queries come back for their sums.

// `#[cube]` and `CubeLaunch` add items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::super::super::blueprint::Blueprint;
use super::super::super::plan::Launch;
use super::super::bias::{HeadBias, Places, with_bias};
use super::super::grid;
use super::super::mask::{Mask, Sight, common, is_common, seen, write_windows};
use super::super::products::{
    Memory, OwnRow, Summed, accumulate, memory, scores, store_row, write_weights, zero_lines,
};
use super::super::source::{SourcePair, Work, row_pair, sources, work};
use super::super::staging::{Stage, stage};
use super::super::tensor::Tensors;
#[cfg(feature = "cuda")]
use crate::cube::optional_buffer;
use crate::cube::{InputPair, Position, Space, buffer};
use crate::{KernelError, KeyValue, Saved};

/// What the kernel reads. Additional keys have a kernel of their own, and buffers are few.
#[derive(CubeType, CubeLaunch)]
struct Inputs<'a, F: Float, N: Size> {
    rows: InputPair<'a, F, N>,
    /// Queries and the output's gradient.
    columns: InputPair<'a, F, N>,
    statistics: &'a [f32],
    /// Of the bias in `statistics`, if there is one.
    places: ComptimeOption<Places>,
    sequences: ComptimeOption<&'a [u32]>,
}

/// What it writes.
#[derive(CubeType, CubeLaunch)]
struct Outputs<F: Float, N: Size> {
    dk: Box<[Vector<F, N>]>,
    dv: Box<[Vector<F, N>]>,
}

/// What a unit sums for its rows.
#[derive(CubeType)]
struct State<N: Size> {
    dk: Array<Vector<f32, N>>,
    dv: Array<Vector<f32, N>>,
}

/// A tile of queries of head `head`.
#[derive(CubeType)]
struct Queries<'a, F: Float, N: Size> {
    vectors: SourcePair<'a, F, N>,
    statistics: &'a [f32],
    head: usize,
    bias: ComptimeOption<HeadBias<'a, f32>>,
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn tiled_key_kernel<F: Float, N: Size>(
    space: Space,
    inputs: &Inputs<'_, F, N>,
    outputs: &mut Outputs<F, N>,
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
        dk: zero_lines(comptime!(rows_each * blueprint.lines_each(first))),
        dv: zero_lines(comptime!(rows_each * blueprint.lines_each(second))),
    };
    sync_cube();

    let common = common(&work, blueprint);
    for member in 0..work.space.group_size {
        let head = work.tile.head * work.space.group_size + member;
        let feed = inputs.columns.columns(&work.space, &work.tile, head);
        let bias = inputs.places.map(|places| HeadBias::new(inputs.statistics, places, head));
        for z in 0..work.tile.z.count {
            for y in 0..work.tile.y.count {
                for x in 0..work.tile.x.count {
                    let corner =
                        work.tile.corner(&Position { z, y, x }, comptime!(blueprint.cut()));
                    let is_all = is_common(&common, &corner, blueprint);
                    let sight = Sight { corner, is_all, mask: comptime!(Mask::Windows) };
                    let vectors = sources::<F, N>(&feed, corner);
                    let queries = queries::<F, N>(vectors, inputs.statistics, head, bias);
                    let (memory, state) = (&mut memory, &mut state);
                    step::<F, N>(&rows, &queries, memory, state, &sight, &work, blueprint);
                }
            }
        }
    }
    #[unroll]
    for i in 0..rows_each {
        let at = work.tile.position(work.row(i, blueprint), comptime!(blueprint.cut()));
        if work.tile.is_row(&at) {
            let place = work.space.row_place(&work.tile, &at);
            let row = comptime!(OwnRow { i, operand: first, blueprint });
            store_row::<F, N>(&state.dk, scale, &mut outputs.dk, place, work.unit, row);
            let row = comptime!(OwnRow { i, operand: second, blueprint });
            store_row::<F, N>(&state.dv, 1.0f32, &mut outputs.dv, place, work.unit, row);
        }
    }
}

#[cube]
fn queries<'a, F: Float, N: Size>(
    vectors: SourcePair<'a, F, N>,
    statistics: &'a [f32],
    head: usize,
    bias: ComptimeOption<HeadBias<'a, f32>>,
) -> Queries<'a, F, N> {
    Queries::<'a, F, N> { vectors, statistics, head, bias }
}

/// Adds `ds q` and `p dout` of one tile of queries. Shared memory is free for the next one in the end.
#[cube]
fn step<F: Float, N: Size>(
    rows: &SourcePair<'_, F, N>,
    queries: &Queries<'_, F, N>,
    memory: &mut Memory<N>,
    state: &mut State<N>,
    sight: &Sight,
    work: &Work,
    #[comptime] blueprint: Blueprint,
) {
    let (rows_each, columns_each) = comptime!((blueprint.rows_each, blueprint.columns_each));
    let (first, second) = comptime!((blueprint.first(), blueprint.second()));
    let (space, unit) = (&work.space, work.unit);
    let tile = comptime!(blueprint.column_tile());
    let (own, others) = (&rows.first, &queries.vectors.first);
    let mut weights = scores::<F, N>(own, others, memory, unit, false, tile, blueprint);
    sync_cube();
    let (own, others) = (&rows.second, &queries.vectors.second);
    let mut gradients = scores::<F, N>(own, others, memory, unit, true, tile, blueprint);
    let bias = queries.bias.map(|bias| bias.of_step(&sight.corner, work, blueprint));
    #[unroll]
    for j in 0..columns_each {
        let column = unit % comptime!(blueprint.across) * columns_each + j;
        let at = space.nearest_column(&work.tile, &sight.corner, column, tile);
        let heads = space.heads * space.group_size;
        let place = space.column_place(&work.tile, &at, queries.head, heads);
        let lse = queries.statistics[2 * place];
        let delta = queries.statistics[2 * place + 1];
        #[unroll]
        for i in 0..rows_each {
            let at = comptime!(i * columns_each + j);
            let score = with_bias(weights[at] * work.scale, &bias, i, j);
            let weight = (score - lse).exp();
            weights[at] = weight;
            gradients[at] = weight * (gradients[at] - delta);
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
                weights[at] = select(is_seen, weights[at], 0.0f32);
                gradients[at] = select(is_seen, gradients[at], 0.0f32);
            }
        }
    }
    write_weights(&mut memory.weights, &weights, unit, blueprint);
    sync_cube();
    let is_staged = comptime!(second.pieces() == 1);
    let summed = comptime!(Summed { operand: second, column_tile: tile, is_staged });
    accumulate::<F, N>(&mut state.dv, &queries.vectors.second, memory, unit, summed, blueprint);
    sync_cube();
    write_weights(&mut memory.weights, &gradients, unit, blueprint);
    let summed = comptime!(Summed { operand: first, column_tile: tile, is_staged: false });
    accumulate::<F, N>(&mut state.dk, &queries.vectors.first, memory, unit, summed, blueprint);
    sync_cube();
}

/// Launches the kernel.
pub(in super::super::super) fn launch(
    launch: &Launch,
    blueprint: &Blueprint,
    inputs: &Saved<Handle>,
    statistics: &Handle,
    outputs: &KeyValue<Handle>,
) -> Result<(), KernelError> {
    let problem = &launch.problem.normalized();
    let (cubes, cube_count, cube_dim) = grid(launch, problem, blueprint)?;
    let tensors = Tensors::new(problem);
    let Saved { operands, gradients, .. } = inputs;
    let vector = blueprint.vector;
    // SAFETY: every index is below the sizes that the buffers were checked against.
    unsafe {
        tiled_key_kernel::launch_unchecked(
            launch.client,
            cube_count,
            cube_dim,
            launch.address_type,
            vector,
            cubes.space,
            InputsLaunch::new(
                InputPair::argument(tensors.keys([&operands.key, &operands.value]), vector),
                InputPair::argument(tensors.queries([&operands.query, &gradients.out]), vector),
                buffer(statistics),
                launch.bias_at().map(|first| Places::argument(problem, first)).into(),
                cubes.sequences.as_ref().map(buffer).into(),
            ),
            OutputsLaunch::new(buffer(&outputs.key), buffer(&outputs.value)),
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
    let places = Places::compilation_if(blueprint.has_bias);
    let (rows, columns) = (pair(), pair());
    let sequences = optional_buffer(blueprint.is_packed);
    let inputs = InputsCompilationArg { rows, columns, statistics: buffer(), places, sequences };
    let kernel = tiled_key_kernel::TiledKeyKernel::new(
        settings,
        properties,
        target,
        Space::compilation(&blueprint.cut()),
        inputs,
        OutputsCompilationArg { dk: buffer(), dv: buffer() },
        (),
        blueprint.vector,
        *blueprint,
        dtype,
    );
    kernel.define()
}
