//! Plans of the backward pass.

use burn_natten_kernels::Problem;
use burn_natten_kernels::tensor_core::{
    BackwardPlan, Blueprint, Capability, backward_candidates, plan_backward, widest_vector,
};
use test_support::compare::device;

use crate::attend::capabilities;
use crate::ways::Element;

/// The plans that would run, one for each of [`capabilities`].
pub fn plans(problem: &Problem, element: Element) -> Vec<BackwardPlan> {
    let plan = |capability| plan_backward(problem, &capability, widest_vector(problem));
    let plans = capabilities(&device().expect("a device"), element).into_iter().map(plan);
    plans.collect::<Option<_>>().unwrap_or_else(|| panic!("no plan for {problem:?}"))
}

/// The plan with other blueprints for all but the additional tokens: any that could run and multiply as it does.
pub fn any(problem: &Problem, element: Element, plan: BackwardPlan, pick: usize) -> BackwardPlan {
    let is_same = |capability: &Capability| capability.instruction == plan.queries.instruction;
    let all = capabilities(&device().expect("a device"), element);
    let capability = all.into_iter().find(is_same).expect("the plan is for one of them");
    let other = |blueprint: &Blueprint| {
        let all = backward_candidates(problem, &capability, blueprint.vector, blueprint.pass);
        let Blueprint { has_first, has_second, .. } = *blueprint;
        Blueprint { has_first, has_second, ..all[pick % all.len()] }
    };
    BackwardPlan {
        queries: other(&plan.queries),
        keys: plan.keys.iter().map(other).collect(),
        additional: plan.additional,
    }
}

/// The planned blueprints, and up to `count - 1` others for each.
pub fn best(problem: &Problem, element: Element, count: usize) -> Vec<BackwardPlan> {
    let with_others = |chosen: BackwardPlan| {
        let other = |pick| any(problem, element, chosen.clone(), pick);
        let others = (1..count).map(other).collect::<Vec<_>>();
        [chosen].into_iter().chain(others)
    };
    let mut plans: Vec<_> = plans(problem, element).into_iter().flat_map(with_others).collect();
    plans.dedup();
    plans
}
