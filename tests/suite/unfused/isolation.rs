//! What a query does not see cannot reach it: NaN goes where the oracle says, and nowhere else.

use super::oracle::Halves;
use super::random::everything;
use super::run::{Setup, run};
use crate::support::check::nan_as_expected;
use crate::support::devices;

#[test]
fn nan_goes_where_it_is_seen() {
    let problem = everything();
    let halves = Halves::random(&problem, 13);
    type Change = fn(&mut Halves) -> &mut Vec<f64>;
    let changes: [(&str, Change); 4] = [
        ("query", |halves| &mut halves.query),
        ("key", |halves| &mut halves.key),
        ("value", |halves| &mut halves.value),
        ("out's gradient", |halves| &mut halves.grad_out),
    ];
    for device in devices() {
        for strategy in device.strategies() {
            let setup = Setup::new(&device.device, strategy);
            for (of, change) in changes {
                let mut spoiled = halves.clone();
                let values = change(&mut spoiled);
                let middle = values.len() / 3;
                values[middle] = f64::NAN;
                let (got, want) = (run(&problem, &spoiled, &setup), spoiled.compute(&problem));
                for ((name, got), (_, want)) in got.named().into_iter().zip(want.named()) {
                    let what = format!("{} {strategy:?} NaN in {of}, {name}", device.name);
                    nan_as_expected(&what, got, want);
                }
            }
        }
    }
}
