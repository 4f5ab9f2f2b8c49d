//! One training step of an image model, forward and backward, and the share that attention has in it.
//!
//! ```sh
//! cargo bench --bench nat_step                     # a tiny model, on the CPU
//! cargo bench --bench nat_step --features cuda -- --device cuda --dtype bf16
//! ```
//!
//! Gradients of norms and biases are sums over all tokens, for which Burn is slow on a GPU without its feature `autotune`
//! (`--features cuda,autotune`); with it the first steps tune.
//!
//! The step is that of a caller: the loss of a batch of random pictures and the gradients of all
//! weights, without the optimizer. Attention is timed on its own, both passes, at the shapes of each
//! stage; its share is that time, for all blocks, in the step's.
#![recursion_limit = "256"]

#[path = "../catalogue/device.rs"]
mod device;
mod model;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::tensor::{DType, Device, DeviceConfig, Distribution, FloatDType, Int, Tensor};
use burn_natten::plan::{Sizes, Windows};
use burn_natten::profile::{Mode, Repeats, Workload, time_backward, time_forward};
use burn_natten::{AttentionError, Context, Strategy};
use clap::{Parser, ValueEnum};

use crate::model::{NatConfig, STAGES};

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Size {
    /// NAT-Mini: 224 x 224 pixels, 20 million parameters.
    Mini,
    /// For a CPU.
    Tiny,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Precision {
    F32,
    F16,
    Bf16,
}

/// Times a training step of NAT-Mini.
#[derive(Debug, Parser)]
#[command(name = "nat_step")]
struct Args {
    /// flex, cpu, cuda, rocm, wgpu, vulkan or metal, as far as built; cuda:1 is the second GPU
    #[arg(long, default_value = "flex")]
    device: String,
    /// Type of weights and activations
    #[arg(long, value_enum, default_value = "f32")]
    dtype: Precision,
    /// The model [default: tiny on flex and cpu, mini elsewhere]
    #[arg(long, value_enum)]
    model: Option<Size>,
    /// Pictures of a step [default: 2 for tiny, 64 for mini]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    batch: Option<u32>,
    /// Timed steps, of which the median counts
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// What cargo bench passes.
    #[arg(long, hide = true)]
    bench: bool,
}

/// Steps before the first that is timed: kernels are compiled and tuned there.
const WARM_UP: u32 = 5;

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> Result<(), String> {
    let is_cpu = matches!(args.device.as_str(), "flex" | "cpu");
    let size = args.model.unwrap_or(if is_cpu { Size::Tiny } else { Size::Mini });
    let (config, batch) = match size {
        Size::Mini => (NatConfig::mini(), 64),
        Size::Tiny => (NatConfig::tiny(), 2),
    };
    let batch = args.batch.map_or(batch, |batch| batch as usize);
    let dtype = match args.dtype {
        Precision::F32 => FloatDType::F32,
        Precision::F16 => FloatDType::F16,
        Precision::Bf16 => FloatDType::BF16,
    };
    let mut device = device::open(&args.device)?;
    if !device.supports_dtype(dtype) {
        return Err(format!("--dtype: is {dtype:?}, which {} cannot compute in", args.device));
    }
    // Has to come before the first tensor, which locks the defaults.
    let defaults = DeviceConfig::default().float_dtype(dtype);
    device.configure(defaults).map_err(|error| format!("--device {}: {error}", args.device))?;

    let (step, parameters) = time_step(&config, batch, args.steps, &device)?;
    println!(
        "{size:?}, {:.1} M parameters, {batch} pictures of {side} x {side}, {dtype:?} on {}",
        parameters as f64 * 1e-6,
        args.device,
        side = config.side,
    );
    println!("step, forward and backward  {}", milliseconds(step));
    let mut attention = Duration::ZERO;
    for stage in 0..STAGES {
        let (forward, backward) = time_attention(&config, stage, batch, dtype.into(), &device)
            .map_err(|error| error.to_string())?;
        let blocks = config.depths[stage] as u32;
        let (side, window) = (config.stage_side(stage), config.window(stage));
        println!(
            "attention, {side} x {side} tokens, window {window}, {} heads of {}  \
             {} forward, {} backward, {blocks} times",
            config.heads[stage],
            config.dims[stage] / config.heads[stage],
            milliseconds(forward),
            milliseconds(backward),
        );
        attention += blocks * (forward + backward);
    }
    let share = 100.0 * attention.as_secs_f64() / step.as_secs_f64();
    println!("attention in a step  {}, {share:.0} %", milliseconds(attention));
    Ok(())
}

fn milliseconds(time: Duration) -> String {
    format!("{:.3} ms", time.as_secs_f64() * 1e3)
}

/// The median step, and the number of parameters.
fn time_step(
    config: &NatConfig,
    batch: usize,
    steps: u32,
    device: &Device,
) -> Result<(Duration, usize), String> {
    let device = device.clone().autodiff();
    device.seed(1);
    let model = config.init(&device);
    let shape = [batch, 3, config.side, config.side];
    let images = Tensor::<4>::random(shape, Distribution::Normal(0.0, 1.0), &device);
    let classes = Tensor::<1, Int>::zeros([batch], &device);
    let sync = || device.sync().map_err(|error| error.to_string());
    let mut times = Vec::new();
    for step in 0..WARM_UP + steps {
        sync()?;
        let start = Instant::now();
        let loss = model.loss(images.clone(), classes.clone());
        let gradients = loss.backward();
        sync()?;
        if step >= WARM_UP {
            times.push(start.elapsed());
        }
        drop(gradients);
        let loss = loss.into_scalar::<f32>();
        if !loss.is_finite() {
            return Err(format!("the loss is {loss}"));
        }
    }
    times.sort_unstable();
    Ok((times[times.len() / 2], model.num_params()))
}

/// Forward and backward pass of one block's attention.
fn time_attention(
    config: &NatConfig,
    stage: usize,
    batch: usize,
    dtype: DType,
    device: &Device,
) -> Result<(Duration, Duration), AttentionError> {
    let (heads, dim) = (config.heads[stage], config.dims[stage]);
    let sizes = Sizes { batch, heads, heads_kv: heads, ..Sizes::new(dim / heads) };
    let windows = Windows {
        kernel_size: &[config.window(stage); 2],
        stride: &[1; 2],
        dilation: &[1; 2],
        is_causal: &[false; 2],
    };
    let problem = sizes.neighborhood(&[config.stage_side(stage); 2], windows, None)?;
    let (strategy, context) = (Strategy::Auto, Context::current());
    let workload = Workload { problem, dtype, strategy, context };
    let repeats = Repeats { limit: Duration::from_secs(2), ..Repeats::new(Mode::Sustained) };
    let forward = time_forward(&workload, device, &repeats)?.median();
    let backward = time_backward(&workload, device, &repeats)?.median();
    Ok((forward, backward))
}
