//! Runs the backward pass on the device and compares it with the oracle.

use burn_natten_kernels::tensor_core::{
    BackwardPlan, Blueprint, Capability, backward_candidates, backward_with, plan_backward,
    widest_vector,
};
use burn_natten_kernels::{Problem, Saved, Strided};
use cubecl::client::Client;

use crate::attend::{capabilities, dtype};
use crate::run::{device, for_each_case, format, half_ulp, magnitude, norms};
use crate::support::oracle::compute;
use crate::support::{Data, Results};
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

/// In how many ways edges are computed: every one is compiled.
pub fn ways(element: Element) -> usize {
    if element == Element::F16 { 2 } else { 1 }
}

/// The names of a plan's kernels.
pub fn names(plan: &BackwardPlan) -> String {
    plan.blueprints().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Contiguous tensors on the device, with what the oracle's forward pass gives.
pub fn upload_all(
    client: &Client,
    element: Element,
    problem: &Problem,
    data: &Data,
    exact: &Results,
) -> Saved<Strided> {
    format(element).saved(client, problem, data, [&exact.out, &exact.lse])
}

/// The gradients, by name. Those of additional tokens are there where such tokens are.
pub type Gradients = Vec<(&'static str, Vec<f64>)>;

/// Runs the backward pass on tensors that lie on the device.
pub fn run_inputs(
    client: &Client,
    element: Element,
    plan: &BackwardPlan,
    problem: &Problem,
    inputs: &Saved<Strided>,
) -> Gradients {
    let outputs = format(element).poisoned_gradients(client, problem);
    backward_with(client, plan, problem, dtype(element), inputs, &outputs).expect("launched");
    format(element).download_gradients(client, problem, &outputs)
}

/// What [`run_inputs`] should give.
pub fn expected(exact: &Results) -> [&[f64]; 5] {
    [&exact.dq, &exact.dk, &exact.dv, &exact.additional_dk, &exact.additional_dv]
}

/// [`check_data`] with random data.
pub fn check(
    client: &Client,
    element: Element,
    plan: &BackwardPlan,
    problem: &Problem,
    seed: u64,
) -> Result<f64, String> {
    let data = Data::random(problem, seed, format(element).round);
    check_data(client, element, plan, problem, &data)
}

/// At most twice the error of gradients that are right but for their rounding. Gives the largest
/// error relative to that of rounding.
pub fn check_data(
    client: &Client,
    element: Element,
    plan: &BackwardPlan,
    problem: &Problem,
    data: &Data,
) -> Result<f64, String> {
    let format = format(element);
    let exact = compute(problem, data, format.round);
    let inputs = upload_all(client, element, problem, data, &exact);
    let actual = run_inputs(client, element, plan, problem, &inputs);
    let mut worst = 0.0f64;
    for ((name, actual), expected) in actual.iter().zip(expected(&exact)) {
        let (rms, most) = norms(actual.iter().zip(expected).map(|(a, e)| a - e));
        let (base_rms, base_most) = norms(expected.iter().map(|x| (format.round)(*x) - x));
        let base_most = base_most.max(half_ulp(element) * magnitude(expected));
        // Gradients that cancel to nothing are measured against the terms of their sums, below 1.
        let base_rms = base_rms.max(1e-3 * half_ulp(element));
        worst = worst.max(rms / base_rms);
        if !(rms <= 2.0 * base_rms && most <= 2.0 * base_most.max(1e-2 * half_ulp(element))) {
            return Err(format!(
                "{name} off by {rms:.1e} rms of {base_rms:.1e}, {most:.1e} of {base_most:.1e}: {}; {problem:?}",
                names(plan)
            ));
        }
    }
    Ok(worst)
}

/// A problem and how it is computed.
pub type Case = (Problem, Element, BackwardPlan);

/// Runs [`check`] for every case.
pub fn check_all(client: &Client, cases: &[Case]) {
    for_each_case(cases, |(problem, element, plan), seed| {
        check(client, *element, plan, problem, seed)
    });
}

/// The problem by the planned blueprints and by others.
pub fn best_cases(problem: &Problem, element: Element, count: usize) -> Vec<Case> {
    let with_others = |chosen: BackwardPlan| {
        let other = |pick| any(problem, element, chosen.clone(), pick);
        let others = (1..count).map(other).collect::<Vec<_>>();
        [chosen].into_iter().chain(others)
    };
    let mut plans: Vec<_> = plans(problem, element).into_iter().flat_map(with_others).collect();
    plans.dedup();
    plans.into_iter().map(|plan| (*problem, element, plan)).collect()
}
