//! Known results: outputs, logsumexps, lists and gradients, of every device.

use burn::tensor::DType;
use burn_natten::Strategy;

use super::cases::{Case, Results, Setup, cases};
use crate::support::check::{self, close, identical};
use crate::support::{TestDevice, devices};

/// Holds everything that both have to each other.
fn compare(what: &str, case: &Case, results: &Results, tolerance: f64) {
    let mut compared = 0;
    for (name, got) in results {
        let Some(want) = case.tensors.get(name) else { continue };
        let what = format!("{what} {name}");
        match name.ends_with("indices") {
            true => identical(&what, got, &want.values),
            false => close(&what, got, &want.values, tolerance),
        }
        compared += 1;
    }
    assert!(compared >= 6, "{what}: {compared} tensors are compared");
}

fn check_cases(dtype: DType, tolerance: f64, strategies: fn(&TestDevice) -> Vec<Strategy>) {
    for device in devices().into_iter().filter(|device| device.supports(dtype)) {
        for strategy in strategies(&device) {
            for case in cases() {
                let what = |how: &str| format!("{} {strategy:?} {} {how}", device.name, case.name);
                let setup = Setup::new(&device.device, dtype, strategy);
                compare(&what("as stored"), &case, &case.run(&setup), tolerance);
                let own = Setup { own: true, ..setup.clone() };
                compare(&what("own tokens"), &case, &case.run(&own), tolerance);
                if case.has_nonnegative_gates() {
                    let known = Setup { nonnegative: true, ..setup.clone() };
                    compare(&what("known gates"), &case, &case.run(&known), tolerance);
                }
                if case.tensors.get("kc").is_some_and(|kc| !kc.values.is_empty()) {
                    let given = Setup { own: true, compressed: true, lists: true, ..setup };
                    let mut results = case.run(&given);
                    // Nothing is left of the tokens of this branch.
                    let gone = |name: &str| name == "dk_cmp" || name == "dv_cmp";
                    results.retain(|name, _| !gone(name));
                    compare(&what("all given"), &case, &results, tolerance);
                }
            }
        }
    }
}

#[test]
fn every_device_agrees() {
    check_cases(DType::F32, check::F32, TestDevice::strategies);
}

/// Up to the rounding of the results that are given.
#[test]
fn f64_is_exact() {
    let flex = |device: &TestDevice| match device.compiles_kernels() {
        true => vec![],
        false => device.f64_strategies(),
    };
    check_cases(DType::F64, 1e-7, flex);
}
