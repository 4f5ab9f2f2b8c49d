//! No row depends on what comes behind it.

use burn::tensor::{DType, Tensor};
use burn_natten::{NativeSparseOutput, try_native_sparse_attention};

use super::random::{Inputs, Sizes, many_options};
use crate::support::check::identical;
use crate::support::quick_devices;
use crate::support::run::values;

/// A later token changes, also to what is not a number: no earlier row of any result moves by a bit.
#[test]
fn rows_do_not_see_what_comes_behind_them() {
    let sizes = Sizes::default();
    let clean = sizes.inputs(1);
    for device in quick_devices() {
        for (name, options) in many_options().into_iter().step_by(device.sampling(4)) {
            let run = |inputs: &Inputs| {
                let [q, k, v, g] = sizes.tensors(inputs, &device.device, DType::F32);
                try_native_sparse_attention(q, k, v, g, options.clone()).expect("a valid problem")
            };
            let expected = run(&clean);
            for token in [5, 23, 40, 60] {
                for poison in [7.5, f64::NAN] {
                    let mut inputs = clean.clone();
                    let [q, k, v, g] = sizes.shapes();
                    for (values, shape) in [
                        (&mut inputs.query, q),
                        (&mut inputs.key, k),
                        (&mut inputs.value, v),
                        (&mut inputs.gates, g),
                    ] {
                        let row = shape[2] * shape[3];
                        values[token * row..(token + 1) * row].fill(poison);
                    }
                    let got = run(&inputs);
                    let what = format!("{} {name}, token {token}", device.name);
                    same_rows(&what, &got, &expected, token);
                }
            }
        }
    }
}

fn same_rows(what: &str, got: &NativeSparseOutput, expected: &NativeSparseOutput, count: usize) {
    let first = |tensor: &Tensor<4>| values(tensor.clone().narrow(1, 0, count));
    identical(&format!("{what} out"), &first(&got.out), &first(&expected.out));
    let both =
        got.branches.clone().into_array().into_iter().zip(expected.branches.clone().into_array());
    for (index, (got, expected)) in both.enumerate() {
        let what = format!("{what} branch {index}");
        identical(&what, &first(&got.out), &first(&expected.out));
        let lse = |tensor: Tensor<3>| values(tensor.narrow(1, 0, count));
        identical(&what, &lse(got.logsumexp), &lse(expected.logsumexp));
    }
}

/// Rows do not even depend on whether tokens follow.
#[test]
fn a_prefix_has_the_rows_of_the_whole() {
    let sizes = Sizes::default();
    let inputs = sizes.inputs(2);
    for device in quick_devices() {
        for (name, options) in many_options().into_iter().step_by(device.sampling(4)) {
            let whole = sizes.tensors(&inputs, &device.device, DType::F32);
            let run = |count: usize| {
                let [q, k, v, g] = whole.clone().map(|tensor| tensor.narrow(1, 0, count));
                let output = try_native_sparse_attention(q, k, v, g, options.clone());
                values(output.expect("a valid problem").out.narrow(1, 0, count.min(20)))
            };
            let expected = run(61);
            for count in [20, 33, 47] {
                let what = format!("{} {name}, {count} tokens", device.name);
                crate::support::check::close(&what, &run(count), &expected, 1e-6);
            }
        }
    }
}
