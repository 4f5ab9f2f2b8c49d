//! Both halves and their gradients in f64, slot by slot, from which key a query sees.

use crate::support::problem::{Axis, Problem};

/// What the halves read, heads last, with flat spaces. Cotangents are those of scores and of sums.
#[derive(Clone, Debug)]
pub struct Halves {
    pub query: Vec<f64>,
    pub key: Vec<f64>,
    pub value: Vec<f64>,
    pub more_keys: Vec<f64>,
    pub more_values: Vec<f64>,
    pub weights: Vec<f64>,
    pub grad_scores: Vec<f64>,
    pub grad_out: Vec<f64>,
}

/// What they give. Hidden scores are `-inf`.
#[derive(Clone, Debug, Default)]
pub struct Results {
    pub scores: Vec<f64>,
    pub out: Vec<f64>,
    pub grad_query: Vec<f64>,
    pub grad_key: Vec<f64>,
    pub grad_more_keys: Vec<f64>,
    pub grad_weights: Vec<f64>,
    pub grad_value: Vec<f64>,
    pub grad_more_values: Vec<f64>,
}

impl Results {
    pub fn named(&self) -> [(&'static str, &Vec<f64>); 8] {
        [
            ("scores", &self.scores),
            ("dq", &self.grad_query),
            ("dk", &self.grad_key),
            ("d additional keys", &self.grad_more_keys),
            ("out", &self.out),
            ("dweights", &self.grad_weights),
            ("dv", &self.grad_value),
            ("d additional values", &self.grad_more_values),
        ]
    }
}

/// Slots of a query, those of additional tokens included.
pub fn slots(problem: &Problem) -> usize {
    window(problem).iter().product::<usize>() + problem.extra()
}

fn window(problem: &Problem) -> Vec<usize> {
    let size = |axis: &Axis| match *axis {
        Axis::Window { kernel_size, .. } => kernel_size,
        Axis::Dense { .. } => panic!("windows along all axes"),
    };
    problem.axes.iter().map(size).collect()
}

/// For every query, the key of each slot, behind `keys()` the additional tokens; `None` where it is hidden.
pub fn slot_keys(problem: &Problem) -> Vec<Vec<Option<usize>>> {
    let mut rows = vec![vec![Some(0)]];
    for (axis, size) in problem.axes.iter().zip(window(problem)) {
        let mut next = vec![];
        for outer in &rows {
            for query in 0..axis.queries() {
                let seen: Vec<_> = (0..axis.keys()).filter(|key| axis.sees(query, *key)).collect();
                let mut row = vec![];
                for slot in outer {
                    for inner in 0..size {
                        let place = |(outer, key): (usize, usize)| outer * axis.keys() + key;
                        row.push(slot.zip(seen.get(inner).copied()).map(place));
                    }
                }
                next.push(row);
            }
        }
        rows = next;
    }
    for row in &mut rows {
        row.extend((0..problem.extra()).map(|token| Some(problem.keys() + token)));
    }
    rows
}

impl Halves {
    /// Standard normal numbers, each exactly an f32.
    pub fn random(problem: &Problem, seed: u64) -> Self {
        let inputs = problem.inputs(seed);
        // As many more numbers as there are slots: those of a problem with as many values.
        let wide = Problem { dim: slots(problem), dim_v: slots(problem), ..problem.clone() };
        let more = wide.inputs(seed + 1000);
        Self {
            query: inputs.query,
            key: inputs.key,
            value: inputs.value,
            more_keys: inputs.more_keys,
            more_values: inputs.more_values,
            weights: more.query,
            grad_scores: more.grad_out,
            grad_out: inputs.grad_out,
        }
    }

    pub fn all_mut(&mut self) -> [&mut Vec<f64>; 8] {
        let Self { query, key, value, more_keys, more_values, weights, grad_scores, grad_out } =
            self;
        [query, key, value, more_keys, more_values, weights, grad_scores, grad_out]
    }

    /// The same with NaN in hidden slots, of the weights and of the gradient of scores.
    pub fn poisoned(mut self, problem: &Problem) -> Self {
        let (table, slots) = (slot_keys(problem), slots(problem));
        let rows = self.weights.len() / slots.max(1);
        for row in 0..rows {
            let query = row / problem.heads % problem.queries();
            for (slot, key) in table[query].iter().enumerate() {
                if key.is_none() {
                    self.weights[row * slots + slot] = f64::NAN;
                    self.grad_scores[row * slots + slot] = f64::NAN;
                }
            }
        }
        self
    }

    /// Both halves and their gradients.
    pub fn compute(&self, problem: &Problem) -> Results {
        let (slots, scale) = (slots(problem), problem.scale());
        let Problem { batch, heads, heads_kv, dim, dim_v, .. } = *problem;
        let (queries, keys, extra) = (problem.queries(), problem.keys(), problem.extra());
        let rows = batch * queries * heads;
        let mut results = Results {
            scores: vec![f64::NEG_INFINITY; rows * slots],
            out: vec![0.0; rows * dim_v],
            grad_query: vec![0.0; rows * dim],
            grad_key: vec![0.0; self.key.len()],
            grad_more_keys: vec![0.0; self.more_keys.len()],
            grad_weights: vec![0.0; rows * slots],
            grad_value: vec![0.0; self.value.len()],
            grad_more_values: vec![0.0; self.more_values.len()],
        };
        let table = slot_keys(problem);
        for row in 0..rows {
            let (head, query, sample) = (row % heads, row / heads % queries, row / heads / queries);
            for (slot, key) in table[query].iter().enumerate() {
                let Some(key) = *key else { continue };
                let place = row * slots + slot;
                let is_extra = key >= keys;
                let token = match is_extra {
                    true => sample * extra + key - keys,
                    false => sample * keys + key,
                };
                let vector = token * heads_kv + head / (heads / heads_kv);
                let (key, value) = match is_extra {
                    true => (&self.more_keys, &self.more_values),
                    false => (&self.key, &self.value),
                };
                let (grad_key, grad_value) = match is_extra {
                    true => (&mut results.grad_more_keys, &mut results.grad_more_values),
                    false => (&mut results.grad_key, &mut results.grad_value),
                };
                let mut score = 0.0;
                for d in 0..dim {
                    let (q, k) = (row * dim + d, vector * dim + d);
                    score += self.query[q] * key[k];
                    results.grad_query[q] += scale * self.grad_scores[place] * key[k];
                    grad_key[k] += scale * self.grad_scores[place] * self.query[q];
                }
                results.scores[place] = scale * score;
                for d in 0..dim_v {
                    let (o, v) = (row * dim_v + d, vector * dim_v + d);
                    results.out[o] += self.weights[place] * value[v];
                    results.grad_weights[place] += self.grad_out[o] * value[v];
                    grad_value[v] += self.weights[place] * self.grad_out[o];
                }
            }
        }
        results
    }
}
