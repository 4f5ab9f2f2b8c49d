//! What no list names, or a causal axis hides, cannot reach a query: NaN goes where the oracle says, and nowhere else.

use super::oracle::Inputs;
use super::random::everything;
use super::run::{Setup, run};
use crate::support::check::F32;
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
                        assert!(want.iter().any(|x| !x.is_nan()), "{what}: all is spoiled");
                        for (index, (got, want)) in got.iter().zip(want).enumerate() {
                            let is_close = got == want || (got - want).abs() <= 100.0 * F32;
                            let is_right = if want.is_nan() { got.is_nan() } else { is_close };
                            assert!(is_right, "{what} {index}: {got} where {want} is expected");
                        }
                    }
                }
            }
        }
    }
}
