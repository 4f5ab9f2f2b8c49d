//! A relative position bias, and its gradient.

use burn_natten_kernels::native::sm90::{Element, candidates, unsupported};
use burn_natten_kernels::{Axis, Problem};
use rand::Rng;
use test_support::compare::{device, differs, format, half_ulp, magnitude};
use test_support::oracle::{compute, visible};
use test_support::tier::{self, BackwardTier, check_forward, expected, upload_all};
use test_support::{Data, axis, problem};

use crate::backward;
use crate::random::cases;
use crate::run::{check_all, planned, run};
use crate::ways::Native;

const ELEMENT: Element = Element::Bf16;

/// Beside longer vectors, there may be no room for a bias.
const WIDEST: usize = 192;

/// The same with a bias, windows that have one which is held, and queries where the keys are.
fn biased(problem: Problem) -> Problem {
    let longest = [400, 15, 5][problem.rank() - 1];
    let axes = problem.axes.map(|of| match of == Axis::UNIT {
        true => of,
        false => {
            let length = of.queries.max(4);
            let kernel = of.kernel_size.clamp(2, longest.min(length));
            let dilation = of.dilation.min(length / kernel);
            axis(length, kernel, of.stride.min(kernel), dilation, of.is_causal)
        }
    });
    let mut problem = problem.with_axes(axes).with_bias(true);
    problem.head_dim = problem.head_dim.min(WIDEST);
    problem.head_dim_v = problem.head_dim_v.min(WIDEST);
    assert_eq!(unsupported(&problem), None, "{problem:?}");
    problem
}

fn forward(rank: usize) {
    let cases = cases(200, rank, |rng, problem, element| {
        let problem = biased(problem);
        let all = candidates(&problem, element);
        let any = all[rng.random_range(0..all.len())];
        (problem, if rng.random() { planned(&problem, element) } else { any })
    });
    let Some(client) = device() else { return };
    check_all(&client, &cases);
}

fn gradients(rank: usize) {
    let cases = cases(300, rank, |rng, problem, element| {
        let problem = biased(problem);
        let chosen = backward::run::planned(&problem, element);
        let any = |rng: &mut _| backward::random::any(rng, &problem, element, chosen.clone());
        let plan = if rng.random() { chosen.clone() } else { any(rng) };
        (problem, element, plan)
    });
    let Some(client) = device() else { return };
    tier::check_all::<Native>(&client, &cases);
}

#[test]
fn forward_of_one_axis() {
    forward(1);
}

#[test]
fn forward_of_two_axes() {
    forward(2);
}

#[test]
fn forward_of_three_axes() {
    forward(3);
}

#[test]
fn gradients_of_one_axis() {
    gradients(1);
}

#[test]
fn gradients_of_two_axes() {
    gradients(2);
}

#[test]
fn gradients_of_three_axes() {
    gradients(3);
}

/// A key that is infinite gives its queries the score -inf here, and other queries +inf, who do not see it: slopes
/// of those are computed again. The bias has a finite gradient.
#[test]
fn what_a_query_does_not_see_is_not_in_the_gradient() {
    let Some(client) = device() else { return };
    let window = [axis(19, 5, 1, 1, false), axis(21, 7, 1, 1, false)];
    let line = [axis(203, 21, 1, 1, true)];
    for axes in [&window[..], &line[..]] {
        let problem = problem(axes, 64).with_bias(true);
        let mut data = Data::random(&problem, 5, format(ELEMENT).round);
        let (token, dim) = (problem.keys() / 2, problem.head_dim);
        data.key[token * problem.heads_kv * dim] = f64::NEG_INFINITY;
        for query in 0..problem.queries() {
            let sees = visible(&problem, query).contains(&token);
            let element = &mut data.query[query * problem.heads * dim];
            *element = if sees { element.abs().max(0.5) } else { -element.abs().max(0.5) };
        }
        let exact = compute(&problem, &data, format(ELEMENT).round);
        let saved = upload_all(&client, ELEMENT, &problem, &data, &exact);
        let plan = backward::run::planned(&problem, ELEMENT);
        let actual = Native::gradients(&client, ELEMENT, &plan, &problem, &saved);
        let (_, dbias) = actual.iter().find(|(name, _)| *name == "dbias").expect("a gradient");
        let expected = expected(&exact, "dbias");
        assert!(expected.iter().all(|x| x.is_finite()));
        let near = 4.0 * half_ulp(ELEMENT) * magnitude(expected);
        assert_eq!(differs(dbias, expected, |_, _| near), None, "{problem:?}");
    }
}

/// Whole blocks are hidden where a tile's first keys are.
#[test]
fn an_infinite_bias_hides() {
    let Some(client) = device() else { return };
    let plane = [axis(19, 9, 1, 1, false), axis(21, 9, 1, 1, false)];
    for axes in [&plane[..], &[axis(203, 40, 1, 1, false)], &[axis(64, 64, 1, 1, false)]] {
        let problem = problem(axes, 64).with_bias(true);
        let mut data = Data::random(&problem, 6, format(ELEMENT).round);
        // A query sees itself and those next to it.
        let [z, y, x] = problem.bias_extents();
        for (place, entry) in data.bias.iter_mut().enumerate() {
            let at = [place / (y * x) % z, place / x % y, place % x];
            let near = at.iter().zip([z, y, x]).all(|(at, of)| at.abs_diff(of / 2) <= 1);
            *entry = if near { *entry } else { f64::NEG_INFINITY };
        }
        let exact = compute(&problem, &data, |x| x);
        let schedule = planned(&problem, ELEMENT);
        let result = run(&client, &schedule, &problem, &data);
        check_forward("hidden", format(ELEMENT), &problem, &exact, &result).expect("close");
        let plan = backward::run::planned(&problem, ELEMENT);
        tier::check_data::<Native>(&client, ELEMENT, &plan, &problem, &data).expect("close");
    }
}

#[test]
fn gradients_are_the_same_bits_every_time() {
    let Some(client) = device() else { return };
    let problem = problem(&[axis(40, 7, 1, 2, false), axis(56, 7, 1, 1, false)], 64)
        .with_batch(8)
        .with_bias(true);
    let data = Data::random(&problem, 9, format(ELEMENT).round);
    let exact = compute(&problem, &data, format(ELEMENT).round);
    let saved = upload_all(&client, ELEMENT, &problem, &data, &exact);
    let plan = backward::run::planned(&problem, ELEMENT);
    let run = || Native::gradients(&client, ELEMENT, &plan, &problem, &saved);
    let first = run();
    for _ in 0..20 {
        assert!(run() == first);
    }
}
