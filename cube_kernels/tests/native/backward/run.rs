//! Runs the backward pass on the device and compares it with the oracle.

use burn_natten_kernels::native::sm90::{
    BackwardPlan, Element, Schedule, backward_candidates, backward_with, estimate, plan_backward,
};
use burn_natten_kernels::{Axis, Problem, Saved, Strided};
use cubecl::client::Client;
use test_support::compare::format;
use test_support::tier::Gradients;

pub fn planned(problem: &Problem, element: Element) -> BackwardPlan {
    plan_backward(problem, element, None).unwrap_or_else(|| panic!("no plan for {problem:?}"))
}

/// The names of a plan's kernels.
pub fn names(plan: &BackwardPlan) -> String {
    plan.schedules().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Runs the backward pass on tensors that lie on the device.
pub fn run_inputs(
    client: &Client,
    element: Element,
    plan: &BackwardPlan,
    problem: &Problem,
    inputs: &Saved<Strided>,
) -> Gradients {
    let outputs = format(element).poisoned_gradients(client, problem);
    backward_with(client, plan, problem, inputs, &outputs).expect("launched");
    format(element).download_gradients(client, problem, &outputs)
}

/// Up to `count` plans: each kernel by its best schedule, by its second best and so on.
pub fn best(problem: &Problem, element: Element, count: usize) -> Vec<BackwardPlan> {
    let chosen = planned(problem, element);
    let nth = |kernels: &[Schedule], problem: &Problem, n: usize| {
        let best = |kernel: &Schedule| {
            let mut all = backward_candidates(problem, element, kernel.pass, kernel.gradients);
            all.sort_by(|a, b| estimate(a, problem).total_cmp(&estimate(b, problem)));
            all[n.min(all.len() - 1)]
        };
        kernels.iter().map(best).collect()
    };
    let tokens = Axis::dense(problem.queries(), problem.additional, false);
    let dense = problem.with_axes([tokens]).with_additional(0);
    let mut plans: Vec<_> = (0..count)
        .map(|n| BackwardPlan {
            queries: nth(&chosen.queries, problem, n),
            keys: nth(&chosen.keys, problem, n),
            additional: nth(&chosen.additional, &dense, n),
        })
        .collect();
    plans.dedup();
    plans
}
