//! Measuring on a device, and the plain run, which measures what the strategy chooses.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use burn::tensor::Device;
use burn_natten::plan::Candidate;
use burn_natten::profile::{Pass, Peaks, Repeats, Timing, Workload, measure_peaks};
use burn_natten::{AttentionError, Tier};
use burn_natten_kernels::cost::{Cost, backward_bytes, forward_bytes};
use indicatif::{ProgressBar, ProgressStyle};

use crate::args::Args;
use crate::dry_run::target_of;
use crate::memory::Gauge;
use crate::request::Request;
use crate::units::{duration, si};
use crate::{Failure, device, json, table};

/// What a pass of a candidate is expected to cost.
pub fn cost(pass: Pass, candidate: &Candidate) -> Cost {
    match pass {
        Pass::Forward => candidate.forward,
        Pass::Backward => candidate.backward,
    }
}

/// How a pass of a candidate works.
fn schedule(pass: Pass, candidate: &Candidate) -> String {
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
    fn kernel(&self) -> String {
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

/// Times one pass of a candidate. What panics, as Burn does where memory runs out, is an error: other
/// candidates may do better.
pub fn measure(
    request: &Request,
    candidate: &Candidate,
    pass: Pass,
    device: &Device,
    repeats: &Repeats,
) -> Result<Measurement, AttentionError> {
    guarded(|| time(request, candidate, pass, device, repeats))
}

fn guarded<T>(run: impl FnOnce() -> Result<T, AttentionError>) -> Result<T, AttentionError> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("a panic");
        let reason = text.lines().collect::<Vec<_>>().join(" ");
        Err(AttentionError::Execution { reason })
    })
}

fn time(
    request: &Request,
    candidate: &Candidate,
    pass: Pass,
    device: &Device,
    repeats: &Repeats,
) -> Result<Measurement, AttentionError> {
    let workload = request.workload(candidate);
    let memory = memory(&workload, pass, device)?;
    let tier = workload.tier(device)?;
    let timing = pass.time(&workload, device, repeats)?;
    let (cost, seconds) = (cost(pass, candidate), timing.median().as_secs_f64());
    let size = request.dtype.dtype().size();
    // Those of the tensors alone, whatever the candidate moves besides.
    let bytes = match pass {
        Pass::Forward => forward_bytes(&request.problem, size),
        Pass::Backward => backward_bytes(&request.problem, size),
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

/// How often to measure, by the flags.
pub fn repeats(args: &Args) -> Repeats {
    Repeats { warmup: args.warmup_steps, samples: args.repeats, ..Repeats::default() }
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

/// Opens the device of the flags to time on it.
pub fn open(args: &Args) -> Result<Device, Failure> {
    if cfg!(debug_assertions) {
        eprintln!("warning: not built with --release, so that times and peaks say little");
    }
    device::open(args.device, args.dtype)
}

/// Measures the candidate that the strategy chooses.
pub fn run(request: &Request, args: &Args) -> Result<String, Failure> {
    let device = open(args)?;
    let candidate = request.explain(args, target_of(args, &device))?.chosen;
    let passes = args.passes();
    let bar = progress(passes.len() as u64 + 1);
    bar.set_message("peaks of the device");
    let peaks = measure_peaks(&device, request.dtype.dtype());
    let mut measurements = Vec::new();
    for pass in passes {
        bar.inc(1);
        bar.set_message(pass.name());
        let measured = measure(request, &candidate, *pass, &device, &repeats(args));
        measurements.push(measured.map_err(|error| Failure::Run(error.to_string()))?);
    }
    bar.finish_and_clear();
    let name = device::describe(args.device, &device);
    if args.json {
        return Ok(json::text(json::measurements(request, &name, &peaks, &measurements)));
    }
    let facts = [
        ("problem", request.describe()),
        ("device", name),
        ("peaks", describe_peaks(request, &peaks)),
    ];
    Ok(format!("{}\n{}", table::facts(&facts), measured(&measurements, &peaks)))
}

/// The peaks on one line.
pub fn describe_peaks(request: &Request, peaks: &Peaks) -> String {
    format!(
        "measured now: matmul in {} {}, copy {}",
        request.dtype.name(),
        si(peaks.matmul, "FLOP/s"),
        si(peaks.copy, "B/s"),
    )
}

fn measured(measurements: &[Measurement], peaks: &Peaks) -> comfy_table::Table {
    let header = [
        "kernel",
        "pass",
        "calls",
        "median",
        "quartiles",
        "FLOP/s",
        "B/s",
        "share of peak",
        "memory",
    ];
    let mut table = table::new(&header, 2);
    for measurement in measurements {
        let (low, high) = measurement.timing.quartiles();
        table.add_row([
            measurement.kernel(),
            measurement.pass.name().to_string(),
            measurement.timing.calls().to_string(),
            duration(measurement.timing.median()),
            format!("{} to {}", duration(low), duration(high)),
            si(measurement.flops, ""),
            si(measurement.bytes, ""),
            share(measurement, peaks),
            si(measurement.memory as f64, "B"),
        ]);
    }
    table
}

/// `41 % of matmul`.
pub fn share(measurement: &Measurement, peaks: &Peaks) -> String {
    match measurement.share(peaks) {
        Some((share, peak)) => format!("{:.0} % of {peak}", 100.0 * share),
        None => "unknown".to_string(),
    }
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
    fn flags_say_how_often_to_measure() {
        let flags = ["natten-profiler", "-i", "8", "--warmup-steps", "5", "--repeats", "9"];
        let Ok(Parsed::Run(args)) = parse(flags) else { panic!("the flags are refused") };
        let repeats = repeats(&args);
        assert_eq!((repeats.warmup, repeats.samples), (5, 9));
        let Ok(Parsed::Run(args)) = parse(["natten-profiler"]) else { panic!("refused") };
        assert_eq!(super::repeats(&args), Repeats::default());
    }
}
