//! Forward: streaming softmax over tiles of keys.
//!
//! A cube owns a tile of queries of one head, and each of its planes 16 or 32 rows of them: their
//! fragments of scores and sums stay in registers. Tiles of keys and values pass through shared memory, one
//! of each at a time; the next keys are on their way during the second product, the values during the
//! first.

mod cooperative;
mod kernel;
mod repair;
mod softmax;
mod store;

#[cfg(feature = "cuda")]
use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::blueprint::{Blueprint, Instruction};
#[cfg(feature = "cuda")]
use super::geometry::Space;
use super::geometry::{InputPair, Launching, tensor};
use crate::cube::{Cubes, Input, buffer, forward, grid};
use crate::{Operands, Outputs, Strided};
use cooperative::cooperative_kernel;
use kernel::forward_kernel;

/// Launches the kernel.
pub(super) fn launch(
    on: &Launching<'_>,
    blueprint: &Blueprint,
    cubes: Cubes,
    inputs: &Operands<Strided>,
    outputs: &Outputs<Handle>,
) {
    let problem = on.problem;
    let Operands { query, key, value, additional, bias } = inputs;
    // Empty buffers cannot be bound.
    let columns = if problem.keys() > 0 { [key, value] } else { [query, query] };
    let more = additional.as_ref().map_or(columns, |more| [&more.key, &more.value]);
    let vector = blueprint.vector;
    let bias = bias.as_ref().filter(|_| blueprint.has_bias);
    macro_rules! launch {
        ($kernel:path) => {
            $kernel(
                on.client,
                grid(on.client, cubes.count),
                CubeDim::new_1d(blueprint.units() as u32),
                on.address_type,
                vector,
                blueprint.vector_out(),
                cubes.space,
                forward::InputsLaunch::new(
                    Input::argument(tensor(query), vector),
                    InputPair::argument(columns.map(tensor), vector),
                    InputPair::argument(more.map(tensor), vector),
                    bias.map(|bias| buffer(&bias.handle)).into(),
                    cubes.sequences.as_ref().map(buffer).into(),
                ),
                forward::OutputsLaunch::new(buffer(&outputs.out), buffer(&outputs.lse)),
                blueprint.exponential.factor(problem.scale),
                problem.scale as f32,
                *blueprint,
                on.dtype,
            )
        };
    }
    // SAFETY: every index is below the sizes that the buffers were checked against.
    unsafe {
        match blueprint.instruction {
            Instruction::Mma | Instruction::Tf32 => launch!(forward_kernel::launch_unchecked),
            Instruction::Cmma(_) => launch!(cooperative_kernel::launch_unchecked),
        }
    }
}

/// The kernel of a blueprint, to be compiled without a device.
#[cfg(feature = "cuda")]
pub(super) fn definition(
    blueprint: &Blueprint,
    dtype: ElemType,
    settings: cubecl::ir::settings::KernelSettings,
    properties: std::sync::Arc<cubecl::ir::DeviceProperties>,
    target: std::sync::Arc<TargetProperties>,
) -> KernelDefinition {
    macro_rules! define {
        ($kernel:path) => {{
            let kernel = $kernel(
                settings,
                properties,
                target,
                Space::compilation(&blueprint.cut()),
                forward::Inputs::compilation(blueprint.has_bias, blueprint.is_packed),
                forward::Outputs::compilation(),
                (),
                (),
                blueprint.vector,
                blueprint.vector_out(),
                *blueprint,
                dtype,
            );
            kernel.define()
        }};
    }
    match blueprint.instruction {
        Instruction::Mma | Instruction::Tf32 => define!(forward_kernel::ForwardKernel::new),
        Instruction::Cmma(_) => define!(cooperative_kernel::CooperativeKernel::new),
    }
}
