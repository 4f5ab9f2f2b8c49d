//! What the tests that both tiers share compute a problem by.

use burn_natten_kernels::Problem;
use burn_natten_kernels::native::sm90::Element;
use burn_natten_kernels::tensor_core::Blueprint;
use cubecl::client::Client;

use crate::attend::{attend, planned, upload};
use crate::run::Outputs;
use crate::support::Data;

/// Output and logsumexp by each blueprint that would run, with its name.
pub fn computed(
    client: &Client,
    element: Element,
    problem: &Problem,
    data: &Data,
) -> Vec<(String, Outputs)> {
    let inputs = upload(client, element, problem, data);
    let compute = |blueprint: Blueprint| {
        (blueprint.to_string(), attend(client, element, &blueprint, problem, &inputs))
    };
    planned(client, problem, &inputs).into_iter().map(compute).collect()
}
