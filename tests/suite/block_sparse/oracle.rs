//! Block-sparse attention and its gradients in f64, pair by pair.

use rand::{Rng, SeedableRng, rngs::StdRng};

/// An axis: tokens, and those of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Axis {
    pub queries: usize,
    pub keys: usize,
    pub query_block: usize,
    pub key_block: usize,
    pub is_causal: bool,
}

impl Axis {
    /// Aligned at the end.
    fn sees(&self, query: usize, key: usize) -> bool {
        !self.is_causal || key + self.queries <= query + self.keys
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    pub batch: usize,
    pub heads: usize,
    pub heads_kv: usize,
    /// Either of the two.
    pub list_heads: usize,
    pub dim: usize,
    pub dim_v: usize,
    pub entries: usize,
    pub scale: Option<f64>,
    pub axes: Vec<Axis>,
}

/// What is given, each number exactly an f32.
#[derive(Clone, Debug)]
pub struct Inputs {
    pub query: Vec<f64>,
    pub key: Vec<f64>,
    pub value: Vec<f64>,
    pub lists: Vec<i64>,
    pub grad_out: Vec<f64>,
    pub grad_lse: Vec<f64>,
}

#[derive(Clone, Debug)]
pub struct Results {
    pub out: Vec<f64>,
    pub lse: Vec<f64>,
    pub grad_query: Vec<f64>,
    pub grad_key: Vec<f64>,
    pub grad_value: Vec<f64>,
}

impl Results {
    pub fn named(&self) -> [(&'static str, &Vec<f64>); 5] {
        let Self { out, lse, grad_query, grad_key, grad_value } = self;
        [("out", out), ("lse", lse), ("dq", grad_query), ("dk", grad_key), ("dv", grad_value)]
    }
}

impl Problem {
    pub fn queries(&self) -> usize {
        self.axes.iter().map(|axis| axis.queries).product()
    }

    pub fn keys(&self) -> usize {
        self.axes.iter().map(|axis| axis.keys).product()
    }

    pub fn query_blocks(&self) -> usize {
        self.axes.iter().map(|axis| axis.queries.div_ceil(axis.query_block)).product()
    }

    pub fn key_blocks(&self) -> usize {
        self.axes.iter().map(|axis| axis.keys.div_ceil(axis.key_block)).product()
    }

    fn scale(&self) -> f64 {
        self.scale.unwrap_or((self.dim as f64).powf(-0.5))
    }

    /// Standard normal numbers; lists of blocks that are there, of ones that are not, and of repeated ones.
    pub fn inputs(&self, seed: u64) -> Inputs {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut normal = |count: usize| -> Vec<f64> {
            (0..count)
                .map(|_| {
                    let (a, b): (f64, f64) = (rng.random_range(1e-9..1.0), rng.random());
                    let x = (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos();
                    f64::from(x as f32)
                })
                .collect()
        };
        let rows = self.batch * self.queries() * self.heads;
        let tokens = self.batch * self.keys() * self.heads_kv;
        let (query, key) = (normal(rows * self.dim), normal(tokens * self.dim));
        let (value, grad_out) = (normal(tokens * self.dim_v), normal(rows * self.dim_v));
        let grad_lse = normal(rows);
        let lists = self.batch * self.query_blocks() * self.list_heads;
        let blocks = self.key_blocks() as i64;
        let lists = (0..lists)
            .flat_map(|_| {
                let is_full = rng.random_bool(0.3);
                let list: Vec<i64> = (0..self.entries)
                    .map(|at| match rng.random_range(0..8) {
                        _ if is_full => at as i64 % blocks.max(1),
                        0 => -1,
                        1 => [blocks, i32::MAX.into(), i32::MIN.into(), -7][at % 4],
                        _ => rng.random_range(0..blocks.max(1)),
                    })
                    .collect();
                list
            })
            .collect();
        Inputs { query, key, value, lists, grad_out, grad_lse }
    }

    /// Coordinates of a token among these lengths, slowest axis first.
    fn place(token: usize, lengths: &[usize]) -> Vec<usize> {
        let mut rest = token;
        let mut place: Vec<usize> = lengths
            .iter()
            .rev()
            .map(|length| {
                let at = rest % length;
                rest /= length;
                at
            })
            .collect();
        place.reverse();
        place
    }

    /// The block of each token along its axes, row-major.
    fn block(place: &[usize], sizes: &[(usize, usize)]) -> usize {
        let steps = place.iter().zip(sizes);
        steps.fold(0, |block, (at, (length, size))| block * length.div_ceil(*size) + at / size)
    }

    /// How often a query of a head sees each key.
    pub fn seen(&self, inputs: &Inputs, sample: usize, head: usize, query: usize) -> Vec<usize> {
        let lengths: Vec<usize> = self.axes.iter().map(|axis| axis.queries).collect();
        let key_lengths: Vec<usize> = self.axes.iter().map(|axis| axis.keys).collect();
        let query_sizes: Vec<_> =
            self.axes.iter().map(|axis| (axis.queries, axis.query_block)).collect();
        let key_sizes: Vec<_> = self.axes.iter().map(|axis| (axis.keys, axis.key_block)).collect();
        let place = Self::place(query, &lengths);
        let block = Self::block(&place, &query_sizes);
        let list_head = head * self.list_heads / self.heads;
        let list = (sample * self.query_blocks() + block) * self.list_heads + list_head;
        let list = &inputs.lists[list * self.entries..][..self.entries];
        (0..self.keys())
            .map(|key| {
                let key = Self::place(key, &key_lengths);
                let block = Self::block(&key, &key_sizes) as i64;
                let times = list.iter().filter(|entry| **entry == block).count();
                let mut axes = self.axes.iter().zip(place.iter().zip(&key));
                if axes.all(|(axis, (query, key))| axis.sees(*query, *key)) { times } else { 0 }
            })
            .collect()
    }

    pub fn compute(&self, inputs: &Inputs) -> Results {
        let (dim, dim_v, scale) = (self.dim, self.dim_v, self.scale());
        let (queries, keys) = (self.queries(), self.keys());
        let rows = self.batch * queries * self.heads;
        let mut results = Results {
            out: vec![0.0; rows * dim_v],
            lse: vec![f64::NEG_INFINITY; rows],
            grad_query: vec![0.0; rows * dim],
            grad_key: vec![0.0; inputs.key.len()],
            grad_value: vec![0.0; inputs.value.len()],
        };
        for row in 0..rows {
            let head = row % self.heads;
            let (query, sample) = (row / self.heads % queries, row / self.heads / queries);
            let token = |key: usize| {
                (sample * keys + key) * self.heads_kv + head / (self.heads / self.heads_kv)
            };
            let seen = self.seen(inputs, sample, head, query);
            let seen: Vec<(usize, f64)> = (0..keys)
                .filter(|key| seen[*key] > 0)
                .map(|key| (token(key), seen[key] as f64))
                .collect();
            if seen.is_empty() {
                continue;
            }
            let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
            let q = &inputs.query[row * dim..][..dim];
            let scores: Vec<f64> = seen
                .iter()
                .map(|(token, _)| scale * dot(q, &inputs.key[token * dim..][..dim]))
                .collect();
            let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weight = |(score, (_, times)): (&f64, &(usize, f64))| times * (score - max).exp();
            let weights: Vec<f64> = scores.iter().zip(&seen).map(weight).collect();
            let sum: f64 = weights.iter().sum();
            results.lse[row] = max + sum.ln();
            let grad_out = &inputs.grad_out[row * dim_v..][..dim_v];
            for ((token, _), weight) in seen.iter().zip(&weights) {
                for (d, grad_out) in grad_out.iter().enumerate() {
                    let value = inputs.value[token * dim_v + d];
                    results.out[row * dim_v + d] += weight / sum * value;
                    results.grad_value[token * dim_v + d] += weight / sum * grad_out;
                }
            }
            let delta = dot(grad_out, &results.out[row * dim_v..][..dim_v]) - inputs.grad_lse[row];
            for ((token, _), weight) in seen.iter().zip(&weights) {
                let slope = dot(grad_out, &inputs.value[token * dim_v..][..dim_v]) - delta;
                let slope = scale * weight / sum * slope;
                for (d, q) in q.iter().enumerate() {
                    results.grad_query[row * dim + d] += slope * inputs.key[token * dim + d];
                    results.grad_key[token * dim + d] += slope * q;
                }
            }
        }
        results
    }
}
