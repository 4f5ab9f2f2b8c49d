//! Random packed batches against the oracle of each sequence.

use burn::tensor::DType;

use super::batch::{Packed, run};
use crate::suite::unfused::run::Setup;
use crate::support::check::{F32, close_to_unit};
use crate::support::devices;
use crate::support::run::Results;

/// Within a tolerance of what is expected, in units of at least 1: gradients of normal numbers may vanish.
fn agree(what: &str, got: &Results, want: &Results, tolerance: f64) {
    close_to_unit(&format!("{what} out"), &got.out, &want.out, tolerance, 1.0);
    close_to_unit(&format!("{what} lse"), &got.lse, &want.lse, tolerance, 1.0);
    let gradients = |results: &Results| results.gradients.clone().expect("both have them");
    let (got, want) = (gradients(got), gradients(want));
    for ((name, got), (_, want)) in got.named().into_iter().zip(want.named()) {
        close_to_unit(&format!("{what} {name}"), got, want, tolerance, 1.0);
    }
}

/// `BURN_NATTEN_TEST_CASES` asks for more.
fn cases(compiles_kernels: bool) -> u64 {
    let asked = std::env::var("BURN_NATTEN_TEST_CASES").ok().and_then(|cases| cases.parse().ok());
    asked.unwrap_or(if compiles_kernels { 8 } else { 64 })
}

#[test]
fn random_batches_agree_with_the_oracle() {
    for device in devices() {
        for seed in 0..cases(device.compiles_kernels()) {
            let packed = Packed::random(seed);
            let inputs = packed.inputs(seed);
            let want = packed.expected(&inputs);
            for strategy in device.strategies() {
                let got = run(&packed, &inputs, &Setup::new(&device.device, strategy));
                let what = format!("{} {strategy:?} seed {seed} {packed:?}", device.name);
                agree(&what, &got, &want, F32);
            }
        }
    }
}

#[test]
fn f64_is_computed_in_f64() {
    for seed in 0..8 {
        let packed = Packed::random(seed);
        let inputs = packed.inputs(seed);
        let want = packed.expected(&inputs);
        for device in devices().into_iter().filter(|device| device.supports(DType::F64)) {
            // Tensor operations alone, where kernels do not compute in f64, take their time to compile.
            for strategy in
                device.f64_strategies().into_iter().filter(|_| !device.compiles_kernels())
            {
                let setup = Setup::new(&device.device, strategy).dtype(DType::F64);
                agree(
                    &format!("{strategy:?} seed {seed}"),
                    &run(&packed, &inputs, &setup),
                    &want,
                    1e-12,
                );
            }
        }
    }
}
