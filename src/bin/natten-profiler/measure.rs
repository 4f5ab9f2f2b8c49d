//! Measuring on a device.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use burn::tensor::Device;
use burn_natten::AttentionError;
use burn_natten::plan::{Candidate, Target};
use burn_natten::profile::{Pass, Repeats, Workload, measure_peaks};
use burn_natten_kernels::cost::{backward_bytes, forward_bytes};
use indicatif::{ProgressBar, ProgressStyle};

use crate::args::Args;
use crate::device;
use crate::failure::Failure;
use crate::found::{Machine, Measurement, cost, schedule};
use crate::memory::Gauge;
use crate::passes::repeats;
use crate::request::Request;
use crate::values::DeviceName;

/// A problem and the device that it is measured on.
pub struct Bench<'a> {
    request: &'a Request,
    name: DeviceName,
    device: Device,
    repeats: Repeats,
}

impl<'a> Bench<'a> {
    /// Opens the device of the flags.
    pub fn open(request: &'a Request, args: &Args) -> Result<Self, Failure> {
        if cfg!(debug_assertions) {
            eprintln!("warning: not built with --release, so that times and peaks say little");
        }
        let device = device::open(args.device, args.dtype)?;
        Ok(Self { request, name: args.device, device, repeats: repeats(args) })
    }

    /// The same with a rest before each sample.
    pub fn with_rest(self, idle: Duration) -> Self {
        Self { repeats: Repeats { idle, ..self.repeats }, ..self }
    }

    /// What to plan for: the device, as far as its kind is known.
    pub fn target(&self) -> Target {
        Target::of(&self.device).unwrap_or_else(|| self.name.backend.target())
    }

    /// Names the device and measures its peaks.
    pub fn machine(&self) -> Machine {
        Machine {
            name: device::describe(self.name, &self.device),
            peaks: measure_peaks(&self.device, self.request.dtype.dtype()),
        }
    }

    /// Times one pass of a candidate. What panics, as Burn does where memory runs out, is an error:
    /// other candidates may do better.
    pub fn measure(
        &self,
        candidate: &Candidate,
        pass: Pass,
    ) -> Result<Measurement, AttentionError> {
        guarded(|| self.time(candidate, pass))
    }

    fn time(&self, candidate: &Candidate, pass: Pass) -> Result<Measurement, AttentionError> {
        let (problem, device) = (&self.request.problem, &self.device);
        let workload = self.request.workload(candidate);
        let memory = memory(&workload, pass, device)?;
        let tier = workload.tier(device)?;
        let timing = pass.time(&workload, device, &self.repeats)?;
        let (cost, seconds) = (cost(pass, candidate), timing.median().as_secs_f64());
        let size = self.request.dtype.dtype().size();
        // Those of the tensors alone, whatever the candidate moves besides.
        let bytes = match pass {
            Pass::Forward => forward_bytes(problem, size),
            Pass::Backward => backward_bytes(problem, size),
        };
        Ok(Measurement {
            tier,
            schedule: schedule(pass, candidate),
            pass,
            timing,
            flops: cost.flops as f64 / seconds,
            bytes: bytes as f64 / seconds,
            memory,
        })
    }
}

fn guarded<T>(run: impl FnOnce() -> Result<T, AttentionError>) -> Result<T, AttentionError> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
        let reason = text.lines().collect::<Vec<_>>().join(" ");
        Err(AttentionError::Execution { reason })
    })
}

/// Bytes that a single call takes at most, with its inputs and outputs. For a backward pass, that
/// includes what the forward pass before it leaves behind.
fn memory(workload: &Workload, pass: Pass, device: &Device) -> Result<u64, AttentionError> {
    let failed = |error: burn::backend::ExecutionError| AttentionError::Execution {
        reason: error.to_string(),
    };
    device.memory_cleanup();
    device.sync().map_err(failed)?;
    let gauge = Gauge::new();
    let inputs = workload.inputs(device, 0);
    let outputs = workload.forward(&inputs)?;
    let gradients = match pass {
        Pass::Forward => None,
        Pass::Backward => {
            let upstream = workload.upstream(device, 1);
            device.sync().map_err(failed)?;
            Some((workload.backward(&inputs, &outputs, &upstream)?, upstream))
        }
    };
    device.sync().map_err(failed)?;
    let bytes = match device.memory_pool_usage() {
        Some(usage) => usage.bytes_reserved,
        None => gauge.bytes(),
    };
    drop((inputs, outputs, gradients));
    Ok(bytes)
}

/// A line on standard error that says what is going on, if someone is watching.
pub fn progress(steps: u64) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {wide_msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Parsed, parse};

    #[test]
    fn a_panic_is_an_error_on_one_line() {
        let result: Result<(), _> = guarded(|| panic!("out of\nmemory at {}", 7));
        let text = result.expect_err("it panics").to_string();
        assert!(text.contains("out of memory at 7"), "{text}");
    }

    #[test]
    fn a_gauge_sees_what_was_freed_again() {
        let gauge = Gauge::new();
        drop(std::hint::black_box(vec![1u8; 50 << 20]));
        assert!(gauge.bytes() >= 50 << 20);
        assert!(Gauge::new().bytes() < 50 << 20);
    }

    #[test]
    fn flags_say_how_often_to_measure() {
        let flags = ["natten-profiler", "-i", "8", "--warmup-steps", "5", "--repeats", "9"];
        let Ok(Parsed::Run(args)) = parse(flags) else { panic!("the flags are refused") };
        let found = repeats(&args);
        assert_eq!((found.warmup, found.samples), (5, 9));
        let Ok(Parsed::Run(args)) = parse(["natten-profiler"]) else { panic!("refused") };
        assert_eq!(repeats(&args), Repeats::default());
    }
}
