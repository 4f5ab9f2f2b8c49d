//! Scores so large that the softmax picks a single key, and raw scores beyond what masks exclude.
//!
//! An error of `d` in each score changes an output by at most `e^d (e^d - 1)` times the weighted
//! mean distance of the values from it. That is next to nothing where one key has all the weight,
//! which is so for most rows here. `d` is what f32 sums and products of the same inputs may be off
//! by.

use burn_natten_kernels::Problem;
use cubecl::client::Client;
use cubecl::ir::FloatKind;

use crate::compare::{device, half_ulp, magnitude};
use crate::format::Format;
use crate::oracle::visible;
use crate::problems::share;
use crate::tier::ForwardTier;
use crate::{Data, axis, problem};

/// What a row's exact softmax gives, and how far f32 may be off.
struct Row {
    out: Vec<f64>,
    lse: f64,
    allowed: Vec<f64>,
    score_error: f64,
}

/// f32 roundings that a score goes through, in units of 2^-24 of the sum of absolute products: the
/// tensor core's truncating sums of 8 or 16 products each, the factor, the difference from the maximum.
fn roundings(problem: &Problem, format: Format) -> f64 {
    let products = if format.kind == FloatKind::TF32 { 8 } else { 16 };
    2.0 * (problem.head_dim.div_ceil(products) + 4) as f64
}

fn exact_row(problem: &Problem, format: Format, data: &Data, row: usize) -> Row {
    let Problem { heads, heads_kv, head_dim, head_dim_v, .. } = *problem;
    let (token, head) = (row / heads, row % heads);
    let (batch, query) = (token / problem.queries(), token % problem.queries());
    let head_kv = head / problem.group_size();
    let at = |buffer: &'_ [f64], row: usize, dim: usize| buffer[row * dim..][..dim].to_vec();
    let key_row = |key| (batch * problem.keys() + key) * heads_kv + head_kv;
    let query_vector = at(&data.query, row, head_dim);
    let keys = visible(problem, query);
    let (mut scores, mut largest) = (vec![], 0.0f64);
    for key in &keys {
        let vector = at(&data.key, key_row(*key), head_dim);
        let products = || query_vector.iter().zip(&vector).map(|(q, k)| q * k);
        scores.push(problem.scale * products().sum::<f64>());
        largest = largest.max(problem.scale * products().map(f64::abs).sum::<f64>());
    }
    let score_error = largest * roundings(problem, format) * 0.5f64.powi(24);
    let maximum = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let lse = maximum + scores.iter().map(|s| (s - maximum).exp()).sum::<f64>().ln();
    let weighted: Vec<(f64, Vec<f64>)> = scores
        .iter()
        .zip(&keys)
        .map(|(score, key)| ((score - lse).exp(), at(&data.value, key_row(*key), head_dim_v)))
        .collect();
    let mean = |of: &dyn Fn(&[f64]) -> f64| -> f64 {
        weighted.iter().map(|(weight, value)| weight * of(value)).sum()
    };
    let out: Vec<f64> = (0..head_dim_v).map(|d| mean(&|value| value[d])).collect();
    let growth = score_error.exp() * score_error.exp_m1();
    let allowed = (0..head_dim_v)
        .map(|d| match mean(&|value| (value[d] - out[d]).abs()) {
            0.0 => 0.0,
            spread => growth * spread,
        })
        .collect();
    Row { out, lse, allowed, score_error }
}

fn check<T: ForwardTier>(
    client: &Client,
    problem: &Problem,
    element: T::Element,
    factors: (f64, f64),
) {
    let format: Format = element.into();
    let mut data = Data::random(problem, 11, |x| x);
    for (buffer, factor) in [(&mut data.query, factors.0), (&mut data.key, factors.1)] {
        buffer.iter_mut().for_each(|x| *x = (format.round)(*x * factor));
    }
    data.value.iter_mut().for_each(|x| *x = (format.round)(*x));
    assert!(data.query.iter().chain(&data.key).all(|x| x.is_finite()));
    for (way, (out, lse)) in T::computed(client, element, problem, &data) {
        let near = 2.0 * half_ulp(element) * magnitude(&data.value);
        let (mut tight, mut count) = (0, 0);
        let dim = problem.head_dim_v;
        for (row, lse) in lse.iter().enumerate() {
            let exact = exact_row(problem, format, &data, row);
            let what = || format!("{way}, inputs times {factors:?}, row {row}: {problem:?}");
            let limit = exact.score_error + 1e-5 + 1e-6 * exact.lse.abs();
            assert!((lse - exact.lse).abs() <= limit, "{lse}, not {}: {}", exact.lse, what());
            for d in 0..dim {
                let (actual, expected) = (out[row * dim + d], exact.out[d]);
                let difference = (actual - expected).abs();
                // Whatever the weights, an output is a mean of values.
                let limit = (near + exact.allowed[d]).min(4.5);
                assert!(difference <= limit, "{actual}, not {expected} to {limit:e}: {}", what());
                count += 1;
                tight += usize::from(exact.allowed[d] <= near);
            }
        }
        let share = tight as f64 / count as f64;
        println!("{way}, inputs times {factors:?}: {share:.3} of the outputs held to rounding");
        assert!(share > 0.5, "only {share} of the outputs are held to rounding");
    }
}

fn problems() -> Vec<Problem> {
    let window = [axis(5, 3, 1, 1, false), axis(9, 4, 1, 1, false), axis(10, 5, 1, 1, true)];
    vec![
        problem(&[axis(203, 21, 1, 1, false)], 64),
        problem(&[axis(203, 65, 1, 2, true)], 128),
        problem(&[axis(17, 17, 1, 1, false), axis(18, 18, 1, 1, false)], 64),
        problem(&window[1..], 128),
        problem(&window, 64),
        problem(&window, 256).with_head_dim_v(32),
    ]
}

/// Every element type with the range of f32, with each of some factors.
fn of_wide<T: ForwardTier, F: Copy>(factors: [F; 3]) -> impl Iterator<Item = (T::Element, F)> {
    T::WIDE.iter().flat_map(move |element| factors.map(|factor| (*element, factor)))
}

/// Scores have a standard deviation of about 1.8 for inputs as they are.
pub fn scaled_queries<T: ForwardTier>() {
    let Some(client) = device() else { return };
    for problem in share(problems()) {
        for factor in [1e3, 1e4] {
            check::<T>(&client, &problem, T::F16, (factor / 2.0, 1.0));
        }
        // The largest f16 is 65504.
        check::<T>(&client, &problem, T::F16, (2e4, 3e2));
        for (element, factor) in of_wide::<T, _>([1e3, 1e5, 1e7]) {
            check::<T>(&client, &problem, element, (factor / 2.0, 1.0));
        }
    }
}

/// Raw scores beyond 2^30, where masks do not hold and rows are computed again.
pub fn beyond_the_masks<T: ForwardTier>() {
    let Some(client) = device() else { return };
    for problem in share(problems()) {
        check::<T>(&client, &problem, T::F16, (32752.0, 32752.0));
        for (element, factors) in of_wide::<T, _>([(32752.0, 32752.0), (1e15, 1e15), (1e25, 1e5)]) {
            check::<T>(&client, &problem, element, factors);
        }
    }
}
