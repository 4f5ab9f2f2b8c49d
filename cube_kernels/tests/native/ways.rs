//! What the tests that both tiers share compute a problem by.

use burn_natten_kernels::Problem;
pub use burn_natten_kernels::native::sm90::Element;
use cubecl::client::Client;

use crate::run::{Forward, planned, run};
use crate::support::Data;

/// What the kernels multiply.
pub const ELEMENTS: [Element; 2] = [Element::F16, Element::Bf16];
/// Those with the range of f32.
pub const WIDE: [Element; 1] = [Element::Bf16];

/// Output and logsumexp by the schedule that would run, with its name.
pub fn computed(
    client: &Client,
    element: Element,
    problem: &Problem,
    data: &Data,
) -> Vec<(String, Forward)> {
    let schedule = planned(problem, element);
    vec![(schedule.to_string(), run(client, &schedule, problem, data))]
}
