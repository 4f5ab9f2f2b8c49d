//! Runs the forward pass on the device and compares it with the oracle.

use burn_natten_kernels::tensor_core::{
    Blueprint, Capability, candidates, forward_with, plan, vector,
};
use burn_natten_kernels::{Operands, Problem, Strided};
use cubecl::client::Client;
use cubecl::ir::ElemType;

use crate::run::{Forward, format, half_ulp, magnitude, norms};
use crate::support::Data;
use crate::support::oracle::compute;
use crate::ways::Element;

pub fn dtype(element: Element) -> ElemType {
    format(element).elem()
}

/// Contiguous tensors on the device.
pub fn upload(
    client: &Client,
    element: Element,
    problem: &Problem,
    data: &Data,
) -> Operands<Strided> {
    format(element).operands(client, problem, data)
}

/// Runs the forward pass on tensors that lie on the device, into buffers full of NaN.
pub fn attend(
    client: &Client,
    element: Element,
    blueprint: &Blueprint,
    problem: &Problem,
    inputs: &Operands<Strided>,
) -> Forward {
    let outputs = format(element).poisoned_outputs(client, problem);
    forward_with(client, blueprint, problem, dtype(element), inputs, &outputs).expect("launched");
    format(element).download_outputs(client, problem, &outputs)
}

/// Ways to use the device's matrix units: the one that is chosen, and cooperative matrices, which do not multiply
/// tf32.
pub fn capabilities(client: &Client, element: Element) -> Vec<Capability> {
    let capability = Capability::of(client).expect("matrix units");
    let mut all = vec![capability, capability.with_cmma([16, 16, 16])];
    all.dedup();
    all.into_iter().filter_map(|capability| element.of(capability)).collect()
}

/// The blueprints that would run the inputs, one for each of [`capabilities`].
pub fn planned(
    client: &Client,
    element: Element,
    problem: &Problem,
    inputs: &Operands<Strided>,
) -> Vec<Blueprint> {
    let vector = vector(problem, inputs, dtype(element));
    let plan = |capability| plan(problem, &capability, vector);
    let planned = capabilities(client, element).into_iter().map(plan);
    planned.collect::<Option<_>>().unwrap_or_else(|| panic!("{problem:?}"))
}

/// Those, and then all that could.
pub fn blueprints(
    client: &Client,
    element: Element,
    problem: &Problem,
    inputs: &Operands<Strided>,
) -> Vec<Blueprint> {
    let vector = vector(problem, inputs, dtype(element));
    let mut all = planned(client, element, problem, inputs);
    for capability in capabilities(client, element) {
        all.extend(candidates(problem, &capability, vector));
    }
    all
}

/// At most twice the error of a result that is right but for its rounding; the logsumexp, in f32,
/// to 1e-5. Gives the error relative to that of rounding.
pub fn check(
    client: &Client,
    element: Element,
    problem: &Problem,
    pick: usize,
    seed: u64,
) -> Result<f64, String> {
    let format = format(element);
    let data = Data::random(problem, seed, format.round);
    let exact = compute(problem, &data, |x| x);
    let inputs = upload(client, element, problem, &data);
    let all = blueprints(client, element, problem, &inputs);
    let blueprint = all[pick % all.len()];
    let (out, lse) = attend(client, element, &blueprint, problem, &inputs);
    let (rms, most) = norms(out.iter().zip(&exact.out).map(|(a, e)| a - e));
    let (base_rms, base_most) = norms(exact.out.iter().map(|x| (format.round)(*x) - x));
    let base_most = base_most.max(half_ulp(element) * magnitude(&exact.out));
    // A single key gives its value back, which needs no rounding.
    let base_rms = base_rms.max(1e-9);
    if !(rms <= 2.0 * base_rms && most <= 2.0 * base_most) {
        return Err(format!(
            "{blueprint}: out off by {rms:.1e} rms of {base_rms:.1e}, {most:.1e} of {base_most:.1e}; {problem:?}"
        ));
    }
    let (_, lse_most) = norms(lse.iter().zip(&exact.lse).map(|(a, e)| (a - e) / e.abs().max(1.0)));
    if lse_most > 1e-5 {
        return Err(format!("{blueprint}: logsumexp off by {lse_most:.1e}; {problem:?}"));
    }
    Ok(rms / base_rms)
}
