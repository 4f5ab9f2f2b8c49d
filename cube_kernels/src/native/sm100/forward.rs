//! The forward pass on a device.

use cubecl::client::Client;
use cubecl::server::Handle;

use super::program::Program;
use super::{Architecture, Schedule, planned};
use crate::native::Element;
use crate::native::compile::has_compiler;
use crate::native::forward as launches;
use crate::native::launch::{DeviceInfo, device_info};
use crate::tiling::Tiling;
use crate::{KernelError, Operands, Outputs, Pass, Problem, Strided};

/// Attention with logsumexp, in f16 or bf16, into contiguous outputs, by the schedule that is [`planned()`].
///
/// Returns when the work is enqueued; the first use of a schedule compiles it.
///
/// # Errors
///
/// [`KernelError`] if nothing was launched.
pub fn forward(
    client: &Client,
    problem: &Problem,
    element: Element,
    tiling: Option<Tiling>,
    inputs: &Operands<Strided>,
    outputs: &Outputs<Handle>,
) -> Result<(), KernelError> {
    let schedule = planned(problem, element, tiling).map_err(KernelError::Problem)?;
    forward_with(client, &schedule, problem, inputs, outputs)
}

/// Compiles the kernel of a schedule, so that its first launch does not wait.
///
/// # Errors
///
/// [`KernelError`] if it cannot run on the device.
pub fn warm_up(client: &Client, schedule: &Schedule) -> Result<(), KernelError> {
    let (architecture, device) = blackwell(client)?;
    Program::Attention(*schedule).load(architecture, &device)?;
    Ok(())
}

/// Whether the kernels can be compiled and run on the device of a client.
pub fn is_available(client: &Client) -> bool {
    blackwell(client).is_ok() && has_compiler()
}

pub(super) fn blackwell(client: &Client) -> Result<(Architecture, DeviceInfo), KernelError> {
    device_info(client)
        .and_then(|info| Architecture::of(info.capability).zip(Some(info)))
        .ok_or(KernelError::Device("compute capability 10.0 or 10.3 (Blackwell)"))
}

/// [`forward()`] by a given schedule, which has to be one of the problem's candidates.
///
/// # Errors
///
/// [`KernelError`] if nothing was launched.
///
/// # Panics
///
/// If the schedule is none for the problem.
pub fn forward_with(
    client: &Client,
    schedule: &Schedule,
    problem: &Problem,
    inputs: &Operands<Strided>,
    outputs: &Outputs<Handle>,
) -> Result<(), KernelError> {
    forward_by(client, schedule, problem, inputs, outputs, Program::Attention)
}

/// The same by a program of a kind.
pub(super) fn forward_by(
    client: &Client,
    schedule: &Schedule,
    problem: &Problem,
    inputs: &Operands<Strided>,
    outputs: &Outputs<Handle>,
    program: impl Fn(Schedule) -> Program,
) -> Result<(), KernelError> {
    let is_own = schedule.pass == Pass::Forward && schedule.fits(problem);
    assert!(is_own, "{schedule} is no schedule for {problem:?}");
    let (architecture, device) = blackwell(client)?;
    let cut = schedule.cut();
    launches::check(&cut, problem, inputs, outputs)?;
    let cubin = program(*schedule).load(architecture, &device)?;
    launches::enqueue(client, &device, (cut, &cubin), problem, inputs, outputs);
    Ok(())
}
