//! A number that is not finite spoils what depends on it, and nothing else.

use burn_natten_kernels::native::Element;
use burn_natten_kernels::{Axis, Problem};
use test_support::compare::{differs, for_each_case, format, half_ulp, magnitude};
use test_support::oracle::compute;
use test_support::problems::isolated;
use test_support::tier::{BackwardTier, expected, upload_all};
use test_support::{Data, axis, problem};

use super::ways::{OnBlackwell, Way, blackwell, forward, planned, planned_backward};
use crate::run::Policy;
use crate::ways::client;

const ELEMENT: Element = Element::Bf16;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Input {
    Query,
    Key,
    Value,
    Dout,
}

impl Input {
    const ALL: [Self; 4] = [Self::Query, Self::Key, Self::Value, Self::Dout];

    fn of(self, data: &mut Data) -> &mut Vec<f64> {
        match self {
            Self::Query => &mut data.query,
            Self::Key => &mut data.key,
            Self::Value => &mut data.value,
            Self::Dout => &mut data.dout,
        }
    }
}

/// Where in a tensor a number is put, as a share of it: boxes of the first sample run on into the second.
type Case = (&'static str, Problem, Input, f64, f64, Policy);

/// What depends on the number, by the oracle, is not finite either, and all else is as without it.
fn check(cases: &[Case]) {
    let client = client();
    for_each_case(cases, |(name, problem, input, poison, place, policy), _| {
        let Some(machine) = blackwell(*policy) else { return Ok(0.0) };
        let what = format!("{name}, {poison} in {input:?} at {place}, {policy:?}");
        let mut data = Data::random(problem, 7, format(ELEMENT).round);
        let values = input.of(&mut data);
        let at = ((values.len() - 1) as f64 * place) as usize;
        values[at] = *poison;
        let exact = compute(problem, &data, format(ELEMENT).round);
        let saved = upload_all(&client, ELEMENT, problem, &data, &exact);
        if *input != Input::Dout {
            let schedule = planned(problem, ELEMENT);
            let (out, lse) = forward(&machine, &client, &schedule, problem, &saved.operands)?;
            let near = 2.0 * half_ulp(ELEMENT) * magnitude(&exact.out);
            if let Some(place) = differs(&out, &exact.out, |_, _| near) {
                return Err(format!("{what}: out is {place}"));
            }
            // The oracle's arithmetic makes NaN of scores that are all -inf.
            let lse: Vec<f64> = lse
                .iter()
                .zip(&exact.lse)
                .map(|(a, e)| if e.is_nan() && *a == f64::NEG_INFINITY { f64::NAN } else { *a })
                .collect();
            if let Some(place) = differs(&lse, &exact.lse, |_, e| 1e-3 * e.abs().max(1.0)) {
                return Err(format!("{what}: logsumexp is {place}"));
            }
        }
        let way = Way { machine, plan: planned_backward(problem, ELEMENT) };
        let (mut spoiled, mut finite) = (0, 0);
        for (name, gradient) in OnBlackwell::gradients(&client, ELEMENT, &way, problem, &saved) {
            let expected = expected(&exact, name);
            let near = 2.0 * half_ulp(ELEMENT) * magnitude(expected).max(1e-2);
            for (place, (a, e)) in gradient.iter().zip(expected).enumerate() {
                *(if e.is_finite() { &mut finite } else { &mut spoiled }) += 1;
                // Infinities that cancel to NaN may do so in another order.
                let is_right = match e.is_finite() {
                    true => (a - e).abs() <= near,
                    false => !a.is_finite(),
                };
                if !is_right {
                    return Err(format!("{what}: {name} is {a}, not {e}, at {place}"));
                }
            }
        }
        match spoiled > 0 && finite > 0 {
            true => Ok(0.0),
            false => Err(format!("{what}: {spoiled} elements spoiled, {finite} not")),
        }
    });
}

#[test]
fn a_key_that_is_not_a_number() {
    let plane = [axis(9, 4, 1, 1, false), axis(11, 5, 2, 1, false)];
    let plane = problem(&plane, 64).with_batch(1);
    // Its key 14 is one whose exponentials are polynomials.
    let line = problem(&[Axis::dense(40, 40, true)], 64).with_batch(1);
    check(&[
        ("plane", plane, Input::Key, f64::NAN, 0.5, Policy::Late),
        ("line", line, Input::Key, f64::NAN, 0.36, Policy::Late),
    ]);
}

#[test]
#[ignore = "minutes"]
fn what_is_not_finite_stays_where_it_is() {
    let lists = [
        isolated::one_axis(),
        isolated::two_axes(),
        isolated::three_axes(),
        isolated::with_additional_tokens_and_shared_keys(),
    ];
    let mut cases = vec![];
    for (name, problem) in lists.into_iter().flatten() {
        for input in Input::ALL {
            let number = cases.len();
            let poison = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY][number % 3];
            let place = [0.5, 0.25, 1.0, 0.55][number / 3 % 4];
            cases.push((name, problem, input, poison, place, Policy::ALL[number / 5 % 3]));
        }
    }
    check(&cases);
}
