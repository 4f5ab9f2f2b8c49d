//! Single rows of attention and of its gradients in float64, from the definition.

use burn_natten_kernels::{Axis, MAX_RANK, Problem};

/// Tensors of one head of one sample, `[tokens, head_dim]` each, and what has one number a token.
pub struct Head {
    pub query: Vec<f32>,
    pub out: Vec<f32>,
    pub lse: Vec<f32>,
    pub grad_out: Vec<f32>,
    pub grad_lse: Vec<f32>,
}

/// Keys and values of the head, `[tokens, head_dim(_v)]`.
pub struct KeyValue {
    pub key: Vec<f32>,
    pub value: Vec<f32>,
}

/// Keys of a query, with their probabilities, and the logsumexp of its scores.
struct Softmax {
    keys: Vec<usize>,
    weights: Vec<f64>,
    lse: f64,
}

fn softmax(problem: &Problem, query: &[f32], kv: &KeyValue, index: usize) -> Softmax {
    let coordinates = problem.query_coordinates(index);
    let keys = indices(problem, Axis::window, coordinates, |axis| axis.keys);
    let score = |&key: &usize| problem.scale * dot(query, row(&kv.key, key, problem.head_dim));
    let scores: Vec<f64> = keys.iter().map(score).collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|score| (score - max).exp()).sum();
    let lse = max + sum.ln();
    let weights = scores.iter().map(|score| (score - lse).exp()).collect();
    Softmax { keys, weights, lse }
}

/// Output and logsumexp of query number `index`.
pub fn forward(problem: &Problem, head: &Head, kv: &KeyValue, index: usize) -> (Vec<f64>, f64) {
    let query = row(&head.query, index, problem.head_dim);
    let Softmax { keys, weights, lse } = softmax(problem, query, kv, index);
    let mut out = vec![0.0; problem.head_dim_v];
    for (key, weight) in keys.into_iter().zip(weights) {
        add(&mut out, weight, row(&kv.value, key, problem.head_dim_v));
    }
    (out, lse)
}

/// Gradient of query number `index`.
pub fn query_gradient(problem: &Problem, head: &Head, kv: &KeyValue, index: usize) -> Vec<f64> {
    let query = row(&head.query, index, problem.head_dim);
    let Softmax { keys, weights, .. } = softmax(problem, query, kv, index);
    let grad_out = row(&head.grad_out, index, problem.head_dim_v);
    let dp: Vec<f64> =
        keys.iter().map(|&key| dot(grad_out, row(&kv.value, key, problem.head_dim_v))).collect();
    // The output's part of the gradient, from exact probabilities: sum_j p_j dp_j = dout . out.
    let delta: f64 = weights.iter().zip(&dp).map(|(weight, dp)| weight * dp).sum();
    let delta = delta - f64::from(head.grad_lse[index]);
    let mut gradient = vec![0.0; problem.head_dim];
    for ((key, weight), dp) in keys.into_iter().zip(weights).zip(dp) {
        let ds = problem.scale * weight * (dp - delta);
        add(&mut gradient, ds, row(&kv.key, key, problem.head_dim));
    }
    gradient
}

/// Gradients of key and value number `index`, summed over the query heads that share them.
///
/// Probabilities are those of the logsumexp in `heads`, as the passes under test compute them: an
/// exact one for every visitor would cost the square of the window.
pub fn key_gradients(
    problem: &Problem,
    heads: &[Head],
    kv: &KeyValue,
    index: usize,
) -> (Vec<f64>, Vec<f64>) {
    let (dim, dim_v) = (problem.head_dim, problem.head_dim_v);
    let (key, value) = (row(&kv.key, index, dim), row(&kv.value, index, dim_v));
    let (mut grad_key, mut grad_value) = (vec![0.0; dim], vec![0.0; dim_v]);
    let coordinates = problem.key_coordinates(index);
    let visitors = indices(problem, Axis::visitors, coordinates, |axis| axis.queries);
    for head in heads {
        for &visitor in &visitors {
            let query = row(&head.query, visitor, dim);
            let grad_out = row(&head.grad_out, visitor, dim_v);
            let score = problem.scale * dot(query, key);
            let weight = (score - f64::from(head.lse[visitor])).exp();
            let delta = dot(grad_out, row(&head.out, visitor, dim_v));
            let delta = delta - f64::from(head.grad_lse[visitor]);
            let ds = problem.scale * weight * (dot(grad_out, value) - delta);
            add(&mut grad_key, ds, query);
            add(&mut grad_value, weight, grad_out);
        }
    }
    (grad_key, grad_value)
}

/// Row-major indices of the tokens that `interval` (first, count) gives along each axis.
fn indices(
    problem: &Problem,
    interval: impl Fn(&Axis, usize) -> (usize, usize),
    coordinates: [usize; MAX_RANK],
    length: impl Fn(&Axis) -> usize,
) -> Vec<usize> {
    let mut indices = vec![0];
    for (axis, coordinate) in problem.axes.iter().zip(coordinates) {
        let (first, count) = interval(axis, coordinate);
        let along = |base: usize| {
            let base = base * length(axis) + first;
            (0..count).map(move |step| base + step * axis.dilation)
        };
        indices = indices.into_iter().flat_map(along).collect();
    }
    indices
}

fn row(tensor: &[f32], index: usize, dim: usize) -> &[f32] {
    &tensor[index * dim..][..dim]
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

fn add(sum: &mut [f64], factor: f64, row: &[f32]) {
    for (sum, &value) in sum.iter_mut().zip(row) {
        *sum += factor * f64::from(value);
    }
}
