//! Settings, strategies and determinism.

use burn::tensor::{DType, Device, Tensor};
use burn_natten::{
    AttentionOptions, Capabilities, Context, MemoryPreference, NeighborhoodOptions, Strategy,
    try_attention, try_na1d,
};

use crate::support::check::{self, close, errors, identical};
use crate::support::devices;
use crate::support::problem::{Axis, Problem};
use crate::support::run::{Loss, Results, Setup, run};

fn problem() -> Problem {
    let window = |length, kernel_size, stride, dilation, is_causal| Axis::Window {
        length,
        kernel_size,
        stride,
        dilation,
        is_causal,
    };
    Problem {
        batch: 2,
        heads: 4,
        heads_kv: 2,
        dim: 8,
        dim_v: 6,
        additional: Some(2),
        scale: None,
        bias: false,
        axes: vec![window(8, 3, 2, 2, true), window(7, 3, 1, 1, false)],
    }
}

fn dense() -> Problem {
    Problem { axes: vec![Axis::Dense { queries: 3, keys: 200, is_causal: false }], ..problem() }
}

/// Every combination of the settings that may choose another path.
fn contexts() -> Vec<Context> {
    let memory =
        [MemoryPreference::Default, MemoryPreference::Strict, MemoryPreference::Unrestricted];
    let with = |memory| {
        [false, true].map(|deterministic| {
            Context::new().with_memory(memory).with_deterministic(deterministic)
        })
    };
    memory.into_iter().flat_map(with).collect()
}

fn bits_agree(what: &str, got: &Results, want: &Results) {
    identical(&format!("{what} out"), &got.out, &want.out);
    identical(&format!("{what} lse"), &got.lse, &want.lse);
    if let (Some(got), Some(want)) = (&got.gradients, &want.gradients) {
        for ((name, got), (_, want)) in got.named().into_iter().zip(want.named()) {
            identical(&format!("{what} {name}"), got, want);
        }
    }
}

/// Rounded to the nearest with 11 significant bits.
fn tf32(value: f64) -> f64 {
    f64::from(f32::from_bits(((value as f32).to_bits() + 0x1000) & !0x1fff))
}

/// Where the device has it and it is allowed, errors are at most twice those of rounding the inputs. Elsewhere
/// it changes nothing, and without it results are those of f32.
#[test]
fn tf32_is_used_where_it_is_allowed() {
    let allowed = Context::new().with_allow_tf32(true);
    for problem in [problem(), dense()] {
        let inputs = problem.inputs(53);
        let (out, lse) = problem.forward(&inputs);
        let exact = problem.backward(&inputs, &out);
        let mut rounded = inputs.clone();
        let grad_lse = rounded.grad_lse.clone();
        rounded.all_mut().into_iter().for_each(|all| all.iter_mut().for_each(|x| *x = tf32(*x)));
        rounded.grad_lse = grad_lse;
        let (rounded_out, _) = problem.forward(&rounded);
        let rounded = problem.backward(&rounded, &rounded_out);
        for device in devices() {
            let setup = Setup::new(&device.device).loss(Loss::Both);
            let of = |context| run(&problem, &inputs, &setup.clone().context(context));
            let (without, with) = (of(Context::new()).expect("valid"), of(allowed).expect("valid"));
            let what = format!("{} {problem:?}", device.name);
            close(&format!("{what} out"), &without.out, &out, check::F32);
            close(&format!("{what} lse"), &without.lse, &lse, check::F32);
            let cores = Capabilities::of(&device.device).and_then(|device| device.tensor_cores);
            if !cores.is_some_and(|cores| cores.has_tf32) {
                bits_agree(&what, &with, &without);
                continue;
            }
            let twice = |name: &str, got: &[f64], exact: &[f64], rounded: &[f64]| {
                let ((square, max), (base_square, base_max)) =
                    (errors(got, exact), errors(rounded, exact));
                assert!(
                    square <= 2.0 * base_square && max <= 2.0 * base_max,
                    "{what} {name}: rms {square:.2e} of {base_square:.2e}, worst {max:.2e} of {base_max:.2e}"
                );
                // It was computed in TF32.
                assert!(square > 0.1 * base_square, "{what} {name}: rms {square:.2e}");
            };
            twice("out", &with.out, &out, &rounded_out);
            let gradients = with.gradients.expect("ran backward");
            for ((name, got), ((_, exact), (_, rounded))) in
                gradients.named().into_iter().zip(exact.named().into_iter().zip(rounded.named()))
            {
                // What the problem does not have has no gradient.
                if !exact.is_empty() {
                    twice(name, got, exact, rounded);
                }
            }
        }
    }
}

#[test]
fn no_setting_changes_a_result() {
    for problem in [problem(), dense()] {
        let inputs = problem.inputs(51);
        let (out, lse) = problem.forward(&inputs);
        let expected = problem.backward(&inputs, &out);
        for device in devices() {
            for context in contexts().into_iter().step_by(device.sampling(5)) {
                for strategy in device.strategies() {
                    let setup = Setup::new(&device.device).strategy(strategy).loss(Loss::Both);
                    let setup = setup.context(context);
                    let results = run(&problem, &inputs, &setup).expect("valid");
                    let what = format!("{} {strategy:?} {context:?}", device.name);
                    close(&what, &results.out, &out, check::F32);
                    close(&what, &results.lse, &lse, check::F32);
                    let gradients = results.gradients.expect("ran backward");
                    let pairs = gradients.named().into_iter().zip(expected.named());
                    for ((name, got), (_, want)) in pairs {
                        close(&format!("{what} {name}"), got, want, check::F32);
                    }
                }
            }
        }
    }
}

#[test]
fn a_scope_is_like_a_context_of_the_call() {
    let strict = Context::new().with_memory(MemoryPreference::Strict).with_deterministic(true);
    let problem = problem();
    let inputs = problem.inputs(52);
    for device in devices() {
        let setup = Setup::new(&device.device).loss(Loss::Both);
        let in_call = run(&problem, &inputs, &setup.clone().context(strict)).expect("valid");
        let in_scope = {
            let _scope = strict.scope();
            assert_eq!(Context::current(), strict);
            run(&problem, &inputs, &setup).expect("valid")
        };
        assert_eq!(Context::current(), Context::new());
        bits_agree(device.name, &in_scope, &in_call);
    }
}

#[test]
fn a_scope_ends_when_its_guard_panics_away() {
    let strict = Context::new().with_memory(MemoryPreference::Strict);
    let result = std::panic::catch_unwind(|| {
        let _scope = strict.scope();
        panic!("on purpose");
    });
    assert!(result.is_err());
    assert_eq!(Context::current(), Context::new());
}

/// The backward pass runs after the scope, on another thread, with the settings of the forward.
#[test]
fn a_backward_pass_may_run_elsewhere() {
    for device in devices() {
        let device = device.device.autodiff();
        let x = Tensor::<4>::ones([1, 6, 2, 4], (&device, DType::F32)).require_grad();
        let out = {
            let _scope = Context::new().with_memory(MemoryPreference::Strict).scope();
            let options = NeighborhoodOptions::<1>::new(3);
            try_na1d(x.clone(), x.clone(), x.clone(), options).expect("valid").out
        };
        let gradient = std::thread::spawn(move || {
            let gradients = out.sum().backward();
            x.grad(&gradients).expect("tracked").sum().into_scalar::<f32>()
        });
        // Each output element is a mean of value elements, so dv sums to the number of outputs,
        // and equal keys have no say in the weights.
        assert!((gradient.join().expect("no panic") - 48.0).abs() < 1e-4);
    }
}

#[test]
fn every_runnable_strategy_agrees_with_the_oracle() {
    let problem = problem();
    let inputs = problem.inputs(53);
    let (out, lse) = problem.forward(&inputs);
    let strategies = [
        Strategy::Auto,
        Strategy::Reference,
        Strategy::Portable,
        Strategy::TensorCore,
        Strategy::Hopper,
        Strategy::Blackwell,
    ];
    for device in devices() {
        let mut ran = vec![];
        for strategy in strategies {
            let setup = Setup::new(&device.device).strategy(strategy);
            match run(&problem, &inputs, &setup) {
                Ok(results) => {
                    close(device.name, &results.out, &out, check::F32);
                    close(device.name, &results.lse, &lse, check::F32);
                    ran.push(strategy);
                }
                Err(error) => assert!(error.to_string().starts_with("strategy: "), "{error}"),
            }
        }
        let always = [Strategy::Auto, Strategy::Reference, Strategy::Portable];
        assert!(always.iter().all(|strategy| ran.contains(strategy)), "{} {ran:?}", device.name);
    }
}

#[test]
fn f64_runs_on_flex_in_every_tier() {
    let problem = problem();
    let inputs = problem.inputs(54);
    let (out, lse) = problem.forward(&inputs);
    for strategy in [Strategy::Auto, Strategy::Reference, Strategy::Portable] {
        let setup = Setup::new(&Device::flex()).strategy(strategy).dtype(DType::F64);
        let results = run(&problem, &inputs, &setup).expect("valid");
        close("out", &results.out, &out, 1e-13);
        close("lse", &results.lse, &lse, 1e-13);
    }
}

#[test]
fn repeated_runs_are_bitwise_equal() {
    for problem in [problem(), dense()] {
        let inputs = problem.inputs(55);
        for device in devices() {
            let setup = Setup::new(&device.device).loss(Loss::Both);
            let setup = setup.context(Context::new().with_deterministic(true));
            let first = run(&problem, &inputs, &setup).expect("valid");
            for _ in 1..20 {
                let again = run(&problem, &inputs, &setup).expect("valid");
                bits_agree(device.name, &again, &first);
            }
        }
    }
}

/// The options of one call do not leak into the next.
#[test]
fn options_belong_to_one_call() {
    let device = Device::flex();
    let x = Tensor::<4>::ones([1, 6, 1, 2], (&device, DType::F32));
    let refused = AttentionOptions::new().with_strategy(Strategy::Hopper);
    assert!(try_attention(x.clone(), x.clone(), x.clone(), refused).is_err());
    assert!(try_attention(x.clone(), x.clone(), x, AttentionOptions::new()).is_ok());
}
