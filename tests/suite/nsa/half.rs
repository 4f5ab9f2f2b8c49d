//! f16 and bf16, with lists given: the error is at most twice that of rounding a right answer.

use burn::tensor::DType;
use burn_natten::Strategy;
use half::{bf16, f16};
use rstest::rstest;

use super::cases::{Setup, cases};
use crate::support::check::{F32, close, errors, magnitude};
use crate::support::devices;
use crate::support::run::round;

#[rstest]
fn half_types_are_as_good_as_rounding(#[values(DType::F16, DType::BF16)] dtype: DType) {
    let half_ulp = 0.5
        * match dtype {
            DType::F16 => f16::EPSILON.to_f64(),
            _ => bf16::EPSILON.to_f64(),
        };
    for device in devices().into_iter().filter(|device| device.supports(dtype)) {
        for case in cases() {
            let case = case.rounded(dtype);
            let flex = burn::tensor::Device::flex();
            let exact = Setup::new(&flex, DType::F64, Strategy::Auto);
            let exact = case.run(&Setup { lists: true, ..exact });
            let setup = Setup::new(&device.device, dtype, Strategy::Auto);
            let got = case.run(&Setup { lists: true, ..setup });
            for (name, got) in got {
                let (what, exact) =
                    (format!("{} {} {name}", device.name, case.name), &exact[&name]);
                if name.starts_with("lse") {
                    // Compressed keys are rounded to the type before they are scored.
                    let tolerance = if name == "lse_cmp" { 2.0 * half_ulp } else { F32 };
                    close(&what, &got, exact, tolerance);
                    continue;
                }
                let (square, max) = errors(&got, exact);
                let (base_square, base_max) = errors(&round(dtype, exact), exact);
                let base_max = base_max.max(half_ulp * magnitude(exact));
                assert!(
                    square <= 2.0 * base_square && max <= 2.0 * base_max,
                    "{what}: rms {square:.2e} of {base_square:.2e}, worst {max:.2e} of {base_max:.2e}"
                );
            }
        }
    }
}
