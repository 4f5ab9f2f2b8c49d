//! Block-sparse attention.

use burn_natten_kernels::native::sm90::{Element, forward_blocks, planned_blocks};
use cubecl::client::Client;
use rand::{SeedableRng, rngs::StdRng};
use test_support::blocks::{Case, native_cases, random_native};

use crate::run::{Machine, Policy};
use crate::ways::{client, hopper};

/// The forward pass of a case on the machine.
fn forward(
    machine: &Machine,
    client: &Client,
    element: Element,
    case: &Case,
) -> Result<(), String> {
    case.check_forward(client, element, |inputs, lists, outputs| {
        let launch = || forward_blocks(client, &case.sparse, element, inputs, lists, outputs);
        machine
            .run(launch)
            .unwrap_or_else(|fault| panic!("{}: {fault}; {:?}", case.name, case.sparse))
    })
}

fn check(policy: Policy, cases: &[Case]) {
    let Some(machine) = hopper(policy) else { return };
    let client = client();
    let mut failures = vec![];
    for (number, case) in cases.iter().enumerate() {
        let element = [Element::F16, Element::Bf16][number % 2];
        if let Ok(schedule) = planned_blocks(&case.sparse, element) {
            println!("{}: {schedule}", case.name);
        }
        failures.extend(forward(&machine, &client, element, case).err());
    }
    assert!(failures.is_empty(), "{} of {}:\n{}", failures.len(), cases.len(), failures.join("\n"));
}

/// Those of them that have schedules, of which there are enough.
fn supported(count: usize, seed: u64) -> Vec<Case> {
    let mut rng = StdRng::seed_from_u64(seed);
    let cases = std::iter::repeat_with(|| random_native(&mut rng)).take(2 * count);
    let cases: Vec<_> = cases
        .filter(|case| planned_blocks(&case.sparse, Element::F16).is_ok())
        .take(count)
        .collect();
    assert_eq!(cases.len(), count);
    cases
}

#[test]
fn every_kind() {
    check(Policy::Late, &native_cases());
}

#[test]
fn random_problems() {
    check(Policy::Random(3), &supported(6, 7));
}

#[test]
#[ignore = "takes minutes"]
fn everything_in_every_order() {
    for policy in Policy::ALL {
        check(policy, &native_cases());
    }
    check(Policy::Random(4), &supported(60, 8));
}
