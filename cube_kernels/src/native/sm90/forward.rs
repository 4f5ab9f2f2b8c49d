//! The forward pass on a device.

use cubecl::client::Client;
use cubecl::server::Handle;

use super::program::Program;
use super::{Element, Schedule, planned};
use crate::native::compile::has_compiler;
use crate::native::forward as launches;
use crate::native::launch::{DeviceInfo, device_info};
use crate::tiling::Tiling;
use crate::{KernelError, Operands, Outputs, Problem, Strided};

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
    let device = hopper(client)?;
    Program::Attention(*schedule).load(&device)?;
    Ok(())
}

/// Whether the kernels can be compiled and run on the device of a client.
pub fn is_available(client: &Client) -> bool {
    hopper(client).is_ok() && has_compiler()
}

pub(super) fn hopper(client: &Client) -> Result<DeviceInfo, KernelError> {
    device_info(client)
        .filter(|info| info.capability == 90)
        .ok_or(KernelError::Device("compute capability 9.0 (Hopper)"))
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
    assert!(schedule.fits(problem), "{schedule} is no schedule for {problem:?}");
    let device = hopper(client)?;
    let cut = schedule.cut();
    launches::check(&cut, problem, inputs, outputs)?;
    let cubin = Program::Attention(*schedule).load(&device)?;
    launches::enqueue(client, &device, (cut, &cubin), problem, inputs, outputs);
    Ok(())
}
