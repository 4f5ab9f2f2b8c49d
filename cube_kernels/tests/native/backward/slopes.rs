//! Slopes that a kernel for keys leaves in memory for one for queries.

use burn_natten_kernels::native::sm90::{BackwardPlan, Element};
use burn_natten_kernels::{Axis, Problem, catalogue};
use cubecl::client::Client;
use test_support::compare::{device, for_each_case, format};
use test_support::oracle::compute;
use test_support::tier::{BackwardTier, Gradients, check_data, upload_all};
use test_support::{Data, axis, problem};

use super::run::planned;
use crate::ways::Native;

fn by_slopes(problem: &Problem, element: Element, heads_at_once: usize) -> BackwardPlan {
    let mut plan = planned(problem, element).without_slopes();
    plan.keys[0].splits = 1;
    plan.with_slopes(problem, heads_at_once).expect("whole blocks")
}

/// By three of the kernels for keys that can.
fn some_by_slopes(problem: &Problem, element: Element, heads_at_once: usize) -> Vec<BackwardPlan> {
    let plain = planned(problem, element).without_slopes();
    let plans = plain.all_with_slopes(problem, heads_at_once);
    let step = plans.len().div_ceil(3).max(1);
    plans.into_iter().step_by(step).collect()
}

/// Dense and causal attention and causal windows, of lengths that end anywhere in a block.
fn problems() -> Vec<Problem> {
    let grouped =
        |axis: Axis, dim: usize| problem(&[axis], dim).with_heads(6).with_heads_kv(2).with_batch(2);
    let window = |length, kernel_size| axis(length, kernel_size, 1, 1, true);
    vec![
        grouped(Axis::dense(1024, 1024, false), 128),
        grouped(Axis::dense(1000, 777, false), 128),
        grouped(Axis::dense(65, 1500, false), 72).with_head_dim_v(120),
        grouped(Axis::dense(1024, 1024, true), 128),
        grouped(Axis::dense(1345, 1345, true), 96),
        grouped(window(2000, 300), 128),
        grouped(window(1111, 64), 128).with_head_dim_v(80),
    ]
}

#[test]
fn as_many_heads_at_once_as_divide_theirs() {
    let Some(client) = device() else { return };
    let cases: Vec<_> = problems()
        .into_iter()
        .flat_map(|problem| [1, 2, 4].map(|heads| (problem, heads)))
        .flat_map(|(problem, heads)| {
            [Element::Bf16, Element::F16].map(|element| (problem, heads, element))
        })
        .collect();
    for_each_case(&cases, |(problem, heads, element), seed| {
        let plan = by_slopes(problem, *element, *heads);
        let data = Data::random(problem, seed, format(*element).round);
        check_data::<Native>(&client, *element, &plan, problem, &data)
    });
}

/// Windows in planes and boxes, with masks and of whole boxes, and causal axes.
#[test]
fn boxes() {
    let Some(client) = device() else { return };
    let window = |length, kernel_size| axis(length, kernel_size, 1, 1, false);
    let causal = |length, kernel_size| axis(length, kernel_size, 1, 1, true);
    let strided = |length, kernel_size, stride| axis(length, kernel_size, stride, 1, false);
    let problems = [
        problem(&[window(64, 23), window(48, 20)], 128),
        problem(&[strided(64, 48, 16), strided(48, 24, 8)], 128),
        problem(&[causal(40, 13), window(56, 31)], 96).with_head_dim_v(128),
        problem(&[window(16, 5), window(16, 8), window(24, 9)], 128),
        problem(&[window(8, 8), strided(24, 16, 4), causal(32, 11)], 80),
    ];
    let cases: Vec<_> = problems
        .into_iter()
        .map(|problem| problem.with_heads(4).with_heads_kv(2).with_batch(2))
        .flat_map(|problem| {
            [(Element::Bf16, 2), (Element::F16, 1)].into_iter().flat_map(move |(element, heads)| {
                let plans = some_by_slopes(&problem, element, heads);
                assert!(!plans.is_empty(), "no kernels keep slopes of {problem:?}");
                plans.into_iter().map(move |plan| (problem, element, plan))
            })
        })
        .collect();
    for_each_case(&cases, |(problem, element, plan), seed| {
        let data = Data::random(problem, seed, format(*element).round);
        check_data::<Native>(&client, *element, plan, problem, &data)
    });
}

#[test]
fn large_planes() {
    as_planned(catalogue::find("flux").expect("is in the catalogue").problem);
}

#[test]
fn large_boxes() {
    as_planned(catalogue::find("cosmos-causal").expect("is in the catalogue").problem);
}

/// Tiles of a head are one round of multiprocessors and a fifth of another.
#[test]
fn long_lines() {
    as_planned(problem(&[Axis::dense(20_000, 20_000, false)], 128).with_batch(1));
}

/// Two heads of half a gigabyte and more each, as they are planned, against kernels that keep no slopes.
fn as_planned(problem: Problem) {
    let Some(client) = device() else { return };
    let problem = problem.with_heads(2).with_heads_kv(2);
    let element = Element::Bf16;
    let plan = planned(&problem, element);
    assert_eq!(plan.slopes.as_ref().map(|slopes| slopes.heads_at_once), Some(1));
    let data = Data::random(&problem, 5, format(element).round);
    // Both ways take outputs as they are, so that any will do: values, and logsumexps of weights that are all the same.
    let keys: usize = problem.axes.iter().map(|axis| axis.kernel_size).product();
    let lse = vec![(keys as f64).ln(); problem.batch * problem.heads * problem.queries()];
    let saved = format(element).saved(&client, &problem, &data, [&data.value, &lse]);
    let run = |plan: &BackwardPlan| Native::gradients(&client, element, plan, &problem, &saved);
    let (by_slopes, plain) = (run(&plan), run(&plan.clone().without_slopes()));
    for ((name, ours), (_, others)) in by_slopes.iter().zip(&plain) {
        let squares = |row: &[f64]| row.iter().map(|x| x * x).sum::<f64>();
        let mean = squares(others) * 128.0 / others.len() as f64;
        for (index, (ours, others)) in ours.chunks(128).zip(others.chunks(128)).enumerate() {
            let differences: Vec<_> = ours.iter().zip(others).map(|(a, b)| a - b).collect();
            let share = (squares(&differences) / mean).sqrt();
            assert!(share < 0.02, "row {index} of the gradient of the {name} is {share} off");
        }
    }
}

/// Runs by slopes of so many key heads a launch, all on the same tensors.
fn runs(client: &Client, problem: Problem, heads_at_once: usize) -> impl Fn() -> Gradients + Sync {
    let element = Element::Bf16;
    let plan = by_slopes(&problem, element, heads_at_once);
    let data = Data::random(&problem, 3, format(element).round);
    let exact = compute(&problem, &data, format(element).round);
    let saved = upload_all(client, element, &problem, &data, &exact);
    move || Native::gradients(client, element, &plan, &problem, &saved)
}

#[test]
fn sums_repeat() {
    let Some(client) = device() else { return };
    for problem in [problems()[0], problems()[5]] {
        let run = runs(&client, problem, 2);
        let first = run();
        for number in 1..20 {
            assert!(run() == first, "run {number} differs");
        }
    }
}

/// Each thread has a stream of its own, and lanes beside it; inputs are those of one thread.
#[test]
fn threads_have_lanes() {
    let Some(client) = device() else { return };
    let run = runs(&client, problems()[0], 1);
    let first = run();
    let repeat = |thread| {
        for number in 0..10 {
            assert!(run() == first, "run {number} of thread {thread} differs");
        }
    };
    let repeat = &repeat;
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || repeat(thread));
        }
    });
}
