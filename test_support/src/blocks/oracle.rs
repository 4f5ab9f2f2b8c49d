//! Block-sparse attention in `f64`, from its definition: every query is held against every key.

use crate::Data;
use burn_natten_kernels::{Axis, BlockSparse};

/// What the passes write.
#[derive(Clone, Debug, PartialEq)]
pub struct Sparse {
    pub out: Vec<f64>,
    pub lse: Vec<f64>,
    pub dq: Vec<f64>,
    pub dk: Vec<f64>,
    pub dv: Vec<f64>,
}

impl Sparse {
    pub fn named(&self) -> [(&'static str, &Vec<f64>); 5] {
        let Self { out, lse, dq, dk, dv } = self;
        [("out", out), ("lse", lse), ("dq", dq), ("dk", dk), ("dv", dv)]
    }
}

fn coordinates(token: usize, lengths: [usize; 3]) -> [usize; 3] {
    [token / (lengths[1] * lengths[2]), token / lengths[2] % lengths[1], token % lengths[2]]
}

/// The block of a token.
fn block(at: [usize; 3], lengths: [usize; 3], shape: [usize; 3]) -> usize {
    let [_, y, x] = [0, 1, 2].map(|axis| lengths[axis].div_ceil(shape[axis]));
    (at[0] / shape[0] * y + at[1] / shape[1]) * x + at[2] / shape[2]
}

/// How often a query of a head sees a key.
pub fn times(
    sparse: &BlockSparse,
    lists: &[i32],
    [batch, query, head]: [usize; 3],
    key: usize,
) -> usize {
    let axes = sparse.problem.axes;
    let (queries, keys) = (axes.map(|axis| axis.queries), axes.map(|axis| axis.keys));
    let (q, k) = (coordinates(query, queries), coordinates(key, keys));
    let is_before = |(axis, (q, k)): (usize, (usize, usize))| {
        let Axis { is_causal, origin, .. } = axes[axis];
        !is_causal || (k * sparse.steps[axis]) as isize <= q as isize + origin
    };
    if !q.into_iter().zip(k).enumerate().all(is_before) {
        return 0;
    }
    let blocks: usize =
        (0..3).map(|axis| queries[axis].div_ceil(sparse.query_block[axis])).product();
    let list = batch * blocks + block(q, queries, sparse.query_block);
    let list = list * sparse.list_heads + head * sparse.list_heads / sparse.problem.heads;
    let list = &lists[list * sparse.entries..][..sparse.entries];
    let own = block(k, keys, sparse.key_block) as i32;
    list.iter().filter(|entry| **entry == own).count()
}

/// Both passes. Gradients are those of an output that was rounded when it was stored.
pub fn compute(sparse: &BlockSparse, lists: &[i32], data: &Data, round: fn(f64) -> f64) -> Sparse {
    let problem = &sparse.problem;
    let (heads, heads_kv, dim, dim_v) =
        (problem.heads, problem.heads_kv, problem.head_dim, problem.head_dim_v);
    let (queries, keys) = (problem.queries(), problem.keys());
    let mut results = Sparse {
        out: vec![0.0; data.dout.len()],
        lse: vec![f64::NEG_INFINITY; data.dlse.len()],
        dq: vec![0.0; data.query.len()],
        dk: vec![0.0; data.key.len()],
        dv: vec![0.0; data.value.len()],
    };
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    for row in 0..problem.batch * queries * heads {
        let (token, head) = (row / heads, row % heads);
        let (batch, query) = (token / queries, token % queries);
        let q = &data.query[row * dim..][..dim];
        let seen: Vec<(usize, f64, f64)> = (0..keys)
            .map(|key| (key, times(sparse, lists, [batch, query, head], key)))
            .filter(|(_, times)| *times > 0)
            .map(|(key, times)| {
                let at = (batch * keys + key) * heads_kv + head * heads_kv / heads;
                (at, times as f64, problem.scale * dot(q, &data.key[at * dim..][..dim]))
            })
            .collect();
        if seen.is_empty() {
            continue;
        }
        let most = seen.iter().fold(f64::NEG_INFINITY, |most, (_, _, score)| most.max(*score));
        let total: f64 = seen.iter().map(|(_, times, score)| times * (score - most).exp()).sum();
        let lse = most + total.ln();
        results.lse[row] = lse;
        let dout = &data.dout[row * dim_v..][..dim_v];
        let out = &mut results.out[row * dim_v..][..dim_v];
        for (at, times, score) in &seen {
            let p = times * (score - lse).exp();
            for (out, v) in out.iter_mut().zip(&data.value[at * dim_v..][..dim_v]) {
                *out += p * v;
            }
        }
        let stored: Vec<f64> = out.iter().map(|x| round(*x)).collect();
        let delta = dot(&stored, dout) - data.dlse[row];
        for (at, times, score) in seen {
            let p = times * (score - lse).exp();
            let ds = problem.scale * p * (dot(dout, &data.value[at * dim_v..][..dim_v]) - delta);
            let (own, key) = (row * dim, at * dim);
            for (i, q) in q.iter().enumerate() {
                results.dq[own + i] += ds * data.key[key + i];
                results.dk[key + i] += ds * q;
            }
            for (i, dout) in dout.iter().enumerate() {
                results.dv[at * dim_v + i] += p * dout;
            }
        }
    }
    results
}
