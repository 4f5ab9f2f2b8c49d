//! Runs the forward pass on the device and compares it with the oracle.

use burn_natten_kernels::Problem;
use burn_natten_kernels::tensor_core::{
    Blueprint, Capability, ForwardInputs, ForwardOutputs, Strided, candidates, forward_with, plan,
    vector,
};
use cubecl::client::Client;
use cubecl::ir::ElemType;

use crate::run::{Outputs, format, half_ulp, magnitude, norms};
use crate::support::Data;
use crate::support::oracle::compute;
use crate::support::run::F32;
use crate::ways::Element;

pub fn dtype(element: Element) -> ElemType {
    format(element).elem()
}

/// Contiguous tensors on the device.
pub fn upload(client: &Client, element: Element, problem: &Problem, data: &Data) -> ForwardInputs {
    let queries = problem.axes.map(|axis| axis.queries);
    let keys = problem.axes.map(|axis| axis.keys);
    let (dim, dim_v, heads_kv) = (problem.head_dim, problem.head_dim_v, problem.heads_kv);
    let more = [1, 1, problem.additional];
    let tensor = |values: &[f64], tokens, heads, dim| {
        // Empty buffers cannot be bound.
        let values = if values.is_empty() { &[0.0] } else { values };
        Strided::contiguous(format(element).upload(client, values), tokens, heads, dim)
    };
    ForwardInputs {
        query: tensor(&data.query, queries, problem.heads, dim),
        key: tensor(&data.key, keys, heads_kv, dim),
        value: tensor(&data.value, keys, heads_kv, dim_v),
        additional: (problem.additional > 0).then(|| {
            (
                tensor(&data.additional_key, more, heads_kv, dim),
                tensor(&data.additional_value, more, heads_kv, dim_v),
            )
        }),
    }
}

/// Runs the forward pass on tensors that lie on the device, into buffers full of NaN.
pub fn attend(
    client: &Client,
    element: Element,
    blueprint: &Blueprint,
    problem: &Problem,
    inputs: &ForwardInputs,
) -> Outputs {
    let rows = problem.batch * problem.queries() * problem.heads;
    let outputs = ForwardOutputs {
        out: format(element).poisoned(client, rows * problem.head_dim_v),
        lse: F32.poisoned(client, rows),
    };
    forward_with(client, blueprint, problem, dtype(element), inputs, &outputs).expect("launched");
    (
        format(element).download(client, &outputs.out, rows * problem.head_dim_v),
        F32.download(client, &outputs.lse, rows),
    )
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
    inputs: &ForwardInputs,
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
    inputs: &ForwardInputs,
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
