//! The backward pass on a device.

use cubecl::client::Client;
use cubecl::server::Handle;

use super::forward::blackwell;
use super::program::Program;
use super::{Architecture, BackwardPlan, Schedule, planned_backward};
use crate::native::backward::{self as launches, Part, Parts, delta_dim, delta_dims};
use crate::native::launch::DeviceInfo;
use crate::native::{Element, dense};
use crate::tiling::Tiling;
use crate::{KernelError, Operands, Pass, Problem, Saved, Strided};

/// The gradients of attention, by the schedules that are [planned](planned_backward). What sums none that is wanted, one that has a
/// buffer, is not launched.
///
/// Returns when the work is enqueued; the first use of a schedule compiles it.
///
/// # Errors
///
/// [`KernelError`] if nothing was launched.
pub fn backward(
    client: &Client,
    problem: &Problem,
    element: Element,
    tiling: Option<Tiling>,
    inputs: &Saved<Strided>,
    outputs: &Operands<Option<Handle>>,
) -> Result<(), KernelError> {
    let plan = planned_backward(problem, element, tiling).map_err(KernelError::Problem)?;
    backward_with(client, &plan, problem, inputs, outputs)
}

/// Compiles the kernels of a plan for a problem, so that their first launch does not wait.
///
/// # Errors
///
/// [`KernelError`] if they cannot run on the device.
pub fn warm_up_backward(
    client: &Client,
    plan: &BackwardPlan,
    problem: &Problem,
) -> Result<(), KernelError> {
    let (architecture, device) = blackwell(client)?;
    for schedule in plan.schedules() {
        for read in delta_dims(problem.head_dim_v) {
            Program::Delta(schedule.element, read).load(architecture, &device)?;
        }
        Program::Attention(*schedule).load(architecture, &device)?;
    }
    Ok(())
}

/// [`backward()`] by given schedules, which have to be ones for the problem.
///
/// # Errors
///
/// [`KernelError`] if nothing was launched.
///
/// # Panics
///
/// If a schedule is none for the problem.
pub fn backward_with(
    client: &Client,
    plan: &BackwardPlan,
    problem: &Problem,
    inputs: &Saved<Strided>,
    outputs: &Operands<Option<Handle>>,
) -> Result<(), KernelError> {
    backward_by(client, plan, problem, inputs, outputs, Program::Attention)
}

/// The same by programs of a kind.
pub(super) fn backward_by(
    client: &Client,
    plan: &BackwardPlan,
    problem: &Problem,
    inputs: &Saved<Strided>,
    outputs: &Operands<Option<Handle>>,
    program: impl Fn(Schedule) -> Program,
) -> Result<(), KernelError> {
    let (architecture, device) = blackwell(client)?;
    let BackwardPlan { queries, keys, additional } = plan;
    let fits = |schedule: &Schedule, pass, problem: &Problem| {
        let fits = schedule.pass == pass && schedule.fits(problem);
        assert!(fits, "{schedule} is no backward schedule for {problem:?}");
    };
    fits(queries, Pass::Queries, problem);
    fits(keys, Pass::Keys, problem);
    let more = dense(problem).and_then(|dense| additional.as_ref().zip(Some(dense)));
    if let Some((schedule, dense)) = &more {
        fits(schedule, Pass::Keys, dense);
    }
    launches::check([queries.cut(), keys.cut()], problem, inputs, outputs)?;
    let load = |schedule: &Schedule, is_wanted: bool| match is_wanted {
        true => part(program(*schedule), schedule, architecture, &device).map(|part| vec![part]),
        false => Ok(vec![]),
    };
    let more_wanted = outputs.additional.as_ref();
    let is_more_wanted = more_wanted.is_some_and(|of| of.key.is_some() || of.value.is_some());
    let parts = Parts {
        queries: load(queries, outputs.query.is_some())?,
        keys: load(keys, outputs.key.is_some() || outputs.value.is_some())?,
        additional: match more {
            Some((schedule, _)) => load(schedule, is_more_wanted)?,
            None => vec![],
        },
        delta: Some(
            Program::Delta(queries.element, delta_dim(problem, inputs))
                .load(architecture, &device)?,
        ),
        bias_sum: None,
        slopes: None,
    };
    launches::enqueue(client, &device, &parts, problem, inputs, outputs)
}

fn part(
    program: Program,
    schedule: &Schedule,
    architecture: Architecture,
    device: &DeviceInfo,
) -> Result<Part, KernelError> {
    Ok(Part {
        keeps_slopes: false,
        cut: schedule.cut(),
        has_additional: schedule.has_additional,
        sums_bias: false,
        makes_statistics: false,
        is_joint: schedule.pass == Pass::Keys,
        cubin: program.load(architecture, device)?,
        splits: None,
    })
}
