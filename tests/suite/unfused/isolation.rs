//! What a query does not see cannot reach it: NaN goes where the oracle says, and nowhere else.

use burn::tensor::DType;

use super::oracle::Halves;
use super::random::{everything, tiles};
use super::run::{Setup, run};
use crate::support::check::nan_as_expected;
use crate::support::devices;
use crate::support::run::round;

type Change = fn(&mut Halves) -> &mut Vec<f64>;

const CHANGES: [(&str, Change); 4] = [
    ("query", |halves| &mut halves.query),
    ("key", |halves| &mut halves.key),
    ("value", |halves| &mut halves.value),
    ("out's gradient", |halves| &mut halves.grad_out),
];

#[test]
fn nan_goes_where_it_is_seen() {
    let problem = everything();
    let halves = Halves::random(&problem, 13);
    for device in devices() {
        for strategy in device.strategies() {
            let setup = Setup::new(&device.device, strategy);
            for (of, change) in CHANGES {
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

/// Products of whole tiles multiply by zero what a window has not.
#[test]
fn infinity_goes_where_it_is_seen_in_half_types() {
    const DTYPE: DType = DType::BF16;
    let [problem, ..] = tiles();
    let mut halves = Halves::random(&problem, 13);
    for values in halves.all_mut() {
        *values = round(DTYPE, values);
    }
    for device in devices().into_iter().filter(|device| device.supports(DTYPE)) {
        for strategy in device.strategies() {
            let setup = Setup::new(&device.device, strategy).dtype(DTYPE);
            for (of, change) in CHANGES {
                let mut spoiled = halves.clone();
                let values = change(&mut spoiled);
                let middle = values.len() / 3;
                values[middle] = f64::INFINITY;
                let (got, want) = (run(&problem, &spoiled, &setup), spoiled.compute(&problem));
                for ((name, got), (_, want)) in got.named().into_iter().zip(want.named()) {
                    for (place, (got, want)) in got.iter().zip(want).enumerate() {
                        let is_right = got.is_finite() == want.is_finite();
                        let what = format!("{} {strategy:?} infinity in {of}", device.name);
                        assert!(is_right, "{what}, {name} {place}: {got}, not {want}");
                    }
                }
            }
        }
    }
}
