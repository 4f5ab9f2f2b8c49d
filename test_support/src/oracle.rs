//! Attention in `f64`, written from its definition: one loop over the keys of each row. What a row
//! sees is the caller's to say.

use burn_natten_kernels::Problem;
use rayon::prelude::*;

use crate::{Data, Results};

/// Sizes, and which keys a query sees.
pub struct Attention {
    pub batch: usize,
    pub keys: usize,
    pub heads: usize,
    pub heads_kv: usize,
    pub dim: usize,
    pub dim_v: usize,
    pub additional: usize,
    pub scale: f64,
    /// For every query, the keys it sees. It sees all additional ones besides.
    pub visible: Vec<Vec<usize>>,
    /// For every query, where the bias of each of these keys stands in that of a head; nothing where there is none.
    pub places: Vec<Vec<usize>>,
    /// Entries of a head's bias.
    pub entries: usize,
    /// What rounds the operands of matrix products: vectors, weights and gradients of scores.
    pub operand: fn(f64) -> f64,
}

/// What both passes read.
#[derive(Clone, Copy)]
pub struct Tensors<'a> {
    pub query: &'a [f64],
    pub key: &'a [f64],
    pub value: &'a [f64],
    pub additional_key: &'a [f64],
    pub additional_value: &'a [f64],
    pub bias: &'a [f64],
    pub dout: &'a [f64],
    pub dlse: &'a [f64],
}

/// Gradients of the inputs.
pub struct Gradients {
    pub query: Vec<f64>,
    pub key: Vec<f64>,
    pub value: Vec<f64>,
    pub additional_key: Vec<f64>,
    pub additional_value: Vec<f64>,
    pub bias: Vec<f64>,
}

impl Gradients {
    fn zeros(tensors: Tensors<'_>) -> Self {
        let zeros = |like: &[f64]| vec![0.0; like.len()];
        Self {
            query: zeros(tensors.query),
            key: zeros(tensors.key),
            value: zeros(tensors.value),
            additional_key: zeros(tensors.additional_key),
            additional_value: zeros(tensors.additional_value),
            bias: zeros(tensors.bias),
        }
    }

    fn all(&mut self) -> [&mut Vec<f64>; 6] {
        let Self { query, key, value, additional_key, additional_value, bias } = self;
        [query, key, value, additional_key, additional_value, bias]
    }
}

/// A key that a row sees: its vector's number among the keys, or among the additional ones.
#[derive(Clone, Copy)]
enum Seen {
    Spatial(usize),
    Additional(usize),
}

/// The keys that a row sees, with their scores, and the logsumexp of these.
struct Row {
    scores: Vec<(Seen, f64)>,
    lse: f64,
}

/// Tensors as products have them.
struct Rounded {
    query: Vec<f64>,
    keys: [Vec<f64>; 2],
    values: [Vec<f64>; 2],
    dout: Vec<f64>,
    /// Added to the scores as it is.
    bias: Vec<f64>,
}

impl Rounded {
    fn key(&self, seen: Seen, dim: usize) -> &[f64] {
        Self::vector(&self.keys, seen, dim)
    }

    fn value(&self, seen: Seen, dim: usize) -> &[f64] {
        Self::vector(&self.values, seen, dim)
    }

    fn vector([spatial, additional]: &[Vec<f64>; 2], seen: Seen, dim: usize) -> &[f64] {
        match seen {
            Seen::Spatial(at) => vector(spatial, at, dim),
            Seen::Additional(at) => vector(additional, at, dim),
        }
    }
}

impl Attention {
    fn rows(&self) -> usize {
        self.batch * self.visible.len() * self.heads
    }

    /// `(out, lse)`
    pub fn forward(&self, tensors: Tensors<'_>) -> (Vec<f64>, Vec<f64>) {
        let rounded = self.rounded(tensors);
        let rows = (0..self.rows()).into_par_iter().map(|number| {
            let row = self.row(number, &rounded);
            let mut out = vec![0.0; self.dim_v];
            for (seen, score) in row.scores {
                let weight = (self.operand)((score - row.lse).exp());
                add(&mut out, weight, rounded.value(seen, self.dim_v));
            }
            (out, row.lse)
        });
        let (out, lse): (Vec<_>, Vec<_>) = rows.collect::<Vec<_>>().into_iter().unzip();
        (out.concat(), lse)
    }

    /// Gradients for the cotangents. `out` is what the forward pass returned, which an implementation
    /// may have rounded.
    pub fn backward(&self, tensors: Tensors<'_>, out: &[f64]) -> Gradients {
        let rounded = self.rounded(tensors);
        let rows: Vec<usize> = (0..self.rows()).collect();
        let parts = rows.par_chunks(rows.len().div_ceil(4).max(1)).map(|rows| {
            let mut part = Gradients::zeros(tensors);
            for &row in rows {
                let exact = vector(tensors.dout, row, self.dim_v);
                let delta = dot(vector(out, row, self.dim_v), exact) - tensors.dlse[row];
                self.add_gradients(row, &rounded, delta, &mut part);
            }
            part
        });
        let mut sum = Gradients::zeros(tensors);
        for mut part in parts.collect::<Vec<_>>() {
            for (sum, part) in sum.all().into_iter().zip(part.all()) {
                add(sum, 1.0, part);
            }
        }
        sum
    }

    fn add_gradients(&self, number: usize, rounded: &Rounded, delta: f64, sum: &mut Gradients) {
        let (dim, dim_v, operand) = (self.dim, self.dim_v, self.operand);
        let row = self.row(number, rounded);
        let query = vector(&rounded.query, number, dim);
        let dout = vector(&rounded.dout, number, dim_v);
        for (seen, score) in row.scores {
            let p = (score - row.lse).exp();
            let dp = dot(dout, rounded.value(seen, dim_v));
            let slope = p * (dp - delta);
            let ds = self.scale * operand(slope);
            if let Some(place) = self.place(number, seen) {
                sum.bias[place] += slope;
            }
            let (dk, dv, at) = match seen {
                Seen::Spatial(at) => (&mut sum.key, &mut sum.value, at),
                Seen::Additional(at) => (&mut sum.additional_key, &mut sum.additional_value, at),
            };
            add(&mut sum.query[number * dim..][..dim], ds, rounded.key(seen, dim));
            add(&mut dk[at * dim..][..dim], ds, query);
            add(&mut dv[at * dim_v..][..dim_v], operand(p), dout);
        }
    }

    fn row(&self, number: usize, rounded: &Rounded) -> Row {
        let (token, head) = (number / self.heads, number % self.heads);
        let (batch, query) = (token / self.visible.len(), token % self.visible.len());
        let head_kv = head / (self.heads / self.heads_kv);
        let at = |tokens: usize, token: usize| (batch * tokens + token) * self.heads_kv + head_kv;
        let spatial = self.visible[query].iter().map(|key| Seen::Spatial(at(self.keys, *key)));
        let more = (0..self.additional).map(|key| Seen::Additional(at(self.additional, key)));
        let query = vector(&rounded.query, number, self.dim);
        let score = |seen| {
            let bias = self.place(number, seen).map_or(0.0, |place| rounded.bias[place]);
            (seen, self.scale * dot(query, rounded.key(seen, self.dim)) + bias)
        };
        let scores: Vec<_> = spatial.chain(more).map(score).collect();
        let maximum = scores.iter().map(|(_, score)| *score).fold(f64::NEG_INFINITY, f64::max);
        let sum = scores.iter().map(|(_, score)| (score - maximum).exp()).sum::<f64>();
        Row { scores, lse: maximum + sum.ln() }
    }

    /// Where the bias of a row and a key stands.
    fn place(&self, row: usize, seen: Seen) -> Option<usize> {
        let Seen::Spatial(at) = seen else { return None };
        let (query, head) = (row / self.heads % self.visible.len(), row % self.heads);
        let (key, places) = (at / self.heads_kv % self.keys, self.places.get(query)?);
        let slot = self.visible[query].iter().position(|seen| *seen == key)?;
        Some(head * self.entries + places[slot])
    }

    fn rounded(&self, tensors: Tensors<'_>) -> Rounded {
        let round = |values: &[f64]| values.iter().map(|x| (self.operand)(*x)).collect::<Vec<_>>();
        Rounded {
            query: round(tensors.query),
            keys: [round(tensors.key), round(tensors.additional_key)],
            values: [round(tensors.value), round(tensors.additional_value)],
            dout: round(tensors.dout),
            bias: tensors.bias.to_vec(),
        }
    }
}

fn vector(buffer: &[f64], row: usize, dim: usize) -> &[f64] {
    &buffer[row * dim..][..dim]
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(sum: &mut [f64], weight: f64, row: &[f64]) {
    for (sum, x) in sum.iter_mut().zip(row) {
        *sum += weight * x;
    }
}

/// The spatial keys that a query sees, from nothing but [`Axis::window`](burn_natten_kernels::Axis::window).
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

/// Where the bias of each [`visible`] key stands in that of a head.
pub fn places(problem: &Problem, query: usize) -> Vec<usize> {
    let position = problem.query_coordinates(query);
    let mut places = vec![0];
    for (axis, at) in problem.axes.iter().zip(position) {
        let (first, count) = axis.window(at);
        let at = at as isize + axis.origin;
        let place = |i: usize| {
            let distance = (first + i * axis.dilation) as isize - at;
            (axis.kernel_size as isize - 1 + distance / axis.dilation as isize) as usize
        };
        places = places
            .into_iter()
            .flat_map(|line| (0..count).map(move |i| line * (2 * axis.kernel_size - 1) + place(i)))
            .collect();
    }
    places
}

/// Both passes. The backward pass reads the output as `round` leaves it, as an implementation that
/// stores it in that type does.
pub fn compute(problem: &Problem, data: &Data, round: fn(f64) -> f64) -> Results {
    compute_by(problem, data, round, None)
}

/// The same where `operand` rounds what matrix products multiply. The backward pass is given the output of [`compute`].
pub fn compute_rounded(
    problem: &Problem,
    data: &Data,
    round: fn(f64) -> f64,
    operand: fn(f64) -> f64,
) -> Results {
    compute_by(problem, data, round, Some(operand))
}

fn compute_by(
    problem: &Problem,
    data: &Data,
    round: fn(f64) -> f64,
    operand: Option<fn(f64) -> f64>,
) -> Results {
    let mut attention = Attention {
        batch: problem.batch,
        keys: problem.keys(),
        heads: problem.heads,
        heads_kv: problem.heads_kv,
        dim: problem.head_dim,
        dim_v: problem.head_dim_v,
        additional: problem.additional,
        scale: problem.scale,
        visible: (0..problem.queries()).map(|query| visible(problem, query)).collect(),
        places: match problem.has_bias {
            true => (0..problem.queries()).map(|query| places(problem, query)).collect(),
            false => Vec::new(),
        },
        entries: problem.bias_extents().iter().product(),
        operand: |x| x,
    };
    let tensors = Tensors {
        query: &data.query,
        key: &data.key,
        value: &data.value,
        additional_key: &data.additional_key,
        additional_value: &data.additional_value,
        bias: &data.bias,
        dout: &data.dout,
        dlse: &data.dlse,
    };
    let (mut out, mut lse) = attention.forward(tensors);
    let stored: Vec<f64> = out.iter().map(|x| round(*x)).collect();
    if let Some(operand) = operand {
        attention.operand = operand;
        (out, lse) = attention.forward(tensors);
    }
    let gradients = attention.backward(tensors, &stored);
    Results {
        out,
        lse,
        dq: gradients.query,
        dk: gradients.key,
        dv: gradients.value,
        additional_dk: gradients.additional_key,
        additional_dv: gradients.additional_value,
        dbias: gradients.bias,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{axis, problem};

    /// The loss that has `dout` and `dlse` for gradients.
    fn loss(problem: &Problem, data: &Data) -> f64 {
        let results = compute(problem, data, |x| x);
        dot(&results.out, &data.dout) + dot(&results.lse, &data.dlse)
    }

    #[test]
    fn gradients_are_differences() {
        let problem = problem(&[axis(6, 3, 2, 2, true), axis(4, 3, 1, 1, false)], 8)
            .with_heads_kv(1)
            .with_head_dim_v(3)
            .with_additional(2)
            .with_bias(true);
        let data = Data::random(&problem, 3, |x| x);
        let results = compute(&problem, &data, |x| x);
        type Part = fn(&mut Data) -> &mut Vec<f64>;
        let moved = |of: Part, index: usize, step: f64| {
            let mut data = data.clone();
            of(&mut data)[index] += step;
            loss(&problem, &data)
        };
        let inputs: [(Part, &Vec<f64>); 6] = [
            (|data| &mut data.query, &results.dq),
            (|data| &mut data.key, &results.dk),
            (|data| &mut data.value, &results.dv),
            (|data| &mut data.additional_key, &results.additional_dk),
            (|data| &mut data.additional_value, &results.additional_dv),
            (|data| &mut data.bias, &results.dbias),
        ];
        for (number, (of, gradient)) in inputs.into_iter().enumerate() {
            for index in (0..gradient.len()).step_by(7) {
                let slope = (moved(of, index, 1e-5) - moved(of, index, -1e-5)) / 2e-5;
                let difference = (slope - gradient[index]).abs();
                assert!(difference < 1e-6, "{number}, {index}: {slope}, {}", gradient[index]);
            }
        }
    }

    #[test]
    fn a_row_that_sees_nothing_is_zero() {
        let attention = Attention {
            batch: 1,
            keys: 1,
            heads: 1,
            heads_kv: 1,
            dim: 1,
            dim_v: 1,
            additional: 0,
            scale: 1.0,
            visible: vec![vec![], vec![0]],
            places: vec![],
            entries: 0,
            operand: |x| x,
        };
        let tensors = Tensors {
            query: &[1.0, 2.0],
            key: &[3.0],
            value: &[5.0],
            additional_key: &[],
            additional_value: &[],
            bias: &[],
            dout: &[1.0, 1.0],
            dlse: &[1.0, 1.0],
        };
        let (out, lse) = attention.forward(tensors);
        assert_eq!(
            (out.as_slice(), lse.as_slice()),
            (&[0.0, 5.0][..], &[f64::NEG_INFINITY, 6.0][..])
        );
        let gradients = attention.backward(tensors, &out);
        assert_eq!((gradients.query, gradients.key), (vec![0.0, 3.0], vec![2.0]));
        assert_eq!(gradients.value, [1.0]);
    }
}
