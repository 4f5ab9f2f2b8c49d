//! What a run finds: costs of a plan, measurements and trials, however they are printed.

use std::time::Duration;

use burn_natten::Tier;
use burn_natten::plan::Candidate;
use burn_natten::profile::{Pass, Peaks, Timing};
use burn_natten_kernels::cost::{Cost, DeviceModel};

use crate::request::Request;

/// The cost of a pass that computes the windows and nothing else, on matrix units.
pub fn ideal(request: &Request, device: &DeviceModel, pass: Pass) -> Cost {
    let (problem, size) = (&request.problem, request.dtype.dtype().size());
    match pass {
        Pass::Forward => Cost::forward(problem, None, size, device),
        Pass::Backward => Cost::backward(problem, None, size, device),
    }
}

/// What a pass of a candidate is expected to cost.
pub fn cost(pass: Pass, candidate: &Candidate) -> Cost {
    match pass {
        Pass::Forward => candidate.forward,
        Pass::Backward => candidate.backward,
    }
}

/// How a pass of a candidate works.
pub fn schedule(pass: Pass, candidate: &Candidate) -> String {
    let kernels: Vec<_> = candidate
        .backward_kernels
        .iter()
        .map(|kernel| format!("{} by {}", kernel.writes, kernel.schedule))
        .collect();
    match pass {
        Pass::Backward if !kernels.is_empty() => kernels.join("; "),
        Pass::Forward | Pass::Backward => candidate.schedule.clone(),
    }
}

/// The device as it was found.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Its name in tables.
    pub name: String,
    pub peaks: Peaks,
}

/// What was measured of a pass.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// The tier whose kernels ran.
    pub tier: Tier,
    /// How they work.
    pub schedule: String,
    pub pass: Pass,
    pub timing: Timing,
    /// Operations per second of those that are useful.
    pub flops: f64,
    /// Bytes per second of the tensors, each met once.
    pub bytes: f64,
    /// Bytes that inputs, outputs and workspace took.
    pub memory: u64,
}

impl Measurement {
    /// Tier and schedule.
    pub fn kernel(&self) -> String {
        format!("{:?}, {}", self.tier, self.schedule)
    }

    /// The greater share of a measured peak, and which peak that is.
    pub fn share(&self, peaks: &Peaks) -> Option<(f64, &'static str)> {
        let shares = [(self.flops / peaks.matmul, "matmul"), (self.bytes / peaks.copy, "copy")];
        shares
            .into_iter()
            .filter(|(share, _)| share.is_finite())
            .max_by(|(one, _), (other, _)| one.total_cmp(other))
    }
}

/// A candidate and what came of it.
pub struct Trial {
    pub candidate: Candidate,
    /// What to pass to get it.
    pub flags: String,
    /// One measurement a pass, or why there is none.
    pub result: Result<Vec<Measurement>, String>,
}

impl Trial {
    /// The medians of all passes together.
    pub fn total(&self) -> Option<Duration> {
        let measurements = self.result.as_ref().ok()?;
        Some(measurements.iter().map(|measurement| measurement.timing.median()).sum())
    }
}
