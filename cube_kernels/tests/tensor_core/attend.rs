//! Runs the forward pass on the device and compares it with the oracle.

use burn_natten_kernels::tensor_core::{
    Blueprint, Capability, candidates, forward_with, plan, vector,
};
use burn_natten_kernels::{Operands, Problem, Strided};
use cubecl::client::Client;
use cubecl::ir::ElemType;
use test_support::Data;
use test_support::compare::{Forward, format};
use test_support::oracle::compute;
use test_support::tier::check_forward;

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

/// Ways to use the device's matrix units: the one that is chosen, and on NVIDIA's under CUDA cooperative matrices, which do not
/// multiply tf32. None where the device does not multiply the elements.
pub fn capabilities(client: &Client, element: Element) -> Vec<Capability> {
    let capability = Capability::of(client).expect("matrix units");
    let cooperative = capability.has_run().then(|| capability.with_cmma([16, 16, 16]));
    [capability]
        .into_iter()
        .chain(cooperative)
        .filter_map(|capability| element.of(capability))
        .collect()
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
    let result = attend(client, element, &blueprint, problem, &inputs);
    check_forward(&blueprint.to_string(), format, problem, &exact, &result)
}
