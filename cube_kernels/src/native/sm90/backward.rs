//! The backward pass on a device.

use std::sync::Once;

use cubecl::client::Client;
use cubecl::server::Handle;

use super::forward::hopper;
use super::program::Program;
use super::{BackwardPlan, Element, Gradients, Pass, SLOPES_BYTES, Schedule, planned_backward};
use crate::native::backward::{self as launches, Part, Parts, delta_dim, delta_dims};
use crate::native::dense;
use crate::native::launch::DeviceInfo;
use crate::native::splits::Splits;
use crate::tiling::Tiling;
use crate::{KernelError, Operands, Problem, Saved, Strided};

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
    let plan = planned_backward(problem, element, tiling, SLOPES_BYTES);
    let plan = plan.map_err(KernelError::Problem)?;
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
    let device = hopper(client)?;
    // What runs where only some gradients are wanted, or products stand in place of outputs.
    let alone = plan.clone().without_slopes();
    let apart = alone.clone().without_own_statistics();
    let more = alone.queries.iter().chain(&alone.keys).chain(&apart.queries);
    for schedule in plan.schedules().chain(more) {
        for read in delta_dims(problem.head_dim_v) {
            Program::Delta(schedule.element, read, false).load(&device)?;
        }
        Program::Attention(*schedule).load(&device)?;
        if schedule.gradients.bias {
            Program::Bias(schedule.element).load(&device)?;
        }
        splits(schedule, &device)?;
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
    let device = hopper(client)?;
    let own = || plan.queries.iter().chain(&plan.keys);
    for schedule in own() {
        let is_own = schedule.pass != Pass::Forward && schedule.fits(problem);
        assert!(is_own, "{schedule} is no backward schedule for {problem:?}");
    }
    assert!(plan.is_consistent(problem), "a plan in which some kernels keep slopes: {plan:?}");
    launches::check(own().map(Schedule::cut), problem, inputs, outputs)?;
    let Some(element) = plan.schedules().next().map(|schedule| schedule.element) else {
        return Ok(());
    };
    let wanted = outputs.as_ref().map(|_, gradient| gradient.is_some());
    let mut plan = plan.wanted(&wanted);
    if !inputs.has_out {
        plan = plan.without_own_statistics();
    }
    let most = client.properties().memory.max_page_size;
    let slopes = plan.slopes_of_launch(problem) as u64;
    if slopes > most {
        static SAID: Once = Once::new();
        SAID.call_once(|| log::warn!("burn-natten: {slopes} bytes of slopes, where allocations have at most {most}: scores are computed twice"));
        plan = plan.without_slopes();
    }
    if let Some(dense) = dense(problem) {
        let mut more = plan.additional.iter();
        let fits = more.all(|schedule| schedule.pass == Pass::Keys && schedule.fits(&dense));
        assert!(fits, "no schedules for {dense:?}");
    }
    let bias_sum = wanted.bias == Some(true);
    let makes_statistics = plan.queries.iter().any(|schedule| schedule.makes_statistics);
    let needs_delta = !makes_statistics || !plan.additional.is_empty();
    let delta = || Program::Delta(element, delta_dim(problem, inputs), false).load(&device);
    let parts = Parts {
        queries: load(&plan.queries, &device)?,
        keys: load(&plan.keys, &device)?,
        additional: load(&plan.additional, &device)?,
        delta: needs_delta.then(delta).transpose()?,
        bias_sum: bias_sum.then(|| Program::Bias(element).load(&device)).transpose()?,
        slopes: plan
            .slopes
            .as_ref()
            .and_then(|slopes| plan.keys.first().map(|keys| (keys.tiling(), slopes.heads_at_once))),
    };
    launches::enqueue(client, &device, &parts, problem, inputs, outputs)
}

pub(super) fn load(schedules: &[Schedule], device: &DeviceInfo) -> Result<Vec<Part>, KernelError> {
    let load = |schedule: &Schedule| {
        Ok(Part {
            cut: schedule.cut(),
            has_additional: schedule.has_additional,
            sums_bias: schedule.gradients.bias,
            makes_statistics: schedule.makes_statistics,
            keeps_slopes: schedule.keeps_slopes,
            is_joint: schedule.gradients.width > 0 && schedule.gradients.value,
            cubin: Program::Attention(*schedule).load(device)?,
            splits: splits(schedule, device)?,
        })
    };
    schedules.iter().map(load).collect()
}

/// What adds up the sums of a kernel whose CTAs share the heads of groups.
fn splits(schedule: &Schedule, device: &DeviceInfo) -> Result<Option<Splits>, KernelError> {
    if schedule.splits == 1 {
        return Ok(None);
    }
    let Gradients { start, width, value, .. } = schedule.gradients;
    let values = if value { schedule.head_dim_v } else { 0 };
    Ok(Some(Splits {
        count: schedule.splits,
        elements: [start..start + width, 0..values],
        cubin: Program::Splits(schedule.element).load(device)?,
    }))
}
