//! Properties that hold for every problem, on random ones.
//!
//! The generator is seeded, so that every run draws the same problems. On devices that compile a
//! kernel for each problem fewer of them run.

use burn::tensor::{DType, Device, Tensor};
use burn_natten::{AttentionOptions, NeighborhoodOptions, try_attention, try_na2d};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

use crate::support::check::{self, close_to_unit};
use crate::support::problem::{Axis, Problem};
use crate::support::run::{Loss, Setup, run};
use crate::support::{TestDevice, devices};

const CASES: u32 = 64;

/// Runs `test` on `cases` values of `strategy`, always the same ones.
pub fn check_cases<S: Strategy>(
    cases: u32,
    strategy: S,
    test: impl Fn(S::Value) -> Result<(), TestCaseError>,
) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    TestRunner::new_with_rng(config, rng).run(&strategy, test).unwrap_or_else(|e| panic!("{e}"));
}

/// The number of cases on a device.
pub fn cases_on(device: &TestDevice) -> u32 {
    if device.compiles_kernels() { CASES / 4 } else { CASES }
}

/// As many cases of sparse attention as `BURN_NATTEN_TEST_CASES` asks for.
pub fn asked_cases() -> Option<u32> {
    let asked = std::env::var("BURN_NATTEN_TEST_CASES").ok()?;
    Some(asked.parse().expect("BURN_NATTEN_TEST_CASES is a number"))
}

/// A valid axis of at most `longest` elements.
fn axis(longest: usize) -> impl Strategy<Value = Axis> {
    (2..=longest)
        .prop_flat_map(|length| (Just(length), 2..=length))
        .prop_flat_map(|(length, kernel_size)| {
            let dilations = 1..=length / kernel_size;
            (Just(length), Just(kernel_size), 1..=kernel_size, dilations, any::<bool>())
        })
        .prop_map(|(length, kernel_size, stride, dilation, is_causal)| Axis::Window {
            length,
            kernel_size,
            stride,
            dilation,
            is_causal,
        })
}

/// One to three windows.
fn windows() -> impl Strategy<Value = Vec<Axis>> {
    prop_oneof![
        prop::collection::vec(axis(23), 1),
        prop::collection::vec(axis(8), 2),
        prop::collection::vec(axis(5), 3),
    ]
}

/// One to three windows, or dense attention.
fn axes() -> impl Strategy<Value = Vec<Axis>> {
    let dense = (1..12usize, 1..12usize, any::<bool>())
        .prop_map(|(queries, keys, is_causal)| vec![Axis::Dense { queries, keys, is_causal }]);
    prop_oneof![3 => windows(), 1 => dense]
}

pub fn problems() -> impl Strategy<Value = Problem> {
    problems_on(axes())
}

/// Problems without dense attention.
pub fn neighborhoods() -> impl Strategy<Value = Problem> {
    problems_on(windows())
}

/// The same with a relative position bias.
pub fn problems_with_bias() -> impl Strategy<Value = Problem> {
    neighborhoods().prop_map(|problem| Problem { bias: true, ..problem })
}

fn problems_on(axes: impl Strategy<Value = Vec<Axis>>) -> impl Strategy<Value = Problem> {
    let heads = (1..3usize, 1..3usize);
    // Sizes on both sides of a vector register.
    let dims = (prop_oneof![1..6usize, Just(8), Just(16), 15..18usize], 1..10usize);
    let additional = prop_oneof![Just(None), (0..4usize).prop_map(Some)];
    let scale = prop_oneof![Just(None), (-1.0..1.0).prop_map(Some)];
    (1..3usize, heads, dims, additional, scale, axes).prop_map(
        |(batch, (heads_kv, group), (dim, dim_v), additional, scale, axes)| Problem {
            batch,
            heads: heads_kv * group,
            heads_kv,
            dim,
            dim_v,
            additional,
            scale,
            bias: false,
            axes,
        },
    )
}

/// Out, lse and all gradients are those of the oracle, in units of at least 1: inputs are standard
/// normal, and a gradient may vanish.
pub(super) fn matches_the_oracle(
    problem: &Problem,
    seed: u64,
    device: &TestDevice,
    strategy: burn_natten::Strategy,
) {
    let inputs = problem.inputs(seed);
    let (out, lse) = problem.forward(&inputs);
    let expected = problem.backward(&inputs, &out);
    let setup = Setup::new(&device.device).strategy(strategy).loss(Loss::Both);
    let results = run(problem, &inputs, &setup).expect("a valid problem");
    let what = |name: &str| format!("{} {strategy:?} {name} of {problem:?}", device.name);
    close_to_unit(&what("out"), &results.out, &out, check::F32, 1.0);
    close_to_unit(&what("lse"), &results.lse, &lse, check::F32, 1.0);
    let gradients = results.gradients.expect("ran backward");
    for ((name, got), (_, want)) in gradients.named().into_iter().zip(expected.named()) {
        close_to_unit(&what(name), got, want, check::F32, 1.0);
    }
}

#[test]
fn random_problems_agree_with_the_oracle_on_every_tier() {
    for device in devices() {
        check_cases(cases_on(&device), (problems(), any::<u64>()), |(problem, seed)| {
            for strategy in device.strategies() {
                matches_the_oracle(&problem, seed, &device, strategy);
            }
            Ok(())
        });
    }
}

/// Many more axes than random problems visit, with one head and one vector element.
#[test]
fn random_axes_agree_with_the_oracle() {
    for device in devices().into_iter().filter(|device| !device.compiles_kernels()) {
        check_cases(4 * CASES, (axis(40), any::<u64>()), |(axis, seed)| {
            let problem = Problem {
                batch: 1,
                heads: 1,
                heads_kv: 1,
                dim: 1,
                dim_v: 1,
                additional: None,
                scale: None,
                bias: false,
                axes: vec![axis],
            };
            matches_the_oracle(&problem, seed, &device, burn_natten::Strategy::Auto);
            Ok(())
        });
    }
}

/// Shapes of query, key and value: most fit together, and some have one odd size.
fn careless_shapes() -> impl Strategy<Value = [[usize; 5]; 3]> {
    let shape = (0..3usize, 0..17usize, 0..17usize, 1..4usize, 1..4usize);
    let odd = prop::option::weighted(0.3, (0..3usize, 0..5usize, 0..5usize));
    (shape, odd).prop_map(|((batch, height, width, heads, dim), odd)| {
        let mut shapes = [[batch, height, width, heads, dim]; 3];
        if let Some((argument, axis, size)) = odd {
            shapes[argument][axis] = size;
        }
        shapes
    })
}

/// Values of a parameter that starts at `least`, rarely zero or huge.
fn careless_parameter(least: usize) -> impl Strategy<Value = usize> {
    prop_oneof![20 => least..least + 3, 1 => Just(0), 1 => Just(usize::MAX)]
}

fn careless_scale() -> impl Strategy<Value = Option<f64>> {
    prop_oneof![
        4 => Just(None),
        1 => Just(Some(0.0)),
        1 => Just(Some(f64::NAN)),
        1 => Just(Some(f64::INFINITY)),
        1 => Just(Some(f64::MAX)),
        4 => (-2.0..2.0).prop_map(Some),
    ]
}

/// Either an error or a result of the right shape, never a panic.
#[test]
fn no_parameters_make_the_fallible_operators_panic() {
    let parameters = [2, 2, 1, 1, 1, 1].map(careless_parameter);
    let arguments = (
        careless_shapes(),
        parameters,
        any::<[bool; 2]>(),
        careless_scale(),
        prop::option::weighted(0.2, (0..4usize, careless_shapes())),
    );
    let device = Device::flex();
    let ones = |shape: [usize; 5]| Tensor::<5>::ones(shape, (&device, DType::F32));
    let valid = std::cell::Cell::new(0);
    check_cases(16 * CASES, arguments, |(shapes, [a, b, c, d, e, f], causal, scale, more)| {
        let tokens = more.map(|(count, [[batch, _, _, heads, dim], ..])| {
            Tensor::<4>::ones([batch, count, heads, dim], (&device, DType::F32))
        });
        let options = NeighborhoodOptions::<2>::new([a, b])
            .with_stride([c, d])
            .with_dilation([e, f])
            .with_causal(causal)
            .with_scale(scale)
            .with_additional_kv(tokens.clone(), tokens.clone());
        let [q, k, v] = shapes.map(ones);
        if let Ok(output) = try_na2d(q, k, v, options) {
            let [batch, height, width, heads, _] = shapes[0];
            let expected = [batch, height, width, heads, shapes[2][4]];
            prop_assert_eq!(output.out.dims(), expected);
            prop_assert_eq!(output.logsumexp.dims().to_vec(), expected[..4].to_vec());
            output.out.into_data();
            valid.set(valid.get() + 1);
        }
        let flat = |[batch, height, width, heads, dim]: [usize; 5]| {
            Tensor::<4>::ones([batch, height * width, heads, dim], (&device, DType::F32))
        };
        let options = AttentionOptions::new()
            .with_causal(causal[0])
            .with_scale(scale)
            .with_additional_kv(tokens.clone(), tokens);
        let [q, k, v] = shapes.map(flat);
        if let Ok(output) = try_attention(q, k, v, options) {
            prop_assert_eq!(output.out.dims()[3], shapes[2][4]);
            output.out.into_data();
        }
        Ok(())
    });
    assert!(valid.get() > 20, "only {} neighborhoods were valid", valid.get());
}
