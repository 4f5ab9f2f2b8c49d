//! Plans of the backward pass.

use burn_natten_kernels::Problem;
use burn_natten_kernels::native::sm90::{
    BackwardPlan, Element, Schedule, backward_candidates, estimate, plan_backward,
};

pub fn planned(problem: &Problem, element: Element) -> BackwardPlan {
    plan_backward(problem, element, None).unwrap_or_else(|| panic!("no plan for {problem:?}"))
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
    let dense = problem.of_additional();
    let mut plans: Vec<_> = (0..count)
        .map(|n| BackwardPlan {
            queries: nth(&chosen.queries, problem, n),
            keys: nth(&chosen.keys, problem, n),
            additional: nth(&chosen.additional, &dense, n),
            slopes: None,
        })
        .collect();
    plans.dedup();
    plans
}
