//! Random problems against the oracle, in every type. Hidden slots hold NaN, in weights and in the gradient of scores.

use burn::tensor::{DType, Tensor};
use burn_natten::{NeighborhoodOptions, Strategy, na2d_av, na2d_qk};
use half::{bf16, f16};

use super::oracle::{Halves, Results};
use super::run::{Setup, run};
use crate::suite::properties::{cases_on, check_cases, neighborhoods};
use crate::support::check::{F32, close, close_to_unit, identical, magnitude};
use crate::support::devices;
use crate::support::problem::{Axis, Problem};
use crate::support::run::round;

/// Within f32's tolerance of what is expected, in units of at least 1: gradients of normal numbers may vanish.
pub fn agree(what: &str, got: &Results, want: &Results) {
    for ((name, got), (_, want)) in got.named().into_iter().zip(want.named()) {
        close_to_unit(&format!("{what} {name}"), got, want, F32, 1.0);
    }
}

#[test]
fn random_problems_agree_with_the_oracle() {
    for device in devices() {
        check_cases(cases_on(&device), (neighborhoods(), 0..u64::MAX / 2), |(problem, seed)| {
            let halves = Halves::random(&problem, seed).poisoned(&problem);
            let want = halves.compute(&problem);
            for strategy in device.strategies() {
                let got = run(&problem, &halves, &Setup::new(&device.device, strategy));
                agree(&format!("{} {strategy:?} {problem:?}", device.name), &got, &want);
            }
            Ok(())
        });
    }
}

/// With heads that share keys, a stride, a dilation, a causal axis and additional tokens.
pub fn everything() -> Problem {
    let along = |length, kernel_size, stride, dilation, is_causal| Axis::Window {
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
        dim_v: 4,
        additional: Some(3),
        scale: None,
        axes: vec![along(9, 4, 2, 2, true), along(7, 3, 2, 1, false)],
        bias: false,
    }
}

/// Without additional tokens, of vectors that tensor cores take: planes of several tiles, a line, and a box with all else.
pub fn tiles() -> [Problem; 3] {
    let along = |length, kernel_size, stride, dilation, is_causal| Axis::Window {
        length,
        kernel_size,
        stride,
        dilation,
        is_causal,
    };
    let problem = Problem {
        heads: 2,
        dim: 32,
        dim_v: 64,
        additional: None,
        axes: vec![along(14, 7, 1, 1, false), along(22, 7, 1, 1, false)],
        ..everything()
    };
    let line = Problem { heads: 4, axes: vec![along(70, 9, 1, 1, false)], ..problem.clone() };
    let axes = [along(4, 3, 1, 1, true), along(8, 3, 1, 2, false), along(9, 4, 2, 1, false)];
    let all = Problem { heads: 4, dim: 16, dim_v: 48, axes: axes.into(), ..problem.clone() };
    [problem, line, all]
}

#[test]
fn f64_is_computed_in_f64() {
    let problem = everything();
    let halves = Halves::random(&problem, 5).poisoned(&problem);
    let want = halves.compute(&problem);
    for device in devices().into_iter().filter(|device| device.supports(DType::F64)) {
        for strategy in device.f64_strategies() {
            let setup = Setup::new(&device.device, strategy).dtype(DType::F64);
            let got = run(&problem, &halves, &setup);
            for ((name, got), (_, want)) in got.named().into_iter().zip(want.named()) {
                close(&format!("{} {strategy:?} {name}", device.name), got, want, 1e-14);
            }
        }
    }
}

/// Sums are held in f32: what comes out is a right answer, rounded once.
#[test]
fn half_types_are_rounded_once() {
    let problems = || [everything()].into_iter().chain(tiles());
    for (problem, dtype) in [DType::F16, DType::BF16]
        .into_iter()
        .flat_map(|dtype| problems().map(move |of| (of, dtype)))
    {
        let mut halves = Halves::random(&problem, 7);
        for values in halves.all_mut() {
            *values = round(dtype, values);
        }
        let halves = halves.poisoned(&problem);
        let want = halves.compute(&problem);
        let half_ulp = match dtype {
            DType::F16 => 0.5 * f16::EPSILON.to_f64(),
            _ => 0.5 * bf16::EPSILON.to_f64(),
        };
        for device in devices().into_iter().filter(|device| device.supports(dtype)) {
            // Where Auto takes others, Portable kernels are tested as well.
            for strategy in device.strategies().into_iter().chain([Strategy::Portable]) {
                let got =
                    run(&problem, &halves, &Setup::new(&device.device, strategy).dtype(dtype));
                for ((name, got), (_, want)) in got.named().into_iter().zip(want.named()) {
                    assert_eq!(got.len(), want.len());
                    let sums = F32 * magnitude(want);
                    for (index, (got, want)) in got.iter().zip(want).enumerate() {
                        let what = format!("{} {strategy:?} {dtype:?} {name} {index}", device.name);
                        let allowed = half_ulp * want.abs() + sums;
                        let is_right = got == want || (got - want).abs() <= allowed;
                        assert!(is_right, "{what}: {got} where {want} is expected");
                    }
                }
            }
        }
    }
}

#[test]
fn results_repeat_bit_by_bit() {
    let [tiles, ..] = tiles();
    for (problem, dtype) in [(everything(), DType::F32), (tiles, DType::BF16)] {
        repeat(&problem, dtype);
    }
}

fn repeat(problem: &Problem, dtype: DType) {
    let halves = Halves::random(problem, 11);
    for device in devices().into_iter().filter(|device| device.supports(dtype)) {
        for strategy in device.strategies() {
            let setup = Setup::new(&device.device, strategy).dtype(dtype);
            let [first, second] = [0, 1].map(|_| run(problem, &halves, &setup));
            for ((name, a), (_, b)) in first.named().into_iter().zip(second.named()) {
                identical(&format!("{} {strategy:?} {name}", device.name), a, b);
            }
        }
    }
}

#[test]
fn no_sample_gives_no_weights() {
    for device in devices() {
        for strategy in device.strategies() {
            let zeros = |shape| Tensor::<5>::zeros(shape, &device.device);
            let options = NeighborhoodOptions::<2>::new([4, 3]).with_strategy(strategy);
            let (query, key) = (zeros([0, 9, 7, 4, 8]), zeros([0, 9, 7, 2, 8]));
            let scores = na2d_qk(query, key, options.clone());
            assert_eq!(scores.dims(), [0, 9, 7, 4, 12]);
            let out = na2d_av(scores, zeros([0, 9, 7, 2, 5]), options);
            assert_eq!(out.dims(), [0, 9, 7, 4, 5]);
        }
    }
}
