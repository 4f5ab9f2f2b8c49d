//! Forward: streaming softmax over tiles of keys.
//!
//! A cube owns a tile of queries of one head. Keys and values take turns in the same shared memory. The
//! units of a row agree on its largest score through shared memory; each sums the exponentials of its own
//! columns, and the sums are added up in the end.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::super::blueprint::Blueprint;
use super::super::plan::{Launch, additional_or};
use super::bias::{HeadBias, Keys, Places, keys, with_bias};
use super::grid;
use super::mask::{Mask, Sight, common, is_common, seen, sees_nothing, write_windows};
use super::products::{
    Memory, OwnRow, Summed, accumulate, memory, scores, store_row, write_weights, zero_lines,
    zero_scores,
};
use super::source::{Source, Work, rows, sources, work};
use super::staging::{Stage, stage};
use super::tensor::Tensors;
use crate::cube::forward::{Inputs, InputsLaunch, Outputs, OutputsLaunch};
use crate::cube::{Input, InputPair, Position, Space, buffer};
use crate::{KernelError, Operands};

/// The bias, and where it stands.
#[derive(CubeType, CubeLaunch)]
struct Bias<'a, F: Float> {
    values: &'a [F],
    places: Places,
}

/// What the kernel reads.
#[derive(CubeType, CubeLaunch)]
struct BiasedInputs<'a, F: Float, N: Size> {
    tensors: Inputs<'a, F, N>,
    bias: ComptimeOption<Bias<'a, F>>,
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
    space: Space,
    inputs: &BiasedInputs<'_, F, N>,
    outputs: &mut Outputs<F, N>,
    scale: f32,
    #[comptime] blueprint: Blueprint,
    #[define(F)] _dtype: ElemType,
) {
    let work = work(space, inputs.tensors.sequences, scale, blueprint);
    let (of_rows, rows_each) = comptime!((blueprint.rows(), blueprint.rows_each));
    let mut memory = memory::<N>(blueprint);
    let queries = rows::<F, N>(&inputs.tensors.query, &work);
    if comptime!(blueprint.holds_rows) {
        let of_rows = comptime!(Stage::rows(&blueprint, blueprint.first()));
        stage::<F, N>(&queries, &mut memory.first, work.unit, of_rows);
    }
    write_windows(&mut memory.windows, &work, blueprint);
    for turn in 0..comptime!(of_rows.div_ceil(blueprint.units())) {
        let row = work.unit + turn * comptime!(blueprint.units());
        if row < of_rows {
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

    let common = common(&work, blueprint);
    let head = work.tile.head / work.space.group_size;
    let feed = inputs.tensors.columns.columns(&work.space, &work.tile, head);
    let bias =
        inputs.bias.as_ref().map(|bias| HeadBias::new(bias.values, bias.places, work.tile.head));
    for z in 0..work.tile.z.count {
        for y in 0..work.tile.y.count {
            for x in 0..work.tile.x.count {
                let corner = work.tile.corner(&Position { z, y, x }, comptime!(blueprint.cut()));
                let is_all = is_common(&common, &corner, blueprint);
                let sight = Sight { corner, is_all, mask: comptime!(Mask::Windows) };
                let keys = keys::<F, N, F>(sources::<F, N>(&feed, corner), bias);
                step::<F, N>(&queries, &keys, &mut memory, &mut state, &sight, &work, blueprint);
            }
        }
    }
    if comptime!(blueprint.has_additional) {
        let columns = comptime!(blueprint.columns());
        let feed = inputs.tensors.additional.additional(&work.space, &work.tile);
        for number in 0..work.space.additional.div_ceil(columns) {
            let corner = Position { z: 0usize, y: 0usize, x: number * columns };
            let is_all = corner.x + columns <= work.space.additional;
            let sight = Sight { corner, is_all, mask: comptime!(Mask::Count) };
            let none = ComptimeOption::new_None();
            let keys = keys::<F, N, F>(sources::<F, N>(&feed, corner), none);
            step::<F, N>(&queries, &keys, &mut memory, &mut state, &sight, &work, blueprint);
        }
    }
    finish::<F, N>(&mut memory, &state, outputs, &work, blueprint);
}

/// Takes one tile of keys into the sums. Shared memory is free for the next one in the end.
#[cube]
fn step<F: Float, N: Size>(
    queries: &Source<'_, F, N>,
    keys: &Keys<'_, F, N, F>,
    memory: &mut Memory<N>,
    state: &mut State<N>,
    sight: &Sight,
    work: &Work,
    #[comptime] blueprint: Blueprint,
) {
    let (rows_each, columns_each) = comptime!((blueprint.rows_each, blueprint.columns_each));
    let (rows, units) = comptime!((blueprint.rows(), blueprint.units()));
    let (unit, across) = (work.unit, comptime!(blueprint.across));
    let second = comptime!(blueprint.second());
    let column_tile = comptime!(sight.mask.column_tile(&blueprint));
    let mut weights =
        scores::<F, N>(queries, &keys.vectors.first, memory, unit, false, column_tile, blueprint);
    let bias = keys.bias.map(|bias| bias.of_step(&sight.corner, work, blueprint));
    let mut sights = Array::<u32>::new(rows_each);
    #[unroll]
    for i in 0..rows_each {
        sights[i] = u32::MAX;
        #[unroll]
        for j in 0..columns_each {
            let at = comptime!(i * columns_each + j);
            weights[at] *= work.scale;
            if comptime!(bias.is_some()) {
                weights[at] = with_bias(weights[at], &bias, i, j);
            }
        }
    }
    if !sight.is_all {
        #[unroll]
        for i in 0..rows_each {
            let bits = seen(&memory.windows, sight, work.row(i, blueprint), work, blueprint);
            sights[i] = bits;
            #[unroll]
            for j in 0..columns_each {
                let at = comptime!(i * columns_each + j);
                let is_seen = bits & comptime!(1u32 << j) != 0;
                weights[at] = select(is_seen, weights[at], f32::min_value());
            }
        }
    }
    #[unroll]
    for i in 0..rows_each {
        let row = work.row(i, blueprint);
        let mut maximum = weights[comptime!(i * columns_each)];
        #[unroll]
        for j in 1..columns_each {
            maximum = max(maximum, weights[comptime!(i * columns_each + j)]);
        }
        memory.partials[row * comptime!(blueprint.partial_pitch()) + unit % across] = maximum;
    }
    sync_cube();
    let of_values = comptime!(Stage::columns(&blueprint, second, column_tile, 0));
    stage::<F, N>(&keys.vectors.second, &mut memory.columns, unit, of_values);
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
        let maximum = memory.maxima[work.row(i, blueprint)];
        let decay = (state.maxima[i] - maximum).exp();
        state.maxima[i] = maximum;
        #[unroll]
        for j in 0..columns_each {
            let at = comptime!(i * columns_each + j);
            weights[at] = (weights[at] - maximum).exp();
        }
        if !sight.is_all {
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
    let summed = comptime!(Summed { operand: second, column_tile, is_staged: true });
    accumulate::<F, N>(&mut state.sums, &keys.vectors.second, memory, unit, summed, blueprint);
    sync_cube();
}

/// Writes output and logsumexp.
#[cube]
fn finish<F: Float, N: Size>(
    memory: &mut Memory<N>,
    state: &State<N>,
    outputs: &mut Outputs<F, N>,
    work: &Work,
    #[comptime] blueprint: Blueprint,
) {
    let across = comptime!(blueprint.across);
    let pitch = comptime!(blueprint.partial_pitch());
    let operand = comptime!(blueprint.second());
    let x = work.unit % across;
    #[unroll]
    for i in 0..comptime!(blueprint.rows_each) {
        memory.partials[work.row(i, blueprint) * pitch + x] = state.totals[i];
    }
    sync_cube();
    #[unroll]
    for i in 0..comptime!(blueprint.rows_each) {
        let row = work.row(i, blueprint);
        let mut total = 0.0f32;
        #[unroll]
        for other in 0..across {
            total += memory.partials[row * pitch + other];
        }
        let at = work.tile.position(row, comptime!(blueprint.cut()));
        if work.tile.is_row(&at) {
            let place = work.space.row_place(&work.tile, &at);
            let own = comptime!(OwnRow { i, operand, blueprint });
            let out = &mut outputs.out;
            let mut inverse = 1.0 / total;
            if comptime!(blueprint.has_origin && !blueprint.has_additional) {
                // A total of 0 is not enough to tell: scores of -inf have it, too.
                let is_empty = sees_nothing(&memory.windows, row, blueprint);
                inverse = select(is_empty, 0.0f32, inverse);
            }
            store_row::<F, N>(&state.sums, inverse, out, place, work.unit, own);
            if x == 0 {
                outputs.lse[place] = state.maxima[i] + total.ln();
            }
        }
    }
}

/// Launches the kernel.
pub(in super::super) fn launch(
    launch: &Launch,
    blueprint: &Blueprint,
    inputs: &Operands<Handle>,
    outputs: &crate::Outputs<Handle>,
) -> Result<(), KernelError> {
    let problem = &launch.problem.normalized();
    let (cubes, cube_count, cube_dim) = grid(launch, problem, blueprint)?;
    let tensors = Tensors::new(problem);
    let more = additional_or(&inputs.query, inputs.additional.as_ref());
    let bias = inputs.bias.as_ref();
    let bias = bias.map(|bias| BiasLaunch::new(buffer(bias), Places::argument(problem, 0)));
    let vector = blueprint.vector;
    // SAFETY: every index is below the sizes that the buffers were checked against.
    unsafe {
        tiled_forward_kernel::launch_unchecked(
            launch.client,
            cube_count,
            cube_dim,
            launch.address_type,
            vector,
            cubes.space,
            BiasedInputsLaunch::new(
                InputsLaunch::new(
                    Input::argument(tensors.query(&inputs.query), vector),
                    InputPair::argument(tensors.keys([&inputs.key, &inputs.value]), vector),
                    InputPair::argument(tensors.additional(more), vector),
                    None.into(),
                    cubes.sequences.as_ref().map(buffer).into(),
                ),
                bias.into(),
            ),
            OutputsLaunch::new(buffer(&outputs.out), buffer(&outputs.lse)),
            problem.scale as f32,
            *blueprint,
            launch.dtype,
        );
    }
    Ok(())
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
    let bias = BiasCompilationArg {
        values: BufferCompilationArg { inplace: None },
        places: Places::compilation(),
    };
    let bias = match blueprint.has_bias {
        true => ComptimeOptionCompilationArg::Some(bias),
        false => ComptimeOptionCompilationArg::None,
    };
    let kernel = tiled_forward_kernel::TiledForwardKernel::new(
        settings,
        properties,
        target,
        Space::compilation(&blueprint.cut()),
        BiasedInputsCompilationArg {
            tensors: Inputs::compilation(false, blueprint.is_packed),
            bias,
        },
        Outputs::compilation(),
        (),
        blueprint.vector,
        *blueprint,
        dtype,
    );
    kernel.define()
}
