//! Runs the forward pass on the device and compares it with the oracle.

use burn_natten_kernels::native::sm90::{Element, Schedule, forward_with, plan};
use burn_natten_kernels::{Operands, Problem, Strided};
use cubecl::client::Client;
use test_support::Data;
use test_support::compare::{Forward, for_each_case, format};
use test_support::oracle::compute;
use test_support::tier::check_forward;

pub fn planned(problem: &Problem, element: Element) -> Schedule {
    plan(problem, element).unwrap_or_else(|| panic!("no schedule for {problem:?}"))
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

/// Runs the forward pass on tensors that lie on the device.
pub fn run_inputs(
    client: &Client,
    schedule: &Schedule,
    problem: &Problem,
    inputs: &Operands<Strided>,
) -> Forward {
    let format = format(schedule.element);
    let outputs = format.poisoned_outputs(client, problem);
    forward_with(client, schedule, problem, inputs, &outputs).expect("launched");
    format.download_outputs(client, problem, &outputs)
}

/// Uploads the data and runs the forward pass.
pub fn run(client: &Client, schedule: &Schedule, problem: &Problem, data: &Data) -> Forward {
    run_inputs(client, schedule, problem, &upload(client, schedule.element, problem, data))
}

/// At most twice the error of a result that is right but for its rounding; the logsumexp, in f32,
/// to 1e-5. Gives the error relative to that of rounding.
pub fn check(
    client: &Client,
    schedule: &Schedule,
    problem: &Problem,
    seed: u64,
) -> Result<f64, String> {
    let format = format(schedule.element);
    let data = Data::random(problem, seed, format.round);
    let exact = compute(problem, &data, |x| x);
    let result = run(client, schedule, problem, &data);
    check_forward(&schedule.to_string(), format, problem, &exact, &result)
}

/// Runs [`check`] for every problem.
pub fn check_all(client: &Client, cases: &[(Problem, Schedule)]) {
    for_each_case(cases, |(problem, schedule), seed| check(client, schedule, problem, seed));
}
