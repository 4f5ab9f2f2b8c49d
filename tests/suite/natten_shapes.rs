//! The problem shapes of NATTEN's own test-suite against the oracle, in f32.
//!
//! Each shape runs without causal masking and with one pattern of it, chosen by its number. A
//! problem above a budget of multiply-adds is shrunk by fixed rules, in this order: one sample;
//! one key/value head, with as many query heads as shared it; then, until it fits, half of its
//! longest axis together with that axis' kernel size and stride. Problems that become equal run
//! once. Gradients are checked for problems within a smaller budget. `BURN_NATTEN_TEST_BUDGET=100`
//! multiplies both budgets, for an optimised build on a large machine.

use std::collections::BTreeMap;

use rstest::rstest;
use serde_json::Value;

use crate::support::check::{self, close};
use crate::support::problem::{Axis, Problem};
use crate::support::run::{Loss, Setup, run};
use crate::support::{TestDevice, devices};

/// Multiply-adds of a forward pass that is affordable without optimisation.
const FORWARD: usize = 2_000_000;
/// The same for a problem whose gradients are checked.
const BACKWARD: usize = 600_000;

fn budget(usual: usize) -> usize {
    let factor = std::env::var("BURN_NATTEN_TEST_BUDGET").map(|factor| factor.parse::<usize>());
    usual * factor.unwrap_or(Ok(1)).expect("BURN_NATTEN_TEST_BUDGET is a whole number")
}

fn numbers(value: &Value) -> Vec<usize> {
    let number = |value: &Value| value.as_u64().expect("a whole number") as usize;
    match value {
        Value::Array(values) => values.iter().map(number).collect(),
        value => vec![number(value)],
    }
}

fn dense(batch: usize, heads: [usize; 2], dims: [usize; 2], tokens: [usize; 2]) -> Problem {
    let [queries, keys] = tokens;
    Problem {
        batch,
        heads: heads[0],
        heads_kv: heads[1],
        dim: dims[0],
        dim_v: dims[1],
        additional: None,
        scale: None,
        bias: false,
        axes: vec![Axis::Dense { queries, keys, is_causal: false }],
    }
}

/// `space, kernel_size, stride, dilation` of a row; a dilation may be one number for all axes.
fn windows(batch: usize, heads: [usize; 2], dim: usize, row: &[Value]) -> Problem {
    let [space, kernel_size, stride, dilation] = [0, 1, 2, 3].map(|i| numbers(&row[i]));
    let axes = (0..space.len()).map(|axis| Axis::Window {
        length: space[axis],
        kernel_size: kernel_size[axis],
        stride: stride[axis],
        dilation: *dilation.get(axis).unwrap_or(&dilation[0]),
        is_causal: false,
    });
    Problem {
        batch,
        heads: heads[0],
        heads_kv: heads[1],
        dim,
        dim_v: dim,
        additional: None,
        scale: None,
        bias: false,
        axes: axes.collect(),
    }
}

/// The problems of one row of a test of NATTEN's.
fn problems(test: &str, row: &[Value]) -> Vec<Problem> {
    let n = |index: usize| numbers(&row[index])[0];
    match test.rsplit("::").next().expect("a name") {
        "test_cutlass_fmha_fast_against_torch_sdpa" => {
            vec![dense(n(0), [n(1), n(1)], [n(2), n(3)], [n(4), n(5)])]
        }
        "test_cutlass_hopper_fmha_fast" => {
            vec![dense(n(0), [n(1), n(1)], [n(2), n(2)], [n(3), n(4)])]
        }
        "test_cutlass_blackwell_fmha_fast" => {
            vec![dense(n(0), [n(1), n(2)], [n(3), n(3)], [n(4), n(5)])]
        }
        "test_3d_against_reference_extended" => vec![windows(n(0), [n(1), n(1)], n(2), &row[3..])],
        "test_1d_against_reference"
        | "test_2d_against_reference"
        | "test_2d_against_reference_extended"
        | "test_3d_against_reference" => vec![windows(n(0), [n(1), n(2)], n(3), &row[4..])],
        // Here the space comes before the heads, and the dilation before the stride.
        "test_compiled_na" => {
            let axes = [1, 4, 6, 5].map(|index| row[index].clone());
            vec![windows(n(0), [n(2), n(2)], n(3), &axes)]
        }
        // Sequences of a packed batch are samples of their own.
        "test_compiled_fmha" => {
            let (queries, keys) = (numbers(&row[3]), numbers(&row[4]));
            let batch = if queries.len() == 1 { n(0) } else { 1 };
            let pairs = queries.into_iter().zip(keys);
            pairs.map(|(q, k)| dense(batch, [n(1), n(1)], [n(2), n(2)], [q, k])).collect()
        }
        other => panic!("{other} is not known here"),
    }
}

fn with_causal(problem: &Problem, pattern: usize) -> Problem {
    let mut problem = problem.clone();
    for (index, axis) in problem.axes.iter_mut().enumerate() {
        match axis {
            Axis::Window { is_causal, .. } | Axis::Dense { is_causal, .. } => {
                *is_causal = pattern >> index & 1 == 1;
            }
        }
    }
    problem
}

/// The problem, made to fit in `budget` multiply-adds.
fn shrink(problem: &Problem, budget: usize) -> Problem {
    let mut problem = problem.clone();
    if fits(&problem, budget) {
        return problem;
    }
    problem.batch = 1;
    if !fits(&problem, budget) {
        (problem.heads, problem.heads_kv) = (problem.heads / problem.heads_kv, 1);
    }
    while !fits(&problem, budget) {
        halve(&mut problem);
    }
    problem
}

fn fits(problem: &Problem, budget: usize) -> bool {
    // An upper bound that needs no loop: every window is full.
    let pairs: usize = problem
        .axes
        .iter()
        .map(|axis| match *axis {
            Axis::Window { length, kernel_size, .. } => length * kernel_size,
            Axis::Dense { queries, keys, .. } => queries * keys,
        })
        .product();
    problem.batch * problem.heads * pairs * (problem.dim + problem.dim_v) <= budget
}

fn halve(problem: &mut Problem) {
    let size = |axis: &Axis| axis.queries().max(axis.keys());
    let longest = problem.axes.iter_mut().max_by_key(|axis| size(axis)).expect("an axis");
    match longest {
        Axis::Window { length, kernel_size, stride, .. } => {
            // Odd stays odd and whole windows stay whole; `kernel_size * dilation` still fits.
            let half = |size: usize| size / 2 + size % 2 * usize::from(size > 2);
            *kernel_size = (*kernel_size / 2).max(2);
            *length = half(*length).max(*kernel_size);
            *stride = stride.div_ceil(2).min(*kernel_size);
        }
        Axis::Dense { queries, keys, .. } => {
            let longer = if *queries > *keys { queries } else { keys };
            *longer = longer.div_ceil(2);
        }
    }
    for axis in &mut problem.axes {
        if let Axis::Window { length, kernel_size, dilation, .. } = axis {
            *dilation = (*dilation).min(*length / *kernel_size);
        }
    }
}

fn check_problem(problem: &Problem, seed: u64, device: &TestDevice, gradients: bool) {
    let inputs = problem.inputs(seed);
    let (out, lse) = problem.forward(&inputs);
    let loss = if gradients { Loss::Both } else { Loss::None };
    let setup = Setup::new(&device.device).loss(loss);
    let results = run(problem, &inputs, &setup).expect("a valid problem");
    let what = |name: &str| format!("{} {name} of {problem:?}", device.name);
    close(&what("out"), &results.out, &out, check::F32);
    close(&what("lse"), &results.lse, &lse, check::F32);
    if let Some(gradients) = results.gradients {
        let expected = problem.backward(&inputs, &out);
        for ((name, got), (_, want)) in gradients.named().into_iter().zip(expected.named()) {
            close(&what(name), got, want, check::F32);
        }
    }
}

/// Both causal patterns of every shape of a test, shrunk, without repetition; and whether shrinking
/// left them whole.
fn all_problems(test: &str) -> Vec<(Problem, bool)> {
    let tests: BTreeMap<String, Value> =
        serde_json::from_str(include_str!("../golden/natten_test_shapes.json"))
            .expect("natten_test_shapes.json is as described");
    let rows = tests[test]["rows"].as_array().expect("rows").iter();
    let shapes = rows.flat_map(|row| problems(test, row.as_array().expect("a row")));
    let mut all: Vec<(Problem, bool)> = vec![];
    for (number, shape) in shapes.enumerate() {
        let pattern = 1 + number % ((1 << shape.axes.len()) - 1);
        for pattern in [0, pattern] {
            let original = with_causal(&shape, pattern);
            let problem = shrink(&original, budget(FORWARD));
            if all.iter().all(|(other, _)| *other != problem) {
                let is_whole = problem == original;
                all.push((problem, is_whole));
            }
        }
    }
    all
}

/// `problems` and `whole`: at least so many are checked, and so many of them unshrunk.
#[rstest]
#[case("test_fmha.py::test_cutlass_fmha_fast_against_torch_sdpa", 44, 16)]
#[case("test_fmha.py::test_cutlass_hopper_fmha_fast", 38, 2)]
#[case("test_fmha.py::test_cutlass_blackwell_fmha_fast", 66, 12)]
#[case("test_fna.py::test_1d_against_reference", 34, 18)]
#[case("test_fna.py::test_2d_against_reference", 32, 6)]
#[case("test_fna.py::test_2d_against_reference_extended", 50, 6)]
#[case("test_fna.py::test_3d_against_reference", 16, 0)]
#[case("test_fna.py::test_3d_against_reference_extended", 50, 2)]
#[case("test_torch_compile.py::test_compiled_na", 28, 4)]
#[case("test_torch_compile.py::test_compiled_fmha", 38, 2)]
fn every_shape_agrees_with_the_oracle(
    #[case] test: &str,
    #[case] at_least: usize,
    #[case] at_least_whole: usize,
) {
    let all = all_problems(test);
    let whole = all.iter().filter(|(_, is_whole)| *is_whole).count();
    assert!(all.len() >= at_least, "{} problems", all.len());
    assert!(whole >= at_least_whole, "{whole} whole problems");
    for device in devices() {
        // A device that compiles a kernel for each problem takes every fourth.
        let (mut ran, mut with_gradients) = (0, 0);
        for (number, (problem, _)) in all.iter().enumerate().step_by(device.sampling(4)) {
            let gradients = fits(problem, budget(BACKWARD));
            check_problem(problem, number as u64, &device, gradients);
            ran += 1;
            with_gradients += usize::from(gradients);
        }
        println!(
            "{} {test}: ran {ran} of {}, {whole} of those whole, {with_gradients} with gradients",
            device.name,
            all.len()
        );
    }
}
