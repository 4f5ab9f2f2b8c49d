//! The same bits every time, whatever else the device does.

use burn_natten_kernels::native::sm90::{Element, Schedule};
use burn_natten_kernels::{Operands, Problem, Strided};
use cubecl::client::Client;
use test_support::Data;
use test_support::compare::{Forward, device, format};
use test_support::problems::repeated;

use crate::run::{planned, run_inputs, upload};

pub const RUNS: usize = 20;

fn bits((out, lse): &Forward) -> Vec<u64> {
    out.iter().chain(lse).map(|x| x.to_bits()).collect()
}

fn prepare(client: &Client, problem: &Problem) -> (Schedule, Operands<Strided>) {
    let data = Data::random(problem, 3, format(Element::Bf16).round);
    (planned(problem, Element::Bf16), upload(client, Element::Bf16, problem, &data))
}

#[test]
fn twenty_runs() {
    let Some(client) = device() else { return };
    for problem in repeated() {
        let (schedule, inputs) = prepare(&client, &problem);
        let first = bits(&run_inputs(&client, &schedule, &problem, &inputs));
        for run in 1..RUNS {
            let again = bits(&run_inputs(&client, &schedule, &problem, &inputs));
            assert!(again == first, "{schedule}: run {run} differs");
        }
    }
}

/// Every thread has a CubeCL stream of its own; the tensors of one are read on both.
#[test]
fn two_streams() {
    let Some(client) = device() else { return };
    for problem in repeated().into_iter().step_by(3) {
        let (schedule, inputs) = prepare(&client, &problem);
        let first = bits(&run_inputs(&client, &schedule, &problem, &inputs));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let (_, own) = prepare(&client, &problem);
                    for run in 0..RUNS {
                        let inputs = if run % 2 == 0 { &inputs } else { &own };
                        let again = bits(&run_inputs(&client, &schedule, &problem, inputs));
                        assert!(again == first, "{schedule}: run {run} differs");
                    }
                });
            }
        });
    }
}
