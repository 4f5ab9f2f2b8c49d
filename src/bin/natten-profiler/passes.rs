//! Times of whole calls on a device: the forward pass, and both passes by autodiff.

use std::time::Duration;

use burn::tensor::{Device, Distribution, Shape, Tensor};
use burn_natten::AttentionError;
use burn_natten::profile::{Repeats, Timing, time};
use comfy_table::Table;
use serde_json::{Value, json};

use crate::args::Args;
use crate::device;
use crate::failure::Failure;
use crate::memory::Gauge;
use crate::print::json::text;
use crate::print::table;
use crate::request::{sizes, usage};
use crate::units::{duration, si};

/// Seed of inputs.
pub const SEED: u64 = 42;
/// Rest before a sample where many problems are timed: batches of some milliseconds do not warm a device up.
const SHORT_REST: Duration = Duration::from_millis(100);

/// What was measured.
pub struct Found {
    /// The device.
    pub name: String,
    pub passes: Vec<Measurement>,
}

/// Some passes together.
pub struct Measurement {
    pub name: String,
    pub timing: Timing,
    /// Operations that are useful, in all steps.
    pub flops: u64,
    /// Bytes that a call takes at most, with its inputs and outputs.
    pub memory: u64,
}

/// What is called.
pub trait Call {
    /// What it is called with.
    type Inputs;

    /// Random tensors, which are tracked on a device that tracks.
    fn inputs(&self, device: &Device) -> Self::Inputs;

    /// One call: outputs, or gradients on a device that tracks.
    fn call(&self, inputs: &Self::Inputs) -> Result<Vec<Tensor<1>>, AttentionError>;
}

/// Times the forward pass, and both passes where the flags ask for the backward pass. `flops` are those of each.
pub fn run(
    call: &impl Call,
    args: &Args,
    device: &Device,
    flops: [u64; 2],
) -> Result<Found, Failure> {
    if cfg!(debug_assertions) {
        eprintln!("warning: not built with --release, so that times say little");
    }
    let passes = times(call, args, device, flops)?;
    Ok(Found { name: device::describe(args.device, device), passes })
}

/// The passes of [`run`].
pub fn times(
    call: &impl Call,
    args: &Args,
    device: &Device,
    [forward, backward]: [u64; 2],
) -> Result<Vec<Measurement>, Failure> {
    let mut repeats = repeats(args);
    if args.uniform {
        repeats.idle = SHORT_REST;
    }
    let mut passes = vec![measure(call, device, ("forward", forward), &repeats)?];
    if args.backprop {
        let (device, both) = (tracking(device)?, forward + backward);
        passes.push(measure(call, &device, ("forward and backward", both), &repeats)?);
    }
    Ok(passes)
}

/// The forward pass of what has no backward pass.
pub fn forward(
    call: &impl Call,
    args: &Args,
    device: &Device,
    flops: u64,
) -> Result<Measurement, Failure> {
    measure(call, device, ("forward", flops), &repeats(args))
}

/// How often to measure, by the flags.
pub fn repeats(args: &Args) -> Repeats {
    Repeats { warmup: args.warmup_steps, samples: args.repeats, ..Repeats::default() }
}

/// The device with gradients.
pub fn tracking(device: &Device) -> Result<Device, Failure> {
    #[cfg(feature = "autodiff")]
    return Ok(device.clone().autodiff());
    #[cfg(not(feature = "autodiff"))]
    {
        let _ = device;
        let text = "--backprop: is not in this build, add --features autodiff to cargo's flags";
        Err(Failure::Usage(text.to_string()))
    }
}

/// An error of the library, which is the device's or that of the flags.
pub fn failed(error: AttentionError) -> Failure {
    match error {
        AttentionError::Execution { .. } => Failure::Run(error.to_string()),
        error => usage(error),
    }
}

fn measure(
    call: &impl Call,
    device: &Device,
    (name, flops): (&'static str, u64),
    repeats: &Repeats,
) -> Result<Measurement, Failure> {
    let sync = || device.sync().map_err(|error| Failure::Run(error.to_string()));
    device.memory_cleanup();
    sync()?;
    let gauge = Gauge::new();
    let inputs = call.inputs(device);
    let results = call.call(&inputs).map_err(failed)?;
    sync()?;
    let memory = match device.memory_pool_usage() {
        Some(usage) => usage.bytes_reserved,
        None => gauge.bytes(),
    };
    drop(results);
    let timing = time(device, repeats, || call.call(&inputs)).map_err(failed)?;
    Ok(Measurement { name: name.to_string(), timing, flops, memory })
}

/// Query, key and value, by chance, of so many samples and tokens of each; tracked on a device that tracks.
pub fn tensors(args: &Args, [batch, tokens]: [usize; 2], device: &Device) -> [Tensor<4>; 3] {
    let sizes = sizes(args);
    device.seed(SEED);
    [
        (sizes.heads, sizes.head_dim),
        (sizes.heads_kv, sizes.head_dim),
        (sizes.heads_kv, sizes.head_dim_v),
    ]
    .map(|(heads, dim)| random(args, [batch, tokens, heads, dim], device))
}

/// One of them.
pub fn random<const D: usize>(args: &Args, shape: impl Into<Shape>, device: &Device) -> Tensor<D> {
    let normal = Distribution::Normal(0.0, 1.0);
    let tensor = Tensor::random(shape.into(), normal, (device, args.dtype.dtype()));
    if device.is_autodiff() { tensor.require_grad() } else { tensor }
}

/// The gradients of a sum of all outputs, on a device that tracks; or else the outputs. Burn begins with ones where it is handed
/// more than one number, and so nothing is summed, which would take longer than attention does.
pub fn results(out: Tensor<1>, leaves: [&Tensor<4>; 3]) -> Vec<Tensor<1>> {
    #[cfg(feature = "autodiff")]
    if leaves[0].is_require_grad() {
        let gradients = out.backward();
        let of = |leaf: &Tensor<4>| leaf.grad(&gradients).map(|grad| grad.flatten(0, 3));
        return leaves.into_iter().filter_map(of).collect();
    }
    let _ = leaves;
    vec![out]
}

impl Found {
    /// As a table, or as JSON.
    pub fn print(&self, problem: String, args: &Args) -> String {
        if args.json {
            return text(self.json(problem));
        }
        let mut rows = table::new(&HEADER, 1);
        for measurement in &self.passes {
            rows.add_row(measurement.cells());
        }
        self.with_facts(problem, &rows)
    }

    /// A table below what it was measured of, and on.
    pub fn with_facts(&self, problem: String, rows: &Table) -> String {
        let facts = [("problem", problem), ("device", self.name.clone())];
        format!("{}\n{rows}", table::facts(&facts))
    }

    /// For machines.
    pub fn json(&self, problem: String) -> Value {
        let of = |measurement: &Measurement| -> Value {
            let median = measurement.timing.median().as_secs_f64();
            let samples = measurement.timing.samples().iter().map(|sample| sample.as_secs_f64());
            json!({
                "pass": measurement.name,
                "median": median,
                "samples": samples.collect::<Vec<_>>(),
                "flops": measurement.flops as f64 / median,
                "memory": measurement.memory,
            })
        };
        json!({
            "problem": problem,
            "device": self.name,
            "measurements": self.passes.iter().map(of).collect::<Vec<_>>(),
        })
    }
}

/// Of the table's columns.
pub const HEADER: [&str; 6] = ["pass", "calls", "median", "quartiles", "FLOP/s", "memory"];

impl Measurement {
    /// The same, of a step of several.
    pub fn of(self, step: &str) -> Self {
        Self { name: format!("{step}, {}", self.name), ..self }
    }

    /// A row of the table.
    pub fn cells(&self) -> Vec<String> {
        let timing = &self.timing;
        let (low, high) = timing.quartiles();
        vec![
            self.name.clone(),
            timing.calls().to_string(),
            duration(timing.median()),
            format!("{} to {}", duration(low), duration(high)),
            si(self.flops as f64 / timing.median().as_secs_f64(), ""),
            si(self.memory as f64, "B"),
        ]
    }
}
