//! A row of keys or values that is not finite spoils the queries that see it, and no other.

use burn_natten_kernels::Problem;
use cubecl::client::Client;

use crate::Data;
use crate::compare::{device, differs, half_ulp, magnitude};
use crate::oracle::{compute, visible};
use crate::problems::{isolated, share};
use crate::tier::ForwardTier;

/// A number in the middle of one row of the keys or of the values becomes `poison`.
struct Spoiled {
    poison: f64,
    is_key: bool,
    batch: usize,
    token: usize,
    head_kv: usize,
}

impl Spoiled {
    fn apply(&self, problem: &Problem, data: &Data) -> Data {
        let mut data = data.clone();
        let row = (self.batch * problem.keys() + self.token) * problem.heads_kv + self.head_kv;
        let (buffer, dim) = match self.is_key {
            true => (&mut data.key, problem.head_dim),
            false => (&mut data.value, problem.head_dim_v),
        };
        buffer[row * dim + dim / 2] = self.poison;
        data
    }

    /// Whether each row of the output sees the spoiled row.
    fn seen(&self, problem: &Problem) -> Vec<bool> {
        let of_query: Vec<bool> = (0..problem.queries())
            .map(|query| visible(problem, query).contains(&self.token))
            .collect();
        let rows = problem.batch * problem.queries() * problem.heads;
        (0..rows)
            .map(|row| {
                let (head, query) = (row % problem.heads, row / problem.heads);
                query / problem.queries() == self.batch
                    && head / problem.group_size() == self.head_kv
                    && of_query[query % problem.queries()]
            })
            .collect()
    }
}

fn check<T: ForwardTier>(client: &Client, name: &str, problem: &Problem, element: T::Element) {
    let format = element.into();
    let clean_data = Data::random(problem, 7, format.round);
    let clean = compute(problem, &clean_data, |x| x);
    let near = 2.0 * half_ulp(element) * magnitude(&clean.out);
    let (mut seeing, mut blind) = (0, 0);
    let last = problem.keys() - 1;
    for (is_key, poison) in [true, false]
        .into_iter()
        .flat_map(|is_key| [f64::NAN, f64::INFINITY, f64::NEG_INFINITY].map(|x| (is_key, x)))
    {
        // The first sample's box runs on into the second's first tokens.
        for (batch, token, head_kv) in
            [(0, last / 2, 0), (1, 0, 0), (1, last, problem.heads_kv - 1), (0, last, 0)]
        {
            let spoiled = Spoiled { poison, is_key, batch, token, head_kv };
            let data = spoiled.apply(problem, &clean_data);
            let exact = compute(problem, &data, |x| x);
            for (way, (out, lse)) in T::computed(client, element, problem, &data) {
                let what = format!(
                    "{name}, {way}: {poison} in {} {token} of sample {batch}",
                    if is_key { "key" } else { "value" }
                );
                if let Some(text) = differs(&out, &exact.out, |_, _| near) {
                    panic!("{what}: out is {text}");
                }
                // The oracle's arithmetic makes NaN of scores that are all -inf; their logsumexp is -inf.
                let seen = spoiled.seen(problem);
                let alone =
                    |row: usize| poison.is_infinite() && seen[row] && lse[row] == f64::NEG_INFINITY;
                let expected: Vec<f64> = (0..lse.len())
                    .map(|row| match exact.lse[row].is_nan() && alone(row) {
                        true => f64::NEG_INFINITY,
                        false => exact.lse[row],
                    })
                    .collect();
                if let Some(text) = differs(&lse, &expected, |_, e| 1e-5 * e.abs().max(1.0)) {
                    panic!("{what}: logsumexp is {text}");
                }
                // Said once more, without trust in the oracle's arithmetic on NaN.
                for (row, sees) in seen.into_iter().enumerate() {
                    let out = &out[row * problem.head_dim_v..][..problem.head_dim_v];
                    let clean = &clean.out[row * problem.head_dim_v..][..problem.head_dim_v];
                    if !sees {
                        blind += 1;
                        assert!(lse[row].is_finite(), "{what}: {} in row {row}", lse[row]);
                        assert_eq!(differs(out, clean, |_, _| near), None, "{what}: row {row}");
                    } else if is_key && poison.is_nan() {
                        seeing += 1;
                        assert!(lse[row].is_nan(), "{what}: {} in row {row}", lse[row]);
                        assert!(out.iter().all(|x| x.is_nan()), "{what}: {out:?} in row {row}");
                    }
                }
            }
        }
    }
    assert!(seeing > 0 && blind > 0, "{name}: {seeing} rows that see a NaN, {blind} that do not");
}

/// Every problem in every element type of the tier.
pub fn check_all<T: ForwardTier>(problems: isolated::Named) {
    let Some(client) = device() else { return };
    for (name, problem) in share(problems) {
        for element in T::elements(&client) {
            check::<T>(&client, name, &problem, element);
        }
    }
}
