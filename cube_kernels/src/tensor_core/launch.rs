//! Launches: what the kernels take, and the checks before they run.

use std::sync::{Arc, LazyLock, Mutex};

use cubecl::client::Client;
use cubecl::ir::{AddressType, ElemType, FloatKind};
use cubecl::server::Handle;

use super::geometry::Launching;
use super::packed::All;
use super::tune::{fastest, representative, shortlist};
use super::{
    Blueprint, Capability, Choice, Instruction, candidates, plan, plan_tiled, unsupported,
};
use crate::choices::{Choices, remembered};
use crate::cube::{Cubes, Extent, addresses};
use crate::view::{check_operands, check_outputs};
use crate::{KernelError, Operands, Outputs, Packed, Problem, Shape, Strided};

/// Attention with logsumexp, by the blueprint that `choice` takes: inputs in f16 or bf16, or in f32 that
/// is rounded to tf32 where it is multiplied; outputs contiguous.
///
/// With [`FloatKind::TF32`] as the type, tensors are f32 and products round it. f32 itself is refused.
///
/// Returns when the work is enqueued; the first use of a blueprint compiles it.
///
/// # Errors
///
/// If the device cannot run the problem or a buffer is too small; then nothing was launched.
pub fn forward(
    client: &Client,
    problem: &Problem,
    dtype: ElemType,
    choice: Choice,
    inputs: &Operands<Strided>,
    outputs: &Outputs<Handle>,
) -> Result<(), KernelError> {
    let capability = capability(client, dtype)?;
    let vector = vector(problem, inputs, dtype);
    let blueprint = chosen(&KNOWN, problem, (capability, vector, dtype, choice), || {
        if choice == Choice::Measured && problem.queries() > 0 {
            return measured(client, problem, dtype, &capability, vector, inputs, outputs);
        }
        Ok(planned(problem, &capability, vector, choice))
    })?;
    forward_with(client, &blueprint, problem, dtype, inputs, outputs)
}

/// What was chosen for problems.
static KNOWN: Choices<How, Blueprint> = LazyLock::new(Mutex::default);

/// The blueprint with the tiles that are asked for, where there is one, or else by the model.
fn planned(
    problem: &Problem,
    capability: &Capability,
    vector: usize,
    choice: Choice,
) -> Option<Blueprint> {
    let tiled = |tiling| plan_tiled(problem, capability, vector, tiling);
    choice.tiling().and_then(tiled).or_else(|| plan(problem, capability, vector))
}

/// [`forward()`] of all sequences of a packed batch in one launch. Tensors are the packed ones, of the shapes that
/// [`Packed::line`] has; outputs are contiguous.
///
/// One blueprint computes all, the one for the sequence that has most to do: by `choice`, but not by measurement.
///
/// # Errors
///
/// If the device cannot run the sequences or a buffer is too small; then nothing was launched.
pub fn forward_packed(
    client: &Client,
    packed: &Packed,
    dtype: ElemType,
    choice: Choice,
    inputs: &Operands<Strided>,
    outputs: &Outputs<Handle>,
) -> Result<(), KernelError> {
    let capability = capability(client, dtype)?;
    let vector = vector(packed.line(), inputs, dtype);
    let (all, choice) = (All::of(packed), choice.modelled());
    let how = (capability, vector, dtype, choice);
    let blueprint =
        chosen(&KNOWN, &all.like, how, || Ok(planned(&all.like, &capability, vector, choice)))?;
    run(client, &all.blueprint(&blueprint), Extent::Packed(packed), dtype, inputs, outputs)
}

/// What kernels that multiply a type may use of the device.
pub(super) fn capability(client: &Client, dtype: ElemType) -> Result<Capability, KernelError> {
    let capability = Capability::of(client).ok_or(KernelError::Device(MATRIX_UNITS))?;
    match dtype {
        ElemType::Float(FloatKind::F16) => Some(capability),
        ElemType::Float(FloatKind::BF16) => capability.has_bf16.then_some(capability),
        ElemType::Float(FloatKind::TF32) => capability.with_tf32(),
        _ => None,
    }
    .ok_or_else(|| element_type(dtype))
}

/// What a type that kernels multiply is in memory.
pub(super) fn stored(dtype: ElemType) -> ElemType {
    match dtype {
        ElemType::Float(FloatKind::TF32) => ElemType::Float(FloatKind::F32),
        _ => dtype,
    }
}

/// The blueprint that is the fastest on these tensors.
fn measured(
    client: &Client,
    problem: &Problem,
    dtype: ElemType,
    capability: &Capability,
    vector: usize,
    inputs: &Operands<Strided>,
    outputs: &Outputs<Handle>,
) -> Result<Option<Blueprint>, KernelError> {
    let like = representative(problem);
    let blueprints = shortlist(candidates(&like, capability, vector), &like);
    if blueprints.is_empty() {
        return Ok(None);
    }
    let launch = {
        let (client, problem) = (client.clone(), *problem);
        let (inputs, outputs) = (inputs.clone(), outputs.clone());
        move |blueprint: &Blueprint| {
            forward_with(&client, blueprint, &problem, dtype, &inputs, &outputs)
        }
    };
    fastest(client, capability, &like, dtype, blueprints, Arc::new(launch)).map(Some)
}

/// Blueprints are chosen by what may be used of the device, the elements that are read at a time, their type and the
/// manner of choice.
pub(super) type How = (Capability, usize, ElemType, Choice);

/// What `choose` gives for a problem that the kernels cover, or gave.
pub(super) fn chosen<T: Clone>(
    choices: &Choices<How, T>,
    problem: &Problem,
    how: How,
    choose: impl FnOnce() -> Result<Option<T>, KernelError>,
) -> Result<T, KernelError> {
    if let Some(reason) = unsupported(problem) {
        return Err(KernelError::Problem(reason));
    }
    let mut failure = KernelError::Problem("no blueprint fits the device".to_string());
    let choose = || match choose() {
        Ok(choice) => choice,
        Err(error) => {
            failure = error;
            None
        }
    };
    // What is measured is measured for all lengths of a bucket.
    let like = match how.3 {
        Choice::Measured => representative(problem),
        _ => *problem,
    };
    remembered(choices, &like, how, choose).ok_or(failure)
}

/// [`forward()`] by a given blueprint, which has to be one of the problem's candidates.
///
/// # Errors
///
/// If the device cannot run the problem or a buffer is too small; then nothing was launched.
///
/// # Panics
///
/// If the blueprint is none for the problem or the type.
pub fn forward_with(
    client: &Client,
    blueprint: &Blueprint,
    problem: &Problem,
    dtype: ElemType,
    inputs: &Operands<Strided>,
    outputs: &Outputs<Handle>,
) -> Result<(), KernelError> {
    assert!(blueprint.fits(problem), "{blueprint} is no blueprint for {problem:?}");
    run(client, blueprint, Extent::Problem(problem), dtype, inputs, outputs)
}

/// Checks, and launches the kernel of a blueprint that fits.
fn run(
    client: &Client,
    blueprint: &Blueprint,
    extent: Extent<'_>,
    dtype: ElemType,
    inputs: &Operands<Strided>,
    outputs: &Outputs<Handle>,
) -> Result<(), KernelError> {
    let problem = extent.problem();
    let size = stored(dtype).size();
    check_operands(problem, inputs, size)?;
    check_outputs(problem, outputs, size)?;
    check_instruction(blueprint, dtype);
    let address_type = address_type(client, problem, dtype, views(problem, inputs))?;
    if Shape::lse(problem).elements() > 0 {
        let on = Launching { client, problem, dtype: stored(dtype), address_type };
        let cubes = Cubes::new(client, extent, &blueprint.cut())?;
        super::forward::launch(&on, blueprint, cubes, inputs, outputs);
    }
    Ok(())
}

/// A tensor with its shape in the problem.
pub(super) type View<'a> = (Shape, &'a Strided);

/// What both passes read.
pub(super) fn views<'a>(
    problem: &Problem,
    operands: &'a Operands<Strided>,
) -> impl Iterator<Item = View<'a>> {
    operands.iter().map(|(operand, tensor)| (operand.shape(problem), tensor))
}

/// The type of the indices into these tensors.
pub(super) fn address_type<'a>(
    client: &Client,
    problem: &Problem,
    dtype: ElemType,
    tensors: impl Iterator<Item = View<'a>>,
) -> Result<AddressType, KernelError> {
    if !matches!(dtype, ElemType::Float(FloatKind::F16 | FloatKind::BF16 | FloatKind::TF32)) {
        return Err(element_type(dtype));
    }
    // Behind the last element of a tile that is cut off by the end of an axis.
    let behind = |(shape, tensor): View<'_>| -> usize {
        tensor.strides.iter().zip(shape.lengths()).map(|(stride, length)| stride * length).sum()
    };
    let largest = tensors.map(behind).chain([problem.largest_tensor()]).max().unwrap_or(0);
    addresses(client, largest)
}

/// What [`capability`] misses on a device.
pub(super) const MATRIX_UNITS: &str =
    "matrix units that multiply f16 and bf16 and sum in f32 as these kernels need it";

fn element_type(got: ElemType) -> KernelError {
    let known = "f16, bf16 and tf32, where the device sums it in f32";
    KernelError::ElementType { known, got }
}

/// Panics if the kernel of a blueprint multiplies other elements.
pub(super) fn check_instruction(blueprint: &Blueprint, dtype: ElemType) {
    let is_tf32 = blueprint.instruction == Instruction::Tf32;
    let is_asked = dtype == ElemType::Float(FloatKind::TF32);
    assert!(is_tf32 == is_asked, "{blueprint} is no blueprint for {dtype:?}");
}

/// Elements of a load: the most that every row of every input allows.
pub fn vector(problem: &Problem, inputs: &Operands<Strided>, dtype: ElemType) -> usize {
    common_vector(views(problem, inputs), dtype)
}

/// The most elements that every row of all tensors can be read in.
pub(super) fn common_vector<'a>(tensors: impl Iterator<Item = View<'a>>, dtype: ElemType) -> usize {
    let size = stored(dtype).size();
    tensors.map(|(shape, tensor)| tensor.widest(shape, size)).min().unwrap_or(1)
}
