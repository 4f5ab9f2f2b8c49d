//! Small problems of every kind, and data for them.

use burn_natten_kernels::{Axis, MAX_RANK, Problem};
use rand::{Rng, SeedableRng, rngs::StdRng};
use test_support::element::Element;
use test_support::{Data, axis};

pub fn all() -> Vec<Problem> {
    let plane = [axis(7, 3, 1, 2, false), axis(19, 5, 2, 1, false)];
    let space = [axis(3, 2, 1, 1, false), axis(6, 3, 1, 1, false), axis(9, 4, 1, 2, true)];
    let mixed = [axis(3, 2, 1, 1, false), Axis::dense(33, 90, true).with_origin(0)];
    vec![
        Problem::new([axis(150, 9, 1, 1, true)], 2, 16).with_batch(2).with_heads_kv(1),
        Problem::new(plane, 2, 32).with_head_dim_v(16).with_additional(5),
        Problem::new(space, 1, 24).with_batch(2).with_head_dim_v(40),
        Problem::new([Axis::dense(40, 23, false)], 2, 7).with_head_dim_v(5).with_additional(20),
        // Tiles in which no query sees anything, in which some do, and in which all do.
        Problem::new([Axis::dense(200, 70, true)], 2, 16).with_heads_kv(1),
        // Keys that no query sees.
        Problem::new(mixed, 2, 16).with_head_dim_v(24),
        Problem::new([Axis::dense(90, 20, true)], 2, 8).with_head_dim_v(16).with_additional(3),
        Problem::new([Axis::dense(20, 90, true)], 2, 16).with_head_dim_v(8),
    ]
}

/// The same with a position bias: even and odd windows, strides, dilation, causal axes, shared heads, additional tokens,
/// windows that cover the space, and a part of the queries.
pub fn biased() -> Vec<Problem> {
    let part = |axis: Axis, queries| {
        let mut part = axis.with_origin(6);
        part.queries = queries;
        part
    };
    let full = [axis(5, 5, 1, 1, false), axis(9, 9, 1, 1, false)];
    let parts = [axis(5, 3, 2, 1, false), part(axis(40, 4, 2, 2, false), 29)];
    let covered = [part(axis(23, 23, 1, 1, false), 11), axis(6, 3, 1, 1, true)];
    let others = [
        Problem::new(full, 2, 16).with_heads_kv(1).with_additional(3),
        Problem::new(parts, 2, 16).with_heads_kv(1).with_head_dim_v(24),
        Problem::new(covered, 2, 8).with_head_dim_v(16),
        Problem::new([part(axis(90, 21, 1, 3, false), 70)], 2, 16).with_additional(4),
    ];
    all()[..3].iter().copied().chain(others).map(|problem| problem.with_bias(true)).collect()
}

/// A problem and how to compute it.
pub struct Random {
    pub problem: Problem,
    pub element: Element,
    /// Any number.
    pub pick: usize,
    /// Of 1.
    pub share: f64,
}

/// `BURN_NATTEN_TEST_PROBLEMS` random problems, one by default, which `BURN_NATTEN_TEST_SEED` chooses.
pub fn random() -> Vec<Random> {
    let number = |name: &str| std::env::var(name).map(|text| text.parse().expect("a number"));
    let count = number("BURN_NATTEN_TEST_PROBLEMS").unwrap_or(1);
    let mut rng = StdRng::seed_from_u64(number("BURN_NATTEN_TEST_SEED").unwrap_or(0) as u64);
    (0..count).map(|_| random_problem(&mut rng)).collect()
}

fn random_problem(rng: &mut StdRng) -> Random {
    let rank = rng.random_range(1..=MAX_RANK);
    let axes: Vec<_> = (0..rank)
        .map(|_| {
            let length = rng.random_range(4..=[100, 14, 7][rank - 1]);
            if rank == 1 && rng.random_bool(0.3) {
                let axis = Axis::dense(length, rng.random_range(1..=100), rng.random());
                return if rng.random() { axis } else { axis.with_origin(0) };
            }
            let dilation = if rng.random() { 1 } else { rng.random_range(1..=length / 2) };
            let kernel_size = rng.random_range(2..=length / dilation);
            let stride = if rng.random() { 1 } else { rng.random_range(1..=kernel_size) };
            axis(length, kernel_size, stride, dilation, rng.random_bool(0.3))
        })
        .collect();
    let dims = [(16, 16), (32, 32), (64, 64), (40, 72), (7, 5), (12, 20), (48, 16)];
    let (head_dim, head_dim_v) = dims[rng.random_range(0..dims.len())];
    let heads_kv = rng.random_range(1..=2);
    let batch = rng.random_range(1..=2);
    let heads = heads_kv * rng.random_range(1..=2);
    let additional = if rng.random_bool(0.3) { rng.random_range(1..=40) } else { 0 };
    let problem = Problem::new(axes, heads, head_dim)
        .with_batch(batch)
        .with_heads_kv(heads_kv)
        .with_head_dim_v(head_dim_v)
        .with_additional(additional);
    let has_bias = rng.random_bool(0.4) && problem.axes.iter().all(Axis::is_among_keys);
    let problem = problem.with_bias(has_bias);
    let element = Element::ALL[rng.random_range(0..Element::ALL.len())];
    Random { problem, element, pick: rng.random_range(0..1000), share: rng.random() }
}

/// Vectors that a number which is not finite may be in.
#[derive(Clone, Copy, Debug)]
pub enum Input {
    Query,
    Key,
    Value,
    Dout,
    /// An entry of the bias, where there is one.
    Bias,
}

/// What the forward pass is tried with.
pub const FORWARD: [(f64, Input); 6] = [
    (f64::NAN, Input::Key),
    (f64::NAN, Input::Value),
    (f64::INFINITY, Input::Key),
    (f64::INFINITY, Input::Value),
    (f64::NAN, Input::Bias),
    (f64::NEG_INFINITY, Input::Bias),
];
/// What the backward pass is tried with besides.
pub const BACKWARD: [(f64, Input); 2] = [(f64::NAN, Input::Query), (f64::INFINITY, Input::Dout)];

/// The data, and the same with each of these numbers in one vector.
pub fn spoiled(problem: &Problem, clean: &Data, poisons: &[(f64, Input)]) -> Vec<(String, Data)> {
    let mut all = vec![("clean".to_string(), clean.clone())];
    let is_there = |input: &Input| problem.has_bias || !matches!(input, Input::Bias);
    for (poison, input) in poisons.iter().filter(|(_, input)| is_there(input)) {
        let mut data = clean.clone();
        let (values, dim) = match input {
            Input::Query => (&mut data.query, problem.head_dim),
            Input::Key => (&mut data.key, problem.head_dim),
            Input::Value => (&mut data.value, problem.head_dim_v),
            Input::Dout => (&mut data.dout, problem.head_dim_v),
            Input::Bias => (&mut data.bias, 1),
        };
        // In the bias of the first head, away from the middle that all queries see.
        let row = values.len() / dim / if let Input::Bias = input { 5 } else { 2 };
        values[row * dim + dim / 2] = *poison;
        all.push((format!("{poison} in a vector of {input:?}"), data));
    }
    all
}
