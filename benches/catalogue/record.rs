//! A line of the results, which `benches/peers` writes too and `cargo xtask compare` reads.

use serde::Serialize;

/// One problem, pass, implementation and mode. A row without a time says why in `note`.
#[derive(Clone, Debug, Serialize)]
pub struct Record {
    pub problem: String,
    /// `forward` or `backward`
    pub pass: String,
    /// `burn-natten/<tier>`
    pub implementation: String,
    pub dtype: String,
    /// `burst` or `sustained`
    pub mode: String,
    /// Median, first and third quartile over samples, in milliseconds a call.
    pub ms: Option<f64>,
    pub q1_ms: Option<f64>,
    pub q3_ms: Option<f64>,
    /// Calls in all samples together.
    pub calls: Option<usize>,
    /// Of the operations that the windows need.
    pub tflops: Option<f64>,
    /// Of the bytes of all tensors, each once.
    pub gbps: Option<f64>,
    /// Greatest difference from float64 on the rows that were checked, over their greatest value.
    pub error: Option<f64>,
    pub note: String,
    pub device: String,
    pub driver: String,
    pub date: String,
    pub commit: String,
}
