//! Training and inference of an image model, as a user times them, and what a training step is made of.
//!
//! ```sh
//! cargo bench --bench nat_step --features models,optim      # a tiny model, on the CPU
//! cargo bench --bench nat_step --features models,optim,cuda -- --device cuda --dtype bf16
//! cargo bench --bench nat_step --features models,optim,cuda -- --device cuda --dtype bf16 --model dinat-tiny --batch 256
//! ```
//!
//! A step is the loss of a batch of random pictures and the gradients of all weights, once without and once with AdamW. The very
//! first one compiles kernels and, with Burn's feature `autotune`, measures which of Burn's are the fastest; it is timed on its own.
//! After the times, the same steps are watched for the device's memory.
//! Then the model's parts are timed one by one, each forward and backward, at the shapes that they have in the step.
#![recursion_limit = "256"]

#[path = "../catalogue/device.rs"]
mod device;
mod memory;
mod parts;
mod step;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::tensor::{Device, DeviceConfig, FloatDType};
use burn_natten::models::nat::NatConfig;
use clap::{Parser, ValueEnum};

/// The system's own may be what a step waits for: each launch is made by one thread and freed by another.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Size {
    /// NAT-Mini, 20 million parameters.
    NatMini,
    /// DiNAT-Tiny, 28 million parameters.
    DinatTiny,
    /// For a CPU.
    Tiny,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Precision {
    F32,
    F16,
    Bf16,
}

/// Times training and inference of an image model.
#[derive(Debug, Parser)]
#[command(name = "nat_step")]
struct Args {
    /// flex, cpu, cuda, rocm, wgpu, vulkan or metal, as far as built; cuda:1 is the second GPU
    #[arg(long, default_value = "flex")]
    device: String,
    /// Type of weights and activations
    #[arg(long, value_enum, default_value = "f32")]
    dtype: Precision,
    /// The model [default: tiny on flex and cpu, nat-mini elsewhere]
    #[arg(long, value_enum)]
    model: Option<Size>,
    /// Pictures of a step [default: 2 for tiny, 64 for others]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    batch: Option<u32>,
    /// Timed steps, of which the median counts
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    steps: u32,
    /// What cargo bench passes.
    #[arg(long, hide = true)]
    bench: bool,
}

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
    let size = args.model.unwrap_or(if is_cpu { Size::Tiny } else { Size::NatMini });
    let (config, side, batch) = match size {
        Size::NatMini => (NatConfig::nat_mini(), 224, 64),
        Size::DinatTiny => (NatConfig::dinat_tiny(), 224, 64),
        Size::Tiny => (NatConfig::new(16, vec![1, 2], vec![1, 2]).with_num_classes(10), 64, 2),
    };
    let batch = args.batch.map_or(batch, |batch| batch as usize);
    let device = open(args)?;
    let training = device.clone().autodiff();
    training.seed(1);
    let model = config.init(&training);
    println!(
        "{size:?}, {:.1} M parameters, {batch} pictures of {side} x {side}, {:?} on {}",
        model.num_params() as f64 * 1e-6,
        args.dtype,
        args.device,
    );

    let shape = [batch, 3, side, side];
    let show = |name: &str, times: &step::Times| {
        let (rate, text) = (batch as f64 / times.median.as_secs_f64(), milliseconds(times.median));
        println!("{name:<28}{text:>12}  {rate:8.0} pictures/s, the first {}", seconds(times.first));
        if let Some(memory::Memory { in_use, reserved }) = times.memory {
            let [in_use, reserved] = [in_use, reserved].map(gibibytes);
            println!("{:<28}{in_use:>12}  at most in use, {reserved} reserved", "");
        }
    };
    let step = step::gradients(&model, shape, args.steps, &training)?;
    show("forward and backward", &step);
    show("and AdamW", &step::update(model.clone(), shape, args.steps, &training)?);
    let valid = model.clone().valid();
    show("inference", &step::inference(&valid, shape, args.steps, &device)?);
    let from_graph = |name: &str, times: Option<step::Times>| match times {
        Some(times) => show(name, &times),
        None => println!("{name:<28}{:>12}", "no graph"),
    };
    let times = step::replayed_inference(&valid, shape, args.steps, &device)?;
    from_graph("inference from a graph", times);
    let times = step::replayed_gradients(&model, shape, args.steps, &device)?;
    from_graph("forward, backward from one", times);
    if let Some(used) = memory::of_driver(&args.device) {
        println!("{:<28}{:>12}  of the GPU given away by the driver", "", gibibytes(used << 20));
    }

    println!("\nof forward and backward:");
    let mut known = Duration::ZERO;
    for part in parts::of(&model, shape, &training) {
        let time = parts::time(&part, &training)?;
        let (all, each) = (time * part.times, milliseconds(time));
        let share = 100.0 * all.as_secs_f64() / step.median.as_secs_f64();
        let (name, times) = (&part.name, part.times);
        println!("{name:<44}{:>12}  {share:3.0} %, {times} x {each}", milliseconds(all));
        known += all;
    }
    println!("{:<44}{:>12}", "all of these", milliseconds(known));
    Ok(())
}

/// The device, with the type of weights and activations as its default.
fn open(args: &Args) -> Result<Device, String> {
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
    Ok(device)
}

/// How long `work` takes, to the end of what it queues.
fn timed<R>(device: &Device, work: impl FnOnce() -> R) -> Result<(R, Duration), String> {
    let sync = || device.sync().map_err(|error| error.to_string());
    sync()?;
    let start = Instant::now();
    let result = work();
    sync()?;
    Ok((result, start.elapsed()))
}

fn milliseconds(time: Duration) -> String {
    format!("{:.3} ms", time.as_secs_f64() * 1e3)
}

fn gibibytes(bytes: u64) -> String {
    format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30))
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}
