//! What the tests that both tiers share compute a problem by.

use burn_natten_kernels::Problem;
use burn_natten_kernels::tensor_core::Blueprint;
use cubecl::client::Client;

use crate::attend::{attend, planned, upload};
pub use crate::element::Element;
use crate::run::Forward;
use crate::support::Data;

/// What the kernels multiply.
pub const ELEMENTS: [Element; 3] = Element::ALL;
/// Those with the range of f32.
pub const WIDE: [Element; 2] = [Element::Bf16, Element::Tf32];

/// Output and logsumexp by each blueprint that would run, with its name.
pub fn computed(
    client: &Client,
    element: Element,
    problem: &Problem,
    data: &Data,
) -> Vec<(String, Forward)> {
    let inputs = upload(client, element, problem, data);
    let compute = |blueprint: Blueprint| {
        (blueprint.to_string(), attend(client, element, &blueprint, problem, &inputs))
    };
    planned(client, element, problem, &inputs).into_iter().map(compute).collect()
}
