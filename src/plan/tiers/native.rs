//! The tiers of native kernels. The times of Blackwell's are what its design is expected to reach: it has been measured nowhere.

use std::collections::HashSet;
use std::sync::Arc;

use burn_natten_kernels::cost::Cost;
use burn_natten_kernels::native::{backward_workspace, sm90, sm100};
use burn_natten_kernels::tiling::Tiling;
use burn_natten_kernels::{Pass, Problem};

use super::{Request, Schedule};
use crate::plan::BackwardKernel;

/// The schedule of the plan, and of what else [`sm90::candidates`] has one of each tiling, the fastest by its estimate first.
pub(super) fn hopper(request: &Request<'_>) -> Vec<Schedule> {
    let problem = request.problem;
    let Ok(planned) = request.plan.hopper() else { return vec![] };
    let backward = |choice| {
        let plan = match choice {
            Choice::Planned => request.plan.hopper_backward().ok()?,
            Choice::Other(asked) => {
                let bytes = request.plan.slopes_bytes();
                Arc::new(sm90::plan_backward_within(problem, planned.element, asked, bytes)?)
            }
        };
        Some((plan.kernels(problem), plan.slopes_workspace(problem)))
    };
    schedules(request, planned, sm90::candidates(problem, planned.element), backward)
}

/// The same of [`sm100::candidates`].
pub(super) fn blackwell(request: &Request<'_>) -> Vec<Schedule> {
    let problem = request.problem;
    let Ok(planned) = request.plan.blackwell() else { return vec![] };
    let backward = |choice| {
        let kernels = match choice {
            Choice::Planned => request.plan.blackwell_backward().ok()?.kernels(problem),
            Choice::Other(asked) => {
                sm100::plan_backward(problem, planned.element, asked)?.kernels(problem)
            }
        };
        Some((kernels, 0))
    };
    schedules(request, planned, sm100::candidates(problem, planned.element), backward)
}

/// Which backward pass.
enum Choice {
    /// That of the plan.
    Planned,
    /// One by tiles that are asked for.
    Other(Option<Tiling>),
}

/// What is told of a kernel of any architecture.
trait Kernel: Copy {
    fn pass(&self) -> Pass;
    fn tiling(&self) -> Tiling;
    fn summary(&self) -> String;
    fn writes(&self) -> String;
    fn multiply_adds(&self) -> usize;
    /// Seconds.
    fn estimate(&self, problem: &Problem) -> f64;
    /// Bytes of device memory for sums, besides [`backward_workspace`].
    fn workspace(&self, problem: &Problem) -> usize;
}

macro_rules! kernel {
    ($architecture:ident, $workspace:expr) => {
        impl Kernel for $architecture::Schedule {
            fn pass(&self) -> Pass {
                self.pass
            }
            fn tiling(&self) -> Tiling {
                self.tiling()
            }
            fn summary(&self) -> String {
                self.summary()
            }
            fn writes(&self) -> String {
                self.writes().to_string()
            }
            fn multiply_adds(&self) -> usize {
                self.multiply_adds()
            }
            fn estimate(&self, problem: &Problem) -> f64 {
                $architecture::estimate(self, problem)
            }
            fn workspace(&self, problem: &Problem) -> usize {
                $workspace(self, problem)
            }
        }
    };
}

kernel!(sm90, sm90::Schedule::split_workspace);
kernel!(sm100, |_, _| 0);

/// The planned schedule, and one of each other tiling. A backward pass is its kernels and the bytes of memory that they share. Who asks for a tiling gets it in the backward pass, too, where that has it.
fn schedules<K: Kernel>(
    request: &Request<'_>,
    planned: K,
    candidates: Vec<K>,
    backward: impl Fn(Choice) -> Option<(Vec<(K, Problem)>, usize)>,
) -> Vec<Schedule> {
    let problem = request.problem;
    let asked = request.context.tiling();
    let timed = |kernel: K| (kernel.estimate(problem), kernel);
    let mut kernels: Vec<_> = candidates.into_iter().map(timed).collect();
    kernels.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    kernels.insert(0, timed(planned));
    let mut seen = HashSet::new();
    kernels.retain(|(_, kernel)| seen.insert(kernel.tiling()));
    let size = request.dtype.size();
    let schedule = |(number, (seconds, kernel)): (usize, (f64, K))| {
        let tiling = kernel.tiling();
        // The first runs unasked.
        let is_asked = number > 0 || asked == Some(tiling);
        let asked = is_asked.then_some(tiling);
        let forward = Cost::forward(problem, Some(&tiling), size, request.device);
        let choice = if number == 0 { Choice::Planned } else { Choice::Other(asked) };
        let (backward, shared) = backward(choice)?;
        let sums: usize = backward.iter().map(|(kernel, of)| kernel.workspace(of)).sum();
        let (backward, kernels) = backward_cost(request, backward);
        Some(Schedule {
            name: kernel.summary(),
            tiling: Some(tiling),
            asked,
            forward: Cost { seconds: seconds.max(forward.seconds), ..forward },
            backward,
            kernels,
            workspace: Some((backward_workspace(problem) + sums + shared) as u64),
        })
    };
    kernels.into_iter().enumerate().filter_map(schedule).collect()
}

/// The backward pass by these kernels, each with what it computes.
fn backward_cost<K: Kernel>(
    request: &Request<'_>,
    kernels: Vec<(K, Problem)>,
) -> (Cost, Vec<BackwardKernel>) {
    let problem = request.problem;
    let mut executed = 0;
    let kernel = |(kernel, of): (K, Problem)| {
        let tiling = kernel.tiling();
        let count = match kernel.pass() {
            Pass::Keys => tiling.count_visitors(&of),
            Pass::Forward | Pass::Queries => tiling.count(&of),
        };
        let scores = count.visited * (tiling.q_volume() * tiling.kv_volume()) as u64;
        let heads = (of.batch * of.heads) as u64;
        executed += 2 * heads * scores * kernel.multiply_adds() as u64;
        // The dense problem of additional tokens has none itself.
        let whose = if of == *problem { "" } else { " of additional tokens" };
        BackwardKernel {
            writes: format!("{}{whose}", kernel.writes()),
            schedule: kernel.summary(),
            tiling,
            count,
            seconds: kernel.estimate(&of),
        }
    };
    let kernels: Vec<_> = kernels.into_iter().map(kernel).collect();
    let bound = Cost::backward(problem, None, request.dtype.size(), request.device);
    let cost = Cost::new(bound.flops, executed, bound.bytes, request.device);
    let seconds: f64 = kernels.iter().map(|kernel| kernel.seconds).sum();
    (Cost { seconds: seconds.max(cost.seconds), ..cost }, kernels)
}
