//! What no list names, or a causal axis hides, cannot reach a query: NaN goes where the oracle says, and nowhere else.

use super::oracle::Inputs;
use super::random::everything;
use super::run::{Setup, run};
use crate::support::check::nan_as_expected;
use crate::support::devices;

#[test]
fn nan_goes_where_it_is_seen() {
    let problem = everything();
    let inputs = problem.inputs(13);
    type Change = fn(&mut Inputs) -> &mut Vec<f64>;
    let changes: [(&str, Change); 4] = [
        ("query", |inputs| &mut inputs.query),
        ("key", |inputs| &mut inputs.key),
        ("value", |inputs| &mut inputs.value),
        ("out's gradient", |inputs| &mut inputs.grad_out),
    ];
    for device in devices() {
        for strategy in device.strategies() {
            let setup = Setup::new(&device.device, strategy);
            for (of, change) in changes {
                for part in [0, 3, 7] {
                    let mut spoiled = inputs.clone();
                    let values = change(&mut spoiled);
                    let at = values.len() * part / 8;
                    values[at] = f64::NAN;
                    let (got, want) = (run(&problem, &spoiled, &setup), problem.compute(&spoiled));
                    for ((name, got), (_, want)) in got.named().into_iter().zip(want.named()) {
                        let what = format!("{} {strategy:?} NaN in {of}, {name}", device.name);
                        nan_as_expected(&what, got, want);
                    }
                }
            }
        }
    }
}
