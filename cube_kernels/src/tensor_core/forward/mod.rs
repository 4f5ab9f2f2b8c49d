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

use cubecl::client::Client;
use cubecl::ir::{AddressType, ElemType};
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::blueprint::{Blueprint, Instruction};
use super::geometry::{cubes, space, strides};
#[cfg(feature = "cuda")]
use super::geometry::{space_compilation, strides_compilation};
use super::layout::{buffer, cube_count};
use crate::{KeyValue, Operands, Outputs, Problem, Strided};
use cooperative::cooperative_kernel;
#[cfg(feature = "cuda")]
use kernel::AllStridesCompilationArg;
use kernel::{AllStridesLaunch, forward_kernel};

/// Launches the kernel.
pub(super) fn launch(
    client: &Client,
    problem: &Problem,
    dtype: ElemType,
    blueprint: &Blueprint,
    address_type: AddressType,
    inputs: &Operands<Strided>,
    outputs: &Outputs<Handle>,
) {
    let cube_count = cube_count(client, cubes(problem, blueprint));
    let cube_dim = CubeDim::new_1d(blueprint.units() as u32);
    // Empty buffers cannot be bound.
    let has_keys = problem.keys() > 0;
    let key = if has_keys { &inputs.key } else { &inputs.query };
    let value = if has_keys { &inputs.value } else { &inputs.query };
    let (more_key, more_value) = match &inputs.additional {
        Some(KeyValue { key, value }) => (key, value),
        None => (key, value),
    };
    let strides = |tensor| strides(tensor, blueprint.vector);
    macro_rules! launch {
        ($kernel:path) => {
            $kernel(
                client,
                cube_count,
                cube_dim,
                address_type,
                blueprint.vector,
                blueprint.vector_out(),
                buffer(&inputs.query.handle),
                buffer(&key.handle),
                buffer(&value.handle),
                buffer(&more_key.handle),
                buffer(&more_value.handle),
                buffer(&outputs.out),
                buffer(&outputs.lse),
                space(problem, blueprint),
                AllStridesLaunch::new(
                    strides(&inputs.query),
                    strides(key),
                    strides(value),
                    strides(more_key),
                    strides(more_value),
                ),
                blueprint.exponential.factor(problem.scale),
                problem.scale as f32,
                *blueprint,
                dtype,
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
    let buffer = || BufferCompilationArg { inplace: None };
    let strides = strides_compilation;
    let all_strides = AllStridesCompilationArg {
        query: strides(),
        key: strides(),
        value: strides(),
        additional_key: strides(),
        additional_value: strides(),
    };
    macro_rules! define {
        ($kernel:path) => {{
            let kernel = $kernel(
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
                space_compilation(blueprint),
                all_strides,
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
