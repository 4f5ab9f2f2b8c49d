//! A sequence gives what it gives alone, to the bit where it is a launch, or a call, of its own, and nothing of it reaches another.

use burn::tensor::{DType, Device, Distribution, Tensor};
use burn_natten::{
    AttentionOptions, CausalAlignment, Lengths, Strategy, attention, attention_packed,
};

use super::batch::{Packed, images, joined, own_windows, run, texts};
use crate::suite::unfused::run::Setup;
use crate::support::check::{F32, close_to_unit, identical};
use crate::support::problem::{Gradients, Inputs};
use crate::support::run::{self, Loss, Results, rounded, values as values_of};
use crate::support::{TestDevice, devices};

fn batches() -> [Packed; 5] {
    [
        images(None, false),
        images(Some(3), false),
        own_windows(),
        texts(false, None),
        texts(true, Some(2)),
    ]
}

fn gradients(results: &Results) -> &Gradients {
    results.gradients.as_ref().expect("was asked for")
}

/// Fails unless both are the same but for rounding. CubeCL's kernels have one launch for all sequences, with the tiles of one of them.
#[track_caller]
fn alike(what: &str, device: &TestDevice, dtype: DType, got: &[f64], want: &[f64]) {
    // Of the largest element, which is of the order of 1 in all of these tensors.
    let tolerance = match dtype {
        DType::F16 => 0.5f64.powi(10),
        DType::BF16 => 0.5f64.powi(7),
        _ => F32,
    };
    match device.name {
        "flex" => identical(what, got, want),
        _ => close_to_unit(what, got, want, tolerance, 1.0),
    }
}

fn check(device: &TestDevice, strategy: Strategy, dtype: DType, packed: &Packed) {
    let mut inputs = packed.inputs(3);
    if dtype != DType::F32 {
        inputs = inputs.into_iter().map(|inputs| rounded(inputs, dtype)).collect();
    }
    // A loss of the output alone: that of a row that sees no key has no logsumexp to take part.
    for inputs in &mut inputs {
        inputs.grad_lse.fill(0.0);
    }
    let together = run(packed, &inputs, &Setup::new(&device.device, strategy).dtype(dtype));
    let setup = run::Setup::new(&device.device).dtype(dtype).loss(Loss::Out);
    let (mut row, mut more) = ([0; 5], [0; 2]);
    let what = format!("{} {strategy:?} {dtype:?}", device.name);
    for (number, (problem, inputs)) in packed.sequences.iter().zip(&inputs).enumerate() {
        if problem.queries() == 0 {
            let keys = [&inputs.key, &inputs.value].map(Vec::len);
            let of = gradients(&together);
            assert!(of.key[row[2]..][..keys[0]].iter().all(|gradient| *gradient == 0.0));
            assert!(of.value[row[3]..][..keys[1]].iter().all(|gradient| *gradient == 0.0));
            (row[2], row[3]) = (row[2] + keys[0], row[3] + keys[1]);
            let [keys, values] = [&inputs.more_keys, &inputs.more_values].map(Vec::len);
            assert!(of.more_keys[more[0]..][..keys].iter().all(|gradient| *gradient == 0.0));
            assert!(of.more_values[more[1]..][..values].iter().all(|gradient| *gradient == 0.0));
        } else {
            // Alone, what has no keys is refused by tiers that are asked for by name; beside others it has nothing to compute.
            let is_refused = problem.keys() == 0 && inputs.more_keys.is_empty();
            let strategy = if is_refused { Strategy::Reference } else { strategy };
            let alone = run::run(problem, inputs, &setup.clone().strategy(strategy)).expect("fits");
            let part = |name: &str, all: &[f64], one: &[f64], at: &mut usize| {
                let what = format!("{what} {name} of {number}");
                alike(&what, device, dtype, &all[*at..][..one.len()], one);
                *at += one.len();
            };
            part("out", &together.out, &alone.out, &mut row[0]);
            part("lse", &together.lse, &alone.lse, &mut row[4]);
            let (all, one) = (gradients(&together), gradients(&alone));
            part("dq", &all.query, &one.query, &mut row[1]);
            part("dk", &all.key, &one.key, &mut row[2]);
            part("dv", &all.value, &one.value, &mut row[3]);
            part("additional dk", &all.more_keys[more[0]..], &one.more_keys, &mut 0);
            part("additional dv", &all.more_values[more[1]..], &one.more_values, &mut 0);
        }
        more = [more[0] + inputs.more_keys.len(), more[1] + inputs.more_values.len()];
    }
    assert_eq!(row[0], together.out.len(), "{what}: all are there");
}

#[test]
fn a_sequence_gives_what_it_gives_alone() {
    for device in devices() {
        for strategy in device.strategies() {
            for packed in batches() {
                check(&device, strategy, DType::F32, &packed);
            }
        }
    }
}

#[test]
fn so_do_half_types() {
    for dtype in [DType::F16, DType::BF16] {
        for device in devices().into_iter().filter(|device| device.supports(dtype)) {
            for strategy in device.half_strategies() {
                check(&device, strategy, dtype, &images(Some(3), false));
                check(&device, strategy, dtype, &texts(true, None));
            }
        }
    }
}

#[test]
fn nan_in_a_sequence_reaches_no_other() {
    let spoil = |inputs: &mut Inputs| {
        for values in [&mut inputs.query, &mut inputs.key, &mut inputs.value] {
            values.fill(f64::NAN);
        }
        inputs.more_keys.fill(f64::NAN);
        inputs.more_values.fill(f64::INFINITY);
    };
    for device in devices() {
        for strategy in device.strategies() {
            for packed in batches() {
                let inputs = packed.inputs(5);
                let setup = Setup::new(&device.device, strategy);
                let clean = run(&packed, &inputs, &setup);
                for spoiled in 0..packed.sequences.len() {
                    let mut with_nan = inputs.clone();
                    spoil(&mut with_nan[spoiled]);
                    let got = run(&packed, &with_nan, &setup);
                    let compare =
                        |name: &str, got: &[f64], want: &[f64], of: fn(&Inputs) -> &Vec<f64>| {
                            // Where each element's sequence is known by the sizes of the inputs.
                            let sizes = inputs.iter().map(|inputs| of(inputs).len());
                            let mut at = 0;
                            for (number, size) in sizes.enumerate() {
                                if number != spoiled {
                                    let what =
                                        format!("{} {strategy:?} {name} of {number}", device.name);
                                    identical(&what, &got[at..][..size], &want[at..][..size]);
                                }
                                at += size;
                            }
                            assert_eq!((at, want.len()), (got.len(), joined(&inputs, of).len()));
                        };
                    compare("out", &got.out, &clean.out, |x| &x.grad_out);
                    compare("lse", &got.lse, &clean.lse, |x| &x.grad_lse);
                    let (got, clean) = (gradients(&got), gradients(&clean));
                    compare("dq", &got.query, &clean.query, |x| &x.query);
                    compare("dk", &got.key, &clean.key, |x| &x.key);
                    compare("dv", &got.value, &clean.value, |x| &x.value);
                    compare("additional dk", &got.more_keys, &clean.more_keys, |x| &x.more_keys);
                    compare("additional dv", &got.more_values, &clean.more_values, |x| {
                        &x.more_values
                    });
                }
            }
        }
    }
}

/// Whoever wants one gradient gets it, whatever else is tracked.
#[test]
fn gradients_come_one_by_one() {
    let device = Device::flex().autodiff();
    let lengths = Lengths::new([4, 0, 3]).with_keys([5, 2, 0]);
    let random = |tokens| Tensor::<4>::random([1, tokens, 2, 8], Distribution::Default, &device);
    let more = Tensor::<4>::random([3, 2, 2, 8], Distribution::Default, &device);
    let tensors = [random(7), random(7), random(7), more.clone(), more];
    let gradients = |tracked: [bool; 5]| {
        let mut tensors = tensors.clone();
        for (tensor, is_tracked) in tensors.iter_mut().zip(tracked) {
            *tensor = tensor.clone().detach().set_require_grad(is_tracked);
        }
        let [query, key, value, keys, values] = tensors.clone();
        let options = AttentionOptions::new().with_causal(true).with_additional_kv(keys, values);
        let out = attention_packed(query, key, value, &lengths, options);
        let tape = out.square().sum().backward();
        tensors.map(|tensor| tensor.grad(&tape).map(values_of))
    };
    let all = gradients([true; 5]);
    for wanted in 0..5 {
        let some = gradients(std::array::from_fn(|place| place == wanted));
        for (place, gradient) in some.into_iter().enumerate() {
            assert_eq!(gradient, all[place].clone().filter(|_| place == wanted), "{wanted}");
        }
    }
    assert!(gradients([false, false, false, true, false])[3].is_some());
}

/// With queries that stand where their numbers say, or at the end.
#[test]
fn causality_is_aligned_in_each_sequence() {
    let device = Device::flex();
    let lengths = Lengths::new([3, 5]).with_keys([6, 2]);
    let random = || Tensor::<4>::random([1, 8, 2, 8], Distribution::Default, &device);
    let (query, key) = (random(), random());
    for alignment in [CausalAlignment::Start, CausalAlignment::End] {
        let options = AttentionOptions::new().with_causal(true).with_causal_alignment(alignment);
        let (q, k) = (query.clone(), key.clone());
        let out = attention_packed(q.clone(), k.clone(), k, &lengths, options.clone());
        let (q, k) = (q.narrow(1, 3, 5), key.clone().narrow(1, 6, 2));
        let alone = attention(q, k.clone(), k, options);
        assert_eq!(values_of(out.narrow(1, 3, 5)), values_of(alone));
    }
}
