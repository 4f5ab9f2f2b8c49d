//! Packed tensors and cotangents that are views give what contiguous ones of the same values give.

use burn::tensor::{DType, Tensor};

use super::batch::{images, own_windows, run, run_laid, texts};
use crate::suite::unfused::run::Setup;
use crate::support::check::identical;
use crate::support::devices;
use crate::support::layout::{cropped, swapped};
use crate::support::run::rounded;

#[test]
fn views_are_like_contiguous_tensors() {
    type Lay = (&'static str, fn(Tensor<4>) -> Tensor<4>);
    let lays: [Lay; 6] = [
        ("cropped along the batch", |tensor| cropped(tensor, 0)),
        ("cropped along the tokens", |tensor| cropped(tensor, 1)),
        ("cropped along the heads", |tensor| cropped(tensor, 2)),
        ("cropped along the vectors", |tensor| cropped(tensor, 3)),
        ("tokens and heads exchanged", |tensor| swapped(tensor, 1, 2)),
        ("heads and vectors exchanged", |tensor| swapped(tensor, 2, 3)),
    ];
    for device in devices() {
        for strategy in device.strategies() {
            for (dtype, packed) in [
                (DType::F32, own_windows()),
                (DType::F32, images(Some(3), true)),
                (DType::F32, texts(true, None)),
                (DType::F16, images(None, false)),
            ] {
                if !device.supports(dtype) {
                    continue;
                }
                let mut inputs = packed.inputs(9);
                if dtype != DType::F32 {
                    inputs = inputs.into_iter().map(|inputs| rounded(inputs, dtype)).collect();
                }
                let setup = Setup::new(&device.device, strategy).dtype(dtype);
                let want = run(&packed, &inputs, &setup);
                for (name, lay) in lays {
                    let got = run_laid(&packed, &inputs, &setup, &lay).expect("fits");
                    let what = format!("{} {strategy:?} {dtype:?} {name}", device.name);
                    identical(&format!("{what} out"), &got.out, &want.out);
                    identical(&format!("{what} lse"), &got.lse, &want.lse);
                    let gradients =
                        [got, want.clone()].map(|results| results.gradients.expect("asked for"));
                    let [got, want] = gradients.each_ref().map(|gradients| gradients.named());
                    for ((name, got), (_, want)) in got.into_iter().zip(want) {
                        identical(&format!("{what} {name}"), got, want);
                    }
                }
            }
        }
    }
}
