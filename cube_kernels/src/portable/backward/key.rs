//! dk and dv of the spatial keys, over the inverse window: the queries that see a key are an
//! interval along each axis.
//!
//! A unit owns one key row and one slice of both gradients, and sums over the query heads of its
//! kv head's group.

// `#[cube]` adds a module beside each function, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;
use cubecl::server::Handle;

use super::super::bias::RunBias;
use super::super::geometry::{Geometry, Position, geometry, of_token, owned};
use super::super::plan::{Launch, RowPlan};
use super::super::rows::{RowsLaunch, fixed, is_spoiled, store, zeros};
use super::gather::{Inputs, InputsLaunch, Outputs, OutputsLaunch, Sums, gather};
use crate::cube::buffer;
use crate::slicing::GATHER_LINES;
use crate::{KeyValue, Saved};

#[cube(launch_unchecked, address_type = "dynamic")]
fn key_kernel<F: Float, N: Size>(
    inputs: &Inputs<'_, F, N>,
    outputs: &mut Outputs<F, N>,
    geometry: Geometry,
    scale: f32,
    units: usize,
    #[comptime] plan: RowPlan,
    #[define(F)] _dtype: ElemType,
) {
    if ABSOLUTE_POS >= units {
        terminate!();
    }
    let slices = comptime!(plan.key.slices);
    let own = owned(ABSOLUTE_POS, geometry.keys(), geometry.heads_kv, slices);
    if comptime!(plan.repairs) {
        let size = comptime!(plan.vector);
        let is_dk = is_spoiled::<F, N>(&outputs.dk, own.row, own.slice, comptime!(plan.key), size);
        let is_dv =
            is_spoiled::<F, N>(&outputs.dv, own.row, own.slice, comptime!(plan.value), size);
        if !is_dk && !is_dv {
            terminate!();
        }
    }
    let geometry = of_token(geometry, inputs.sequences, own.token, plan);
    let group = geometry.group_size();

    let row = fixed::<F, N>(inputs.rows.first, inputs.rows.second, &own, scale);
    let mut sums =
        Sums::<N> { dk: zeros::<N>(comptime!(plan.key)), dv: zeros::<N>(comptime!(plan.value)) };
    let position = geometry.key_position(own.token);
    let along_z = geometry.z.visitors(position.z);
    let along_y = geometry.y.visitors(position.y);
    let along_x = geometry.x.visitors(position.x);
    for head in own.head * group..(own.head + 1) * group {
        for i in 0..along_z.count {
            let z = along_z.first + i * geometry.z.dilation;
            for j in 0..along_y.count {
                let y = along_y.first + j * geometry.y.dilation;
                let run = geometry.query_run(own.batch, head, z, y, along_x);
                let bias = inputs.bias_at.map(|first| {
                    let query = Position { z, y, x: along_x.first };
                    let place = first + geometry.bias_place(head, query, position);
                    RunBias::of_queries(inputs.statistics, place)
                });
                gather::<F, N>(&mut sums, &row, inputs, run, bias, plan);
            }
        }
    }
    let (dk, dv) = (&mut outputs.dk, &mut outputs.dv);
    store::<F, N>(&sums.dk, scale, dk, own.row, own.slice, comptime!(plan.key));
    store::<F, N>(&sums.dv, 1.0, dv, own.row, own.slice, comptime!(plan.value));
}

/// Launches the pass, or with `repairs` for those slices of rows that are there but not finite.
pub(super) fn launch(
    launch: &Launch,
    inputs: &Saved<Handle>,
    statistics: &Handle,
    outputs: &KeyValue<Handle>,
    repairs: bool,
) {
    let problem = launch.problem;
    let plan = launch.gather_plan(GATHER_LINES).repairing(repairs);
    let units = launch.key_rows() * plan.key.slices;
    let (cube_count, cube_dim) = launch.cubes(units);
    let [query, dout] =
        launch.queries_or(&inputs.operands.key, [&inputs.operands.query, &inputs.gradients.out]);
    // SAFETY: every index is below the sizes that the buffers were checked against.
    unsafe {
        key_kernel::launch_unchecked(
            launch.client,
            cube_count,
            cube_dim,
            launch.address_type,
            launch.vector_size,
            InputsLaunch::new(
                RowsLaunch::new(buffer(&inputs.operands.key), buffer(&inputs.operands.value)),
                RowsLaunch::new(buffer(query), buffer(dout)),
                buffer(statistics),
                launch.bias_at().into(),
                launch.sequences(&plan).as_ref().map(buffer).into(),
            ),
            OutputsLaunch::new(buffer(&outputs.key), buffer(&outputs.value)),
            geometry(launch),
            problem.scale as f32,
            units,
            plan,
            launch.dtype,
        );
    }
}
