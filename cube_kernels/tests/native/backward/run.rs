//! Runs the backward pass on the device and compares it with the oracle.

use burn_natten_kernels::Problem;
use burn_natten_kernels::native::sm90::{
    BackwardInputs, BackwardOutputs, BackwardPlan, Element, Strided, backward_with, plan_backward,
};
use cubecl::client::Client;

use crate::run::{format, half_ulp, magnitude, norms, upload};
use crate::support::oracle::compute;
use crate::support::run::F32;
use crate::support::{Data, Results};

pub fn planned(problem: &Problem, element: Element) -> BackwardPlan {
    plan_backward(problem, element, None).unwrap_or_else(|| panic!("no plan for {problem:?}"))
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
) -> BackwardInputs {
    let forward = upload(client, element, problem, data);
    let queries = problem.axes.map(|axis| axis.queries);
    let like_out = |values: &[f64]| {
        let handle = format(element).upload(client, values);
        Strided::contiguous(handle, queries, problem.heads, problem.head_dim_v)
    };
    BackwardInputs {
        query: forward.query,
        key: forward.key,
        value: forward.value,
        additional: forward.additional,
        out: like_out(&exact.out),
        dout: like_out(&data.dout),
        lse: F32.upload(client, &exact.lse),
        dlse: F32.upload(client, &data.dlse),
    }
}

/// The gradients, by name.
pub type Gradients = Vec<(&'static str, Vec<f64>)>;

/// Runs the backward pass into buffers full of NaN.
pub fn run_inputs(
    client: &Client,
    element: Element,
    plan: &BackwardPlan,
    problem: &Problem,
    inputs: &BackwardInputs,
) -> Gradients {
    let format = format(element);
    let Problem { batch, heads, heads_kv, head_dim, head_dim_v, .. } = *problem;
    let keys = batch * problem.keys() * heads_kv;
    let more = batch * problem.additional * heads_kv;
    let sizes = [
        ("dq", batch * problem.queries() * heads * head_dim),
        ("dk", keys * head_dim),
        ("dv", keys * head_dim_v),
        ("additional dk", more * head_dim),
        ("additional dv", more * head_dim_v),
    ];
    let [dq, dk, dv, more_dk, more_dv] = sizes.map(|(_, size)| format.poisoned(client, size));
    let outputs = BackwardOutputs {
        dq: dq.clone(),
        dk: dk.clone(),
        dv: dv.clone(),
        additional: (more > 0).then(|| (more_dk.clone(), more_dv.clone())),
    };
    backward_with(client, plan, problem, inputs, &outputs).expect("launched");
    let handles = [dq, dk, dv, more_dk, more_dv];
    let downloads = sizes.iter().zip(&handles);
    downloads
        .map(|((name, size), handle)| (*name, format.download(client, handle, *size)))
        .collect()
}

/// At most twice the error of gradients that are right but for their rounding. Gives the largest
/// error relative to that of rounding.
pub fn check(
    client: &Client,
    element: Element,
    plan: &BackwardPlan,
    problem: &Problem,
    seed: u64,
) -> Result<f64, String> {
    let format = format(element);
    let data = Data::random(problem, seed, format.round);
    let exact = compute(problem, &data, format.round);
    let inputs = upload_all(client, element, problem, &data, &exact);
    let actual = run_inputs(client, element, plan, problem, &inputs);
    let expected = [&exact.dq, &exact.dk, &exact.dv, &exact.additional_dk, &exact.additional_dv];
    let mut worst = 0.0f64;
    for ((name, actual), expected) in actual.iter().zip(expected) {
        if expected.is_empty() {
            continue;
        }
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
