//! What the tests and benches of the workspace share: problems, data, an oracle, a device, and tests of
//! what several tiers promise.
#![allow(missing_docs, reason = "the readers of this crate are tests")]

#[cfg(feature = "cube")]
pub mod absent;
pub mod alone;
#[cfg(feature = "cube")]
pub mod backward;
#[cfg(feature = "cube")]
pub mod blocks;
#[cfg(feature = "cube")]
pub mod compare;
pub mod cpp;
#[cfg(feature = "cuda")]
pub mod decoding;
#[cfg(feature = "cube")]
pub mod element;
#[cfg(feature = "cube")]
pub mod format;
#[cfg(feature = "cube")]
pub mod isolation;
#[cfg(feature = "cube")]
pub mod large_scores;
pub mod oracle;
#[cfg(feature = "cube")]
pub mod packed;
#[cfg(feature = "cube")]
pub mod portable;
#[cfg(feature = "cube")]
pub mod problems;
#[cfg(feature = "cube")]
pub mod rounding;
#[cfg(feature = "cube")]
pub mod selection;
#[cfg(feature = "cube")]
pub mod tier;

use burn_natten_kernels::{Axis, Operand, Problem};
use rand::{Rng, SeedableRng, rngs::StdRng};

/// An axis of self attention: `length, kernel_size, stride, dilation, is_causal`.
pub fn axis(
    length: usize,
    kernel_size: usize,
    stride: usize,
    dilation: usize,
    is_causal: bool,
) -> Axis {
    Axis::neighborhood(length, kernel_size)
        .with_stride(stride)
        .with_dilation(dilation)
        .with_causal(is_causal)
}

/// Two samples, two heads, slowest axis first; to be changed from there.
pub fn problem(axes: &[Axis], dim: usize) -> Problem {
    Problem::new(axes, 2, dim).with_batch(2)
}

/// Everything that the passes read, in `f64` but representable in the type under test.
#[derive(Clone)]
pub struct Data {
    pub query: Vec<f64>,
    pub key: Vec<f64>,
    pub value: Vec<f64>,
    pub additional_key: Vec<f64>,
    pub additional_value: Vec<f64>,
    /// `[heads, 2 * kernel_size - 1, ..]`
    pub bias: Vec<f64>,
    pub dout: Vec<f64>,
    pub dlse: Vec<f64>,
}

impl Data {
    /// Uniform in -2..2, each element rounded by `round`.
    pub fn random(problem: &Problem, seed: u64, round: fn(f64) -> f64) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut values = |rows: usize, dim: usize, round: fn(f64) -> f64| -> Vec<f64> {
            (0..rows * dim).map(|_| round(rng.random_range(-2.0..2.0))).collect()
        };
        let queries = problem.batch * problem.queries() * problem.heads;
        let keys = problem.batch * problem.keys() * problem.heads_kv;
        let additional = problem.batch * problem.additional * problem.heads_kv;
        let (dim, dim_v) = (problem.head_dim, problem.head_dim_v);
        let bias = match problem.has_bias {
            true => Operand::Bias.shape(problem).elements(),
            false => 0,
        };
        Self {
            query: values(queries, dim, round),
            key: values(keys, dim, round),
            value: values(keys, dim_v, round),
            additional_key: values(additional, dim, round),
            additional_value: values(additional, dim_v, round),
            dout: values(queries, dim_v, round),
            dlse: values(queries, 1, |x| f64::from(x as f32)),
            bias: values(bias, 1, round),
        }
    }
}

/// What the passes write.
pub struct Results {
    pub out: Vec<f64>,
    pub lse: Vec<f64>,
    pub dq: Vec<f64>,
    pub dk: Vec<f64>,
    pub dv: Vec<f64>,
    pub additional_dk: Vec<f64>,
    pub additional_dv: Vec<f64>,
    pub dbias: Vec<f64>,
}

impl Results {
    pub fn named(&self) -> [(&'static str, &[f64]); 8] {
        [
            ("out", &self.out),
            ("lse", &self.lse),
            ("dq", &self.dq),
            ("dk", &self.dk),
            ("dv", &self.dv),
            ("additional dk", &self.additional_dk),
            ("additional dv", &self.additional_dv),
            ("dbias", &self.dbias),
        ]
    }
}

/// Largest absolute difference over the largest absolute value of `expected`.
///
/// A sum may cancel to nothing (dk of a key that is alone in its window): where all of `expected`
/// is small, the difference is measured against 1.
pub fn error(actual: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(actual.len(), expected.len());
    let mut largest = 1e-30f64;
    let mut difference = 0.0f64;
    for (a, e) in actual.iter().zip(expected) {
        // The logsumexp of a row that sees nothing.
        if *e == f64::NEG_INFINITY && a == e {
            continue;
        }
        assert!(a.is_finite(), "{a} where {e} is expected");
        largest = largest.max(e.abs());
        difference = difference.max((a - e).abs());
    }
    if largest < 1e-9 { difference } else { difference / largest }
}
