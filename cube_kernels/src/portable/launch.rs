//! The passes as they are called: buffers, checks, and kernels in order.

use cubecl::client::Client;
use cubecl::ir::{AddressType, ElemType};
use cubecl::server::Handle;

use super::plan::Launch;
use super::{BackwardPlan, Blueprint, Limits, Way, forward as rows, selection, tiled};
use crate::choices::{Choices, remembered};
use crate::tensor_core::All;
use crate::view::{
    KeyGradients, check_gradients, check_operands, check_outputs, check_saved_with_out,
};
use crate::{
    KernelError, Operand, Operands, Outputs, Packed, Pass, Problem, Saved, Shape, Strided,
};

/// Whether kernels on this device can index buffers of more than 2^31 elements.
pub fn has_wide_indices(client: &Client) -> bool {
    client.properties().supports_address(AddressType::U64)
}

/// Choices that were made, by the limits of devices.
static FORWARD: Choices<Limits, Way> = Choices::new(Default::default);
static BACKWARD: Choices<Limits, BackwardPlan> = Choices::new(Default::default);

/// `out = softmax(scale * q k + bias) v` over the keys that each query sees, and the logsumexp of these
/// scores. The bias is that of [`Problem::has_bias`], where there is one.
///
/// By tiles where [`plan()`](super::plan()) expects that to be faster, which on devices other than NVIDIA's has to be
/// allowed: their compilers have never seen these kernels. By rows elsewhere. A query that sees no key has
/// output 0, logsumexp -inf and no gradient.
///
/// ```no_run
/// use burn_natten_kernels::portable::forward;
/// use burn_natten_kernels::{Axis, Operands, Outputs, Problem, Strided};
/// use cubecl::ir::{ElemType, FloatKind};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let client = cubecl::Device::cpu().expect("the feature `cpu` is on").client();
/// let row = Axis::neighborhood(64, 7);
/// let problem = Problem::new([row, row, Axis::UNIT], 4, 32);
/// let tensors = Operands::new((), (), ()).map(|operand, ()| {
///     let shape = operand.shape(&problem);
///     Strided::contiguous(client.empty(shape.elements() * size_of::<f32>()), shape)
/// });
/// let bytes = problem.queries() * 4 * 32 * size_of::<f32>();
/// let outputs = Outputs { out: client.empty(bytes), lse: client.empty(bytes / 32) };
/// forward(&client, &problem, ElemType::Float(FloatKind::F32), false, &tensors, &outputs)?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// If the device cannot run the problem or a buffer is too small; then nothing was launched.
pub fn forward(
    client: &Client,
    problem: &Problem,
    dtype: ElemType,
    allow_untried: bool,
    inputs: &Operands<Strided>,
    outputs: &Outputs<Handle>,
) -> Result<(), KernelError> {
    let limits = Limits::of(client).or_tiles(allow_untried);
    let choose = || Some(selection::plan(problem, &limits));
    let way = remembered(&FORWARD, problem, limits, choose).unwrap_or(Way::Rows);
    forward_with(client, &way, problem, dtype, inputs, outputs)
}

/// [`forward()`] by these kernels.
///
/// # Errors
///
/// As [`forward()`], or if the kernels are not for the problem and the device.
pub fn forward_with(
    client: &Client,
    way: &Way,
    problem: &Problem,
    dtype: ElemType,
    inputs: &Operands<Strided>,
    outputs: &Outputs<Handle>,
) -> Result<(), KernelError> {
    let launch = Launch::new(client, problem, dtype)?;
    check_way(&launch, way, Pass::Forward)?;
    attend(&launch, way, inputs, outputs)
}

/// [`forward()`] of all sequences of a packed batch in one launch, with tiles in two. Tensors are the packed ones, of the shapes
/// that [`Packed::line`] has.
///
/// # Errors
///
/// As [`forward()`], and with tiles where the windows of every sequence cover it along several axes: dense attention has one
/// axis.
pub fn forward_packed(
    client: &Client,
    packed: &Packed,
    dtype: ElemType,
    allow_untried: bool,
    inputs: &Operands<Strided>,
    outputs: &Outputs<Handle>,
) -> Result<(), KernelError> {
    let launch = Launch::packed(client, packed, dtype)?;
    let limits = Limits::of(client).or_tiles(allow_untried);
    let all = All::of(packed);
    let choose = || Some(selection::plan(&all.like, &limits));
    let way = remembered(&FORWARD, &all.like, limits, choose).unwrap_or(Way::Rows);
    attend(&launch, &for_all(way, &all)?, inputs, outputs)
}

/// The kernel for all sequences, from the one for the problem that stands for them.
fn for_all(way: Way, all: &All) -> Result<Way, KernelError> {
    match way {
        Way::Rows => Ok(Way::Rows),
        // Kernels for one problem may take its axes together, or in another order.
        Way::Tiles(_) if all.like.normalized() != all.like => {
            let reason = "its sequences are dense, or lines, along several axes";
            Err(KernelError::Problem(reason.to_string()))
        }
        Way::Tiles(own) => {
            Ok(Way::Tiles(Blueprint { has_origin: all.has_origin, is_packed: true, ..own }))
        }
    }
}

fn attend(
    launch: &Launch,
    way: &Way,
    inputs: &Operands<Strided>,
    outputs: &Outputs<Handle>,
) -> Result<(), KernelError> {
    let (problem, size) = (launch.problem, launch.dtype.size());
    check_operands(problem, inputs, size)?;
    check_outputs(problem, outputs, size)?;
    let inputs = &contiguous_operands(problem, inputs)?;
    if launch.query_rows() == 0 {
        return Ok(());
    }
    match way {
        Way::Rows => rows::launch(launch, inputs, outputs, false),
        Way::Tiles(blueprint) => {
            tiled::launch_forward(launch, blueprint, inputs, outputs)?;
            if !launch.is_full() {
                rows::launch(launch, inputs, outputs, true);
            }
        }
    }
    Ok(())
}

/// Gradients of [`forward()`] with respect to everything it reads, from those of both its outputs.
///
/// By tiles or rows as [`forward()`]. Passes that sum none that is wanted, one that has a buffer, are not launched. No
/// atomics: results repeat bit by bit. Workspace: 8 bytes per query row, with additional tokens their gradients once per
/// chunk of queries, in `f32`, and with a bias at most 1 MiB beside it and its gradient in `f32`.
///
/// # Errors
///
/// If the device cannot run the problem or a buffer is too small; then nothing was launched.
pub fn backward(
    client: &Client,
    problem: &Problem,
    dtype: ElemType,
    allow_untried: bool,
    inputs: &Saved<Strided>,
    outputs: &Operands<Option<Handle>>,
) -> Result<(), KernelError> {
    let limits = Limits::of(client).or_tiles(allow_untried);
    let choose = || Some(selection::plan_backward(problem, &limits));
    let plan = remembered(&BACKWARD, problem, limits, choose).unwrap_or(BackwardPlan::ROWS);
    backward_with(client, &plan, problem, dtype, inputs, outputs)
}

/// [`backward()`] by these kernels.
///
/// # Errors
///
/// As [`backward()`], or if the kernels are not for the problem and the device.
pub fn backward_with(
    client: &Client,
    plan: &BackwardPlan,
    problem: &Problem,
    dtype: ElemType,
    inputs: &Saved<Strided>,
    outputs: &Operands<Option<Handle>>,
) -> Result<(), KernelError> {
    let launch = Launch::new(client, problem, dtype)?;
    check_way(&launch, &plan.queries, Pass::Queries)?;
    check_way(&launch, &plan.keys, Pass::Keys)?;
    differentiate(&launch, plan, inputs, outputs)
}

/// [`backward()`] of all sequences of a packed batch, in one launch of each kernel. Tensors are the packed ones, of the shapes
/// that [`Packed::line`] has.
///
/// # Errors
///
/// As [`backward()`] and [`forward_packed()`].
pub fn backward_packed(
    client: &Client,
    packed: &Packed,
    dtype: ElemType,
    allow_untried: bool,
    inputs: &Saved<Strided>,
    outputs: &Operands<Option<Handle>>,
) -> Result<(), KernelError> {
    let launch = Launch::packed(client, packed, dtype)?;
    let limits = Limits::of(client).or_tiles(allow_untried);
    let all = All::of(packed);
    let choose = || Some(selection::plan_backward(&all.like, &limits));
    let plan = remembered(&BACKWARD, &all.like, limits, choose).unwrap_or(BackwardPlan::ROWS);
    let (queries, keys) = (for_all(plan.queries, &all)?, for_all(plan.keys, &all)?);
    differentiate(&launch, &BackwardPlan { queries, keys }, inputs, outputs)
}

fn differentiate(
    launch: &Launch,
    plan: &BackwardPlan,
    inputs: &Saved<Strided>,
    outputs: &Operands<Option<Handle>>,
) -> Result<(), KernelError> {
    let Launch { client, problem, dtype, .. } = *launch;
    check_saved_with_out(problem, inputs, dtype.size())?;
    check_gradients(problem, outputs, dtype.size())?;
    let Saved { operands, outputs: results, gradients, .. } = inputs;
    let (out, lse) = (Shape::out(problem), Shape::lse(problem));
    let inputs = Saved {
        operands: contiguous_operands(problem, operands)?,
        outputs: Outputs {
            out: results.out.contiguous_handle("out", out)?.clone(),
            lse: results.lse.contiguous_handle("lse", lse)?.clone(),
        },
        gradients: Outputs {
            out: gradients.out.contiguous_handle("dout", out)?.clone(),
            lse: gradients.lse.contiguous_handle("dlse", lse)?.clone(),
        },
        has_out: inputs.has_out,
    };
    let of_keys = KeyGradients { client, problem, size: dtype.size(), is_joint: true };
    let keys = of_keys.own(outputs);
    super::backward::launch(launch, plan, &inputs, outputs, keys.as_ref())
}

/// The memory of tensors that the kernels can read: they know no strides.
fn contiguous_operands(
    problem: &Problem,
    operands: &Operands<Strided>,
) -> Result<Operands<Handle>, KernelError> {
    operands.as_ref().try_map(|operand, tensor| match operand {
        // Its heads come first, and it was checked for that.
        Operand::Bias => Ok(tensor.handle.clone()),
        _ => tensor.contiguous_handle(operand.name(), operand.shape(problem)).cloned(),
    })
}

/// Fails if tiles are not for the problem, the pass and the device.
fn check_way(launch: &Launch, way: &Way, pass: Pass) -> Result<(), KernelError> {
    let (problem, limits) = (launch.problem, Limits::of(launch.client));
    let Way::Tiles(blueprint) = way else { return Ok(()) };
    let (bytes, units) = (blueprint.shared_memory(), blueprint.units());
    let has_work = problem.queries() > 0 && problem.keys() > 0;
    let is_held = bytes <= limits.shared_memory && units <= limits.units;
    if blueprint.pass == pass && blueprint.fits(&problem.normalized()) && has_work && is_held {
        return Ok(());
    }
    Err(KernelError::Blueprint(format!(
        "{blueprint}, of {bytes} bytes of shared memory and {units} units, is not for this pass of this problem on a \
         device with {limits:?}"
    )))
}
