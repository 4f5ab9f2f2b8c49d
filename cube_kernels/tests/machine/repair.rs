//! Rows that the fast path cannot be trusted with, which are computed again.

use burn_natten_kernels::native::sm90::Element;
use burn_natten_kernels::{Axis, Problem};
use test_support::compare::{differs, format, half_ulp, magnitude};
use test_support::oracle::{compute, visible};
use test_support::tier::{BackwardTier, check_forward, expected, upload_all};
use test_support::{Data, Results, axis, problem};

use crate::run::Policy;
use crate::ways::{OnMachine, client, forward, hopper, planned};

const ELEMENT: Element = Element::Bf16;

fn line() -> Problem {
    problem(&[axis(90, 9, 1, 1, true)], 64)
}

fn plane() -> Problem {
    problem(&[axis(9, 4, 1, 1, false), axis(11, 5, 2, 1, false)], 64).with_batch(1)
}

type Gradients = Vec<(&'static str, Vec<f64>)>;

/// Output, logsumexp and gradients of data on the machine; nothing where it cannot be built.
fn results(
    problem: &Problem,
    data: &Data,
    exact: &Results,
) -> Option<(Vec<f64>, Vec<f64>, Gradients)> {
    let (machine, client) = (hopper(Policy::Late)?, client());
    let saved = upload_all(&client, ELEMENT, problem, data, exact);
    let schedule = planned(problem, ELEMENT);
    let (out, lse) = forward(&machine, &client, &schedule, problem, &saved.operands)
        .unwrap_or_else(|fault| panic!("{schedule}: {fault}"));
    let way = OnMachine::plans(problem, ELEMENT).remove(0);
    Some((out, lse, OnMachine::gradients(&client, ELEMENT, &way, problem, &saved)))
}

/// What depends on a number that is not finite is not either, and all else is as without it.
#[test]
fn what_is_not_finite_stays_where_it_is() {
    for (problem, poison) in [(line(), f64::NAN), (plane(), f64::INFINITY)] {
        let mut data = Data::random(&problem, 7, format(ELEMENT).round);
        let token = problem.keys() / 2;
        data.value[token * problem.heads_kv * problem.head_dim_v + 5] = poison;
        let exact = compute(&problem, &data, format(ELEMENT).round);
        let Some((out, _, gradients)) = results(&problem, &data, &exact) else { return };
        let near = 2.0 * half_ulp(ELEMENT) * magnitude(&exact.out);
        assert_eq!(differs(&out, &exact.out, |_, _| near), None, "{problem:?}");
        let mut spoiled = 0;
        for (name, gradient) in &gradients {
            let expected = expected(&exact, name);
            let near = 2.0 * half_ulp(ELEMENT) * magnitude(expected).max(1e-2);
            for (place, (a, e)) in gradient.iter().zip(expected).enumerate() {
                spoiled += usize::from(!e.is_finite());
                // Infinities that cancel to NaN may do so in another order.
                let is_right = match e.is_finite() {
                    true => (a - e).abs() <= near,
                    false => !a.is_finite(),
                };
                assert!(is_right, "{name} is {a}, not {e}, at {place}: {problem:?}");
            }
        }
        assert!(spoiled > 0, "{problem:?}");
    }
}

/// Raw scores of 2^28, and unseen ones that a one-hot mask takes there: two products each of 2^28, and of 57344^2 more, which is what
/// the mask takes off. All that a query sees weighs the same, and no key gets a gradient that nobody sees.
#[test]
fn scores_that_come_through_the_mask() {
    let plane = [Axis::dense(5, 21, true).with_origin(0), axis(11, 5, 2, 1, false)];
    let problem = problem(&plane, 64).with_batch(1);
    let dim = problem.head_dim;
    let mut is_seen = vec![false; problem.keys()];
    for query in 0..problem.queries() {
        visible(&problem, query).into_iter().for_each(|key| is_seen[key] = true);
    }
    let mut data = Data::random(&problem, 12, format(ELEMENT).round);
    let set = |vector: &mut [f64], value: f64| {
        vector.fill(0.0);
        vector[..2].fill(value);
    };
    data.dout.iter_mut().for_each(|x| *x *= 0.5f64.powi(8));
    data.query.chunks_mut(dim).for_each(|vector| set(vector, 32768.0));
    for (row, vector) in data.key.chunks_mut(dim).enumerate() {
        let key = row / problem.heads_kv % problem.keys();
        set(vector, if is_seen[key] { 4096.0 } else { 54272.0 });
    }
    let exact = compute(&problem, &data, format(ELEMENT).round);
    let Some((out, lse, gradients)) = results(&problem, &data, &exact) else { return };
    let right = compute(&problem, &data, |x| x);
    check_forward("through the mask", ELEMENT, &problem, &right, &(out, lse)).expect("close");
    for (name, gradient) in &gradients {
        assert!(gradient.iter().all(|x| x.is_finite()), "{name}");
    }
    for (name, gradient) in &gradients[1..] {
        for (row, vector) in gradient.chunks(dim).enumerate() {
            let key = row / problem.heads_kv % problem.keys();
            let is_zero = vector.iter().all(|x| *x == 0.0);
            assert!(is_seen[key] || is_zero, "{name} of key {key}");
        }
    }
}
