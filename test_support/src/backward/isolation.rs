//! A number that is not finite spoils the gradients that depend on it, and no other.
//!
//! What depends on it is said by the oracle: a key spoils the queries that see it and, through their
//! logsumexp and output, every key that one of those sees.

use burn_natten_kernels::Problem;
use cubecl::client::Client;

use crate::Data;
use crate::compare::{device, half_ulp, magnitude};
use crate::oracle::compute;
use crate::problems::{isolated, share};
use crate::tier::{BackwardTier, expected, upload_all};

#[derive(Clone, Copy, Debug)]
enum Input {
    Query,
    Key,
    Value,
    Dout,
    Dlse,
}

impl Input {
    /// Its elements, tokens of a sample, heads and length of a vector.
    fn of<'a>(self, problem: &Problem, data: &'a mut Data) -> (&'a mut [f64], [usize; 3]) {
        let Problem { heads, heads_kv, head_dim, head_dim_v, .. } = *problem;
        let (queries, keys) = (problem.queries(), problem.keys());
        match self {
            Self::Query => (&mut data.query, [queries, heads, head_dim]),
            Self::Key => (&mut data.key, [keys, heads_kv, head_dim]),
            Self::Value => (&mut data.value, [keys, heads_kv, head_dim_v]),
            Self::Dout => (&mut data.dout, [queries, heads, head_dim_v]),
            Self::Dlse => (&mut data.dlse, [queries, heads, 1]),
        }
    }
}

/// Where a number is put: (sample, token and head as shares of their number).
const PLACES: [(usize, f64, f64); 3] = [(0, 0.5, 0.0), (1, 0.0, 0.0), (1, 1.0, 1.0)];

fn check<T: BackwardTier>(client: &Client, name: &str, problem: &Problem, element: T::Element) {
    let format = element.into();
    let plans = T::plans(problem, element);
    let clean = Data::random(problem, 7, format.round);
    let (mut spoiled, mut finite) = (0, 0);
    for input in [Input::Query, Input::Key, Input::Value, Input::Dout, Input::Dlse] {
        for (poison, (batch, token, head)) in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY]
            .into_iter()
            .flat_map(|poison| PLACES.map(|place| (poison, place)))
        {
            let mut data = clean.clone();
            let (values, [tokens, heads, dim]) = input.of(problem, &mut data);
            let token = (token * (tokens - 1) as f64) as usize;
            let head = (head * (heads - 1) as f64) as usize;
            values[((batch * tokens + token) * heads + head) * dim + dim / 2] = poison;
            let exact = compute(problem, &data, format.round);
            let inputs = upload_all(client, element, problem, &data, &exact);
            for plan in &plans {
                let actual = T::gradients(client, element, plan, problem, &inputs);
                for (gradient, actual) in &actual {
                    let expected = expected(&exact, gradient);
                    let near = 2.0 * half_ulp(element) * magnitude(expected).max(1e-2);
                    for (index, (a, e)) in actual.iter().zip(expected).enumerate() {
                        *(if e.is_finite() { &mut finite } else { &mut spoiled }) += 1;
                        // Infinities that cancel to NaN may do so in another order.
                        let is_right = a.is_finite() == e.is_finite()
                            && (!e.is_finite() || (a - e).abs() <= near);
                        assert!(
                            is_right,
                            "{name}, {poison} in {input:?} {token} of sample {batch}, head {head}: \
                             {gradient} is {a}, not {e}, at {index} of {}; {}",
                            expected.len(),
                            T::names(plan)
                        );
                    }
                }
            }
        }
    }
    assert!(spoiled > 0 && finite > 0, "{name}: {spoiled} elements spoiled, {finite} not");
}

/// Every problem in every element type of the tier.
pub fn check_all<T: BackwardTier>(problems: isolated::Named) {
    let Some(client) = device() else { return };
    for (name, problem) in share(problems) {
        for element in T::elements(&client) {
            check::<T>(&client, name, &problem, element);
        }
    }
}
