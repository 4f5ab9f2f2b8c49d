//! Brute force in `f64`, from nothing but [`Axis::window`](burn_natten_kernels::Axis::window).

use burn_natten_kernels::Problem;

use super::{Data, Results};

/// Where a key of a query is.
enum Source {
    Spatial,
    Additional,
}

/// The spatial keys that a query sees.
pub fn visible(problem: &Problem, query: usize) -> Vec<usize> {
    let position = problem.query_coordinates(query);
    let mut keys = vec![0];
    for (axis, at) in problem.axes.iter().zip(position) {
        let (first, count) = axis.window(at);
        keys = keys
            .into_iter()
            .flat_map(|line| (0..count).map(move |i| line * axis.keys + first + i * axis.dilation))
            .collect();
    }
    keys
}

/// Calls `visit(query_row, keys)` with every query row and the rows of the keys that it sees.
fn for_each_row(problem: &Problem, mut visit: impl FnMut(usize, &[(Source, usize)])) {
    let (heads, heads_kv) = (problem.heads, problem.heads_kv);
    for query in 0..problem.queries() {
        let keys = visible(problem, query);
        for batch in 0..problem.batch {
            for head in 0..heads {
                let head_kv = head / problem.group_size();
                let row =
                    |tokens: usize, token: usize| (batch * tokens + token) * heads_kv + head_kv;
                let spatial = keys.iter().map(|key| (Source::Spatial, row(problem.keys(), *key)));
                let additional = (0..problem.additional)
                    .map(|token| (Source::Additional, row(problem.additional, token)));
                let all: Vec<_> = spatial.chain(additional).collect();
                visit((batch * problem.queries() + query) * heads + head, &all);
            }
        }
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(sum: &mut [f64], weight: f64, row: &[f64]) {
    for (sum, x) in sum.iter_mut().zip(row) {
        *sum += weight * x;
    }
}

/// Both passes. The backward pass reads the output as `round` leaves it, as an implementation that
/// stores it in that type does.
pub fn compute(problem: &Problem, data: &Data, round: fn(f64) -> f64) -> Results {
    compute_rounded(problem, data, round, |x| x)
}

/// The same where `operand` rounds what matrix products multiply: vectors, weights and gradients of scores.
pub fn compute_rounded(
    problem: &Problem,
    data: &Data,
    round: fn(f64) -> f64,
    operand: fn(f64) -> f64,
) -> Results {
    let (dim, dim_v) = (problem.head_dim, problem.head_dim_v);
    let exactly = |buffer: &[f64], row: usize, dim: usize| buffer[row * dim..][..dim].to_vec();
    let at = |buffer: &[f64], row: usize, dim: usize| -> Vec<f64> {
        buffer[row * dim..][..dim].iter().map(|x| operand(*x)).collect()
    };
    let keys_of = |source: &Source, row: usize| match source {
        Source::Spatial => (at(&data.key, row, dim), at(&data.value, row, dim_v)),
        Source::Additional => {
            (at(&data.additional_key, row, dim), at(&data.additional_value, row, dim_v))
        }
    };
    let mut results = Results {
        out: vec![0.0; data.dout.len()],
        lse: vec![0.0; data.dlse.len()],
        dq: vec![0.0; data.query.len()],
        dk: vec![0.0; data.key.len()],
        dv: vec![0.0; data.value.len()],
        additional_dk: vec![0.0; data.additional_key.len()],
        additional_dv: vec![0.0; data.additional_value.len()],
    };
    for_each_row(problem, |row, keys| {
        let query = at(&data.query, row, dim);
        let dout = at(&data.dout, row, dim_v);
        let pairs: Vec<_> = keys.iter().map(|(source, key)| keys_of(source, *key)).collect();
        let scores: Vec<f64> =
            pairs.iter().map(|(key, _)| problem.scale * dot(&query, key)).collect();
        let maximum = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let lse = maximum + scores.iter().map(|s| (s - maximum).exp()).sum::<f64>().ln();
        let mut out = vec![0.0; dim_v];
        for (score, (_, value)) in scores.iter().zip(&pairs) {
            add(&mut out, operand((score - lse).exp()), value);
        }
        results.lse[row] = lse;
        results.out[row * dim_v..][..dim_v].copy_from_slice(&out);

        let stored: Vec<f64> = out.into_iter().map(round).collect();
        let delta = dot(&stored, &exactly(&data.dout, row, dim_v)) - data.dlse[row];
        for ((score, (key, value)), (source, key_row)) in scores.iter().zip(&pairs).zip(keys) {
            let p = (score - lse).exp();
            let ds = problem.scale * operand(p * (dot(&dout, value) - delta));
            let p = operand(p);
            let (dk, dv) = match source {
                Source::Spatial => (&mut results.dk, &mut results.dv),
                Source::Additional => (&mut results.additional_dk, &mut results.additional_dv),
            };
            add(&mut results.dq[row * dim..][..dim], ds, key);
            add(&mut dk[key_row * dim..][..dim], ds, &query);
            add(&mut dv[key_row * dim_v..][..dim_v], p, &dout);
        }
    });
    results
}
