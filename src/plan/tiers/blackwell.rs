//! The Blackwell tier, whose times are what its design is expected to reach: it has been measured nowhere.

use std::collections::HashSet;
use std::sync::Arc;

use burn_natten_kernels::cost::Cost;
use burn_natten_kernels::native::{backward_workspace, sm100};
use burn_natten_kernels::{Pass, Problem};

use super::{Request, Schedule};
use crate::plan::BackwardKernel;

/// The schedule of the plan, and of what else [`sm100::candidates`] has one of each tiling, the fastest by its estimate first.
pub(super) fn schedules(request: &Request<'_>) -> Vec<Schedule> {
    let problem = request.problem;
    let Ok(planned) = request.plan.blackwell() else { return vec![] };
    let asked = request.context.tiling();
    let timed = |schedule: sm100::Schedule| (sm100::estimate(&schedule, problem), schedule);
    let mut schedules: Vec<_> =
        sm100::candidates(problem, planned.element).into_iter().map(timed).collect();
    schedules.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    schedules.insert(0, timed(planned));
    let mut seen = HashSet::new();
    schedules.retain(|(_, schedule)| seen.insert(schedule.tiling()));
    let size = request.dtype.size();
    let schedule = |(number, (seconds, schedule)): (usize, (f64, sm100::Schedule))| {
        let tiling = schedule.tiling();
        // The first runs unasked.
        let is_asked = number > 0 || asked == Some(tiling);
        let asked = is_asked.then_some(tiling);
        let forward = Cost::forward(problem, Some(&tiling), size, request.device);
        let backward = match number {
            0 => request.plan.blackwell_backward().ok()?,
            _ => Arc::new(sm100::plan_backward(problem, planned.element, asked)?),
        };
        let (backward, kernels) = backward_cost(request, &backward);
        Some(Schedule {
            name: schedule.summary(),
            tiling: Some(tiling),
            asked,
            forward: Cost { seconds: seconds.max(forward.seconds), ..forward },
            backward,
            kernels,
            workspace: Some(backward_workspace(problem) as u64),
        })
    };
    schedules.into_iter().enumerate().filter_map(schedule).collect()
}

/// The backward pass by these schedules.
fn backward_cost(request: &Request<'_>, plan: &sm100::BackwardPlan) -> (Cost, Vec<BackwardKernel>) {
    let problem = request.problem;
    let mut executed = 0;
    let kernel = |(number, (schedule, of)): (usize, (sm100::Schedule, Problem))| {
        let tiling = schedule.tiling();
        let count = match schedule.pass {
            Pass::Keys => tiling.count_visitors(&of),
            Pass::Forward | Pass::Queries => tiling.count(&of),
        };
        let scores = count.visited * (tiling.q_volume() * tiling.kv_volume()) as u64;
        let heads = (of.batch * of.heads) as u64;
        executed += 2 * heads * scores * schedule.multiply_adds() as u64;
        let whose = if number < 2 { "" } else { " of additional tokens" };
        BackwardKernel {
            writes: format!("{}{whose}", schedule.writes()),
            schedule: schedule.summary(),
            tiling,
            count,
            seconds: sm100::estimate(&schedule, &of),
        }
    };
    let kernels: Vec<_> = plan.kernels(problem).into_iter().enumerate().map(kernel).collect();
    let bound = Cost::backward(problem, None, request.dtype.size(), request.device);
    let cost = Cost::new(bound.flops, executed, bound.bytes, request.device);
    let seconds: f64 = kernels.iter().map(|kernel| kernel.seconds).sum();
    (Cost { seconds: seconds.max(cost.seconds), ..cost }, kernels)
}
