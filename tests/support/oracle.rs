//! Attention in f64, written from its definition and nothing else: signed arithmetic, one loop over
//! the keys of each row, no code of the library.

use rayon::prelude::*;

use super::problem::{Gradients, Inputs, Problem};

impl Problem {
    /// `(out, lse)`
    pub fn forward(&self, inputs: &Inputs) -> (Vec<f64>, Vec<f64>) {
        let (keys, values) = self.join(inputs);
        let visible = self.visible();
        let rows: Vec<_> = (0..self.batch * self.queries() * self.heads)
            .into_par_iter()
            .map(|row| {
                let tokens = self.tokens(row, &visible);
                let (weights, lse) = self.weights(row, &tokens, inputs, &keys);
                let mut out = vec![0.0; self.dim_v];
                for (&token, &weight) in tokens.iter().zip(&weights) {
                    add(&mut out, weight, &values[token * self.dim_v..][..self.dim_v]);
                }
                (out, lse)
            })
            .collect();
        let (out, lse): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
        (out.concat(), lse)
    }

    /// Gradients for the cotangents in `inputs`. `out` is what the forward pass returned, which an
    /// implementation may have rounded.
    pub fn backward(&self, inputs: &Inputs, out: &[f64]) -> Gradients {
        let (dim, dim_v) = (self.dim, self.dim_v);
        let (keys, values) = self.join(inputs);
        let visible = self.visible();
        let rows: Vec<usize> = (0..self.batch * self.queries() * self.heads).collect();
        let parts: Vec<_> = rows
            .par_chunks(rows.len().div_ceil(4).max(1))
            .map(|rows| {
                let mut dq = vec![];
                let (mut dk, mut dv) = (vec![0.0; keys.len()], vec![0.0; values.len()]);
                for &row in rows {
                    let tokens = self.tokens(row, &visible);
                    let (weights, _) = self.weights(row, &tokens, inputs, &keys);
                    let query = &inputs.query[row * dim..][..dim];
                    let grad = &inputs.grad_out[row * dim_v..][..dim_v];
                    let delta = dot(grad, &out[row * dim_v..][..dim_v]) - inputs.grad_lse[row];
                    let mut dq_row = vec![0.0; dim];
                    for (&token, &weight) in tokens.iter().zip(&weights) {
                        let dp = dot(grad, &values[token * dim_v..][..dim_v]);
                        let ds = weight * (dp - delta) * self.scale();
                        add(&mut dq_row, ds, &keys[token * dim..][..dim]);
                        add(&mut dk[token * dim..][..dim], ds, query);
                        add(&mut dv[token * dim_v..][..dim_v], weight, grad);
                    }
                    dq.extend(dq_row);
                }
                (dq, dk, dv)
            })
            .collect();
        let (mut dq, mut dk, mut dv) = (vec![], vec![0.0; keys.len()], vec![0.0; values.len()]);
        for (query, key, value) in parts {
            dq.extend(query);
            add(&mut dk, 1.0, &key);
            add(&mut dv, 1.0, &value);
        }
        let (key, more_keys) = self.split(&dk, dim);
        let (value, more_values) = self.split(&dv, dim_v);
        Gradients { query: dq, key, value, more_keys, more_values }
    }

    /// Vectors, in the joined keys and values, of the tokens that a row sees.
    fn tokens(&self, row: usize, visible: &[Vec<usize>]) -> Vec<usize> {
        let (head, query) = (row % self.heads, row / self.heads % self.queries());
        let batch = row / self.heads / self.queries();
        let head_kv = head / (self.heads / self.heads_kv);
        let tokens = self.keys() + self.extra();
        let vector = |token: &usize| (batch * tokens + token) * self.heads_kv + head_kv;
        visible[query].iter().map(vector).collect()
    }

    /// Softmax of a row, and its logsumexp.
    fn weights(
        &self,
        row: usize,
        tokens: &[usize],
        inputs: &Inputs,
        keys: &[f64],
    ) -> (Vec<f64>, f64) {
        let query = &inputs.query[row * self.dim..][..self.dim];
        let score =
            |&token: &usize| self.scale() * dot(query, &keys[token * self.dim..][..self.dim]);
        let scores: Vec<f64> = tokens.iter().map(score).collect();
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
        let sum: f64 = weights.iter().sum();
        (weights.iter().map(|weight| weight / sum).collect(), max + sum.ln())
    }

    /// Keys and values with the additional tokens behind those of each sample.
    fn join(&self, inputs: &Inputs) -> (Vec<f64>, Vec<f64>) {
        let join = |tokens: &[f64], more: &[f64], dim: usize| {
            let part = |all: &[f64], count: usize, batch: usize| {
                let size = count * self.heads_kv * dim;
                all[batch * size..][..size].to_vec()
            };
            let sample = |b| [part(tokens, self.keys(), b), part(more, self.extra(), b)].concat();
            (0..self.batch).flat_map(sample).collect()
        };
        (
            join(&inputs.key, &inputs.more_keys, self.dim),
            join(&inputs.value, &inputs.more_values, self.dim_v),
        )
    }

    fn split(&self, joined: &[f64], dim: usize) -> (Vec<f64>, Vec<f64>) {
        let (tokens, more) = (self.keys(), self.extra());
        let width = self.heads_kv * dim;
        let samples = joined.chunks((tokens + more).max(1) * width);
        samples.fold((vec![], vec![]), |(mut first, mut second), sample| {
            first.extend(&sample[..tokens * width]);
            second.extend(&sample[tokens * width..]);
            (first, second)
        })
    }
}

// Plain loops: these run unoptimised, where iterators cost ten times as much.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let (mut sum, mut i) = (0.0, 0);
    while i < a.len() {
        sum += a[i] * b[i];
        i += 1;
    }
    sum
}

fn add(sum: &mut [f64], factor: f64, values: &[f64]) {
    let mut i = 0;
    while i < sum.len() {
        sum[i] += factor * values[i];
        i += 1;
    }
}
