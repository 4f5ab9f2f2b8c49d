//! Runs the backward pass on the device and compares it with the oracle.

use burn_natten_kernels::native::sm90::{
    BackwardPlan, Element, Schedule, backward_candidates, backward_with, estimate, plan_backward,
};
use burn_natten_kernels::{Axis, Problem, Saved, Strided};
use cubecl::client::Client;

use crate::run::{for_each_case, format, half_ulp, magnitude, norms};
use crate::support::oracle::compute;
use crate::support::{Data, Results};

pub fn planned(problem: &Problem, element: Element) -> BackwardPlan {
    plan_backward(problem, element, None).unwrap_or_else(|| panic!("no plan for {problem:?}"))
}

/// The plan, for tests that other kernels share, which have several.
pub fn plans(problem: &Problem, element: Element) -> Vec<BackwardPlan> {
    vec![planned(problem, element)]
}

/// In how many ways edges are computed.
pub fn ways(_: Element) -> usize {
    3
}

/// The names of a plan's kernels.
pub fn names(plan: &BackwardPlan) -> String {
    plan.schedules().map(ToString::to_string).collect::<Vec<_>>().join(", ")
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
    backward_with(client, plan, problem, inputs, &outputs).expect("launched");
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

/// The problem in up to `count` ways: each kernel by its best schedule, by its second best and so on.
pub fn best_cases(problem: &Problem, element: Element, count: usize) -> Vec<Case> {
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
    let dense = Problem { additional: 0, axes: [Axis::UNIT, Axis::UNIT, tokens], ..*problem };
    let mut plans: Vec<_> = (0..count)
        .map(|n| BackwardPlan {
            queries: nth(&chosen.queries, problem, n),
            keys: nth(&chosen.keys, problem, n),
            additional: nth(&chosen.additional, &dense, n),
        })
        .collect();
    plans.dedup();
    plans.into_iter().map(|plan| (*problem, element, plan)).collect()
}
