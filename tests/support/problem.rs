//! Problems as the oracle states them: plain sizes, and which key a query sees.

use rand::{Rng, SeedableRng, rngs::StdRng};

/// Which keys a query sees along one axis.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Axis {
    Window { length: usize, kernel_size: usize, stride: usize, dilation: usize, is_causal: bool },
    Dense { queries: usize, keys: usize, is_causal: bool },
}

impl Axis {
    pub fn queries(&self) -> usize {
        match *self {
            Axis::Window { length, .. } => length,
            Axis::Dense { queries, .. } => queries,
        }
    }

    pub fn keys(&self) -> usize {
        match *self {
            Axis::Window { length, .. } => length,
            Axis::Dense { keys, .. } => keys,
        }
    }

    pub fn sees(&self, query: usize, key: usize) -> bool {
        let (i, j) = (query as i64, key as i64);
        match *self {
            // Aligned at the end.
            Axis::Dense { queries, keys, is_causal } => {
                !is_causal || j <= i + keys as i64 - queries as i64
            }
            Axis::Window { length, kernel_size, stride, dilation, is_causal } => {
                let (length, k) = (length as i64, kernel_size as i64);
                let (s, d) = (stride as i64, dilation as i64);
                let (g, q) = (i % d, i / d);
                let n = (length - g + d - 1) / d;
                let (start, end) = if is_causal {
                    let leader = ((q / s) * s + s - 1).min(n - 1);
                    ((leader - k + 1).max(0), q + 1)
                } else {
                    let leader = ((q / s) * s + s / 2).min(n - 1);
                    let start = (leader - k / 2).max(0).min(n - k);
                    (start, start + k)
                };
                j % d == g && start <= j / d && j / d < end
            }
        }
    }

    fn visible(&self) -> Vec<Vec<usize>> {
        let keys = |query| (0..self.keys()).filter(|&key| self.sees(query, key)).collect();
        (0..self.queries()).map(keys).collect()
    }

    /// Entries of a bias along this axis; none along one that is no window.
    fn entries(&self) -> usize {
        match *self {
            Axis::Window { kernel_size, .. } => 2 * kernel_size - 1,
            Axis::Dense { .. } => 0,
        }
    }

    /// For every query, which of them belong to the keys it sees.
    fn places(&self) -> Vec<Vec<usize>> {
        let Axis::Window { kernel_size, dilation, .. } = *self else { return vec![] };
        let place = |query: usize, key: usize| {
            let distance = (key as i64 - query as i64) / dilation as i64;
            (distance + kernel_size as i64 - 1) as usize
        };
        let visible = self.visible().into_iter().enumerate();
        visible.map(|(q, keys)| keys.into_iter().map(|key| place(q, key)).collect()).collect()
    }
}

/// What is computed; `additional` is `None` where no additional tokens are given at all.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    pub batch: usize,
    pub heads: usize,
    pub heads_kv: usize,
    pub dim: usize,
    pub dim_v: usize,
    pub additional: Option<usize>,
    pub scale: Option<f64>,
    /// Whether there is a relative position bias; all axes are windows then.
    pub bias: bool,
    pub axes: Vec<Axis>,
}

/// Inputs and cotangents. The layouts are the public ones, with the spatial axes flattened.
#[derive(Clone, Debug)]
pub struct Inputs {
    pub query: Vec<f64>,
    pub key: Vec<f64>,
    pub value: Vec<f64>,
    pub more_keys: Vec<f64>,
    pub more_values: Vec<f64>,
    /// `[heads, 2 * kernel_size - 1, ..]`
    pub bias: Vec<f64>,
    pub grad_out: Vec<f64>,
    pub grad_lse: Vec<f64>,
}

impl Inputs {
    /// Every input tensor and cotangent.
    pub fn all_mut(&mut self) -> [&mut Vec<f64>; 8] {
        let Self { query, key, value, more_keys, more_values, bias, grad_out, grad_lse } = self;
        [query, key, value, more_keys, more_values, bias, grad_out, grad_lse]
    }
}

/// Gradients of the inputs; empty for additional tokens and a bias that are not there.
#[derive(Clone, Debug)]
pub struct Gradients {
    pub query: Vec<f64>,
    pub key: Vec<f64>,
    pub value: Vec<f64>,
    pub more_keys: Vec<f64>,
    pub more_values: Vec<f64>,
    pub bias: Vec<f64>,
}

impl Gradients {
    pub fn named(&self) -> [(&'static str, &Vec<f64>); 6] {
        [
            ("dq", &self.query),
            ("dk", &self.key),
            ("dv", &self.value),
            ("d additional keys", &self.more_keys),
            ("d additional values", &self.more_values),
            ("dbias", &self.bias),
        ]
    }
}

impl Problem {
    pub fn queries(&self) -> usize {
        self.axes.iter().map(Axis::queries).product()
    }

    pub fn keys(&self) -> usize {
        self.axes.iter().map(Axis::keys).product()
    }

    pub fn extra(&self) -> usize {
        self.additional.unwrap_or(0)
    }

    pub fn scale(&self) -> f64 {
        self.scale.unwrap_or_else(|| 1.0 / (self.dim as f64).sqrt())
    }

    /// For every query, the keys it sees, and behind `keys()` the additional tokens.
    pub fn visible(&self) -> Vec<Vec<usize>> {
        let mut rows = self.visible_keys();
        for row in &mut rows {
            row.extend(self.keys()..self.keys() + self.extra());
        }
        rows
    }

    /// For every query, the keys it sees.
    pub fn visible_keys(&self) -> Vec<Vec<usize>> {
        self.outer_product(Axis::visible, Axis::keys)
    }

    /// For every query, where the bias of each of these keys stands in that of a head.
    pub fn places(&self) -> Vec<Vec<usize>> {
        self.outer_product(Axis::places, Axis::entries)
    }

    /// Entries of a head's bias.
    pub fn entries(&self) -> usize {
        self.axes.iter().map(Axis::entries).product()
    }

    /// For every query, the numbers of what it has along all axes, by those along each one and by how many there are.
    fn outer_product(
        &self,
        along: fn(&Axis) -> Vec<Vec<usize>>,
        length: fn(&Axis) -> usize,
    ) -> Vec<Vec<usize>> {
        let mut rows = vec![vec![0]];
        for axis in &self.axes {
            let (along, length) = (along(axis), length(axis));
            rows = rows
                .iter()
                .flat_map(|outer| along.iter().map(move |inner| (outer, inner)))
                .map(|(outer, inner)| {
                    outer.iter().flat_map(|o| inner.iter().map(move |i| o * length + i)).collect()
                })
                .collect();
        }
        rows
    }

    /// Pairs of a query and a key it sees, over batch and heads.
    pub fn pairs(&self) -> usize {
        let windows: usize = self
            .axes
            .iter()
            .map(|axis| axis.visible().iter().map(Vec::len).sum::<usize>())
            .product();
        self.batch * self.heads * (windows + self.queries() * self.extra())
    }

    /// Standard normal inputs, each exactly an f32.
    pub fn inputs(&self, seed: u64) -> Inputs {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut normal = |count: usize| -> Vec<f64> {
            let draw = |_| {
                let (u, v): (f64, f64) = (1.0 - rng.random::<f64>(), rng.random());
                let normal = (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos();
                f64::from(normal as f32)
            };
            (0..count).map(draw).collect()
        };
        let rows = self.batch * self.queries() * self.heads;
        let tokens = self.batch * self.keys() * self.heads_kv;
        let extra = self.batch * self.extra() * self.heads_kv;
        let entries = if self.bias { self.heads * self.entries() } else { 0 };
        Inputs {
            query: normal(rows * self.dim),
            key: normal(tokens * self.dim),
            value: normal(tokens * self.dim_v),
            more_keys: normal(extra * self.dim),
            more_values: normal(extra * self.dim_v),
            grad_out: normal(rows * self.dim_v),
            grad_lse: normal(rows),
            bias: normal(entries),
        }
    }
}
