//! Both attentions side by side, as sequences grow: loss, time and memory.

use std::fs;
use std::path::Path;
use std::time::Instant;

use burn::data::dataloader::DataLoader;
use burn::module::Module;
use burn::tensor::Device;
use burn::train::{InferenceStep, TrainStep};
use serde::Serialize;

use crate::Failure;
use crate::cli::{Compare, Kind};
use crate::common::training::schedule;
use crate::loader::{Batch, Loader};
use crate::memory::Gauge;
use crate::model::LanguageModel;
use crate::score::Score;
use crate::text::Texts;
use crate::{plot, train};

/// Steps that no time is taken of: kernels are compiled in them, and memory is first taken.
const WARM_UP: usize = 1;

/// What a training gave.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Bytes of a sequence.
    pub length: usize,
    /// `sparse` or `dense`.
    pub attention: &'static str,
    /// Bits a byte of the text for validation.
    pub bits: f64,
    /// Of a step, in milliseconds.
    pub step_ms: f64,
    /// The most memory in use at a time, in MiB.
    pub memory_mib: f64,
}

/// Trains each, and writes numbers and a plot.
pub fn run(args: &Compare) -> Result<(), Failure> {
    if let Some(length) = args.length.iter().find(|length| **length > args.bytes) {
        let text = format!("--length: is {length}, must be at most {} (--bytes)", args.bytes);
        return Err(Failure::Usage(text));
    }
    if cfg!(debug_assertions) {
        eprintln!("warning: not built with --release, so that times say little");
    }
    let (device, is_half) = train::open(&args.training)?;
    // What does not fit is said before the first training.
    let mut trainings = Vec::new();
    for length in &args.length {
        let texts = Texts::find(&args.source, *length, args.training.seed)?;
        for kind in [Kind::Sparse, Kind::Dense] {
            let mut config = args.model.config(kind, *length)?;
            config.is_half = is_half;
            trainings.push((*length, kind, config, texts.clone()));
        }
    }
    fs::create_dir_all(&args.output)
        .map_err(|error| Failure::cannot_write(&args.output, &error))?;
    println!("length  attention  bits a byte  ms a step  bytes a second  memory in MiB");
    let mut rows = Vec::new();
    for (length, kind, config, texts) in trainings {
        let row = train(args, length, kind, &texts, &device, || {
            device.seed(args.training.seed);
            config.init(&device.clone().autodiff())
        })?;
        let speed = 1e3 * (args.bytes / length * length) as f64 / row.step_ms;
        println!(
            "{length:6}  {:9}  {:11.3}  {:9.1}  {speed:14.0}  {:13.1}",
            row.attention, row.bits, row.step_ms, row.memory_mib
        );
        rows.push(row);
    }
    let (numbers, picture) = (args.output.join("compare.csv"), args.output.join("compare.png"));
    write(&rows, &numbers)?;
    let image = plot::draw(&rows).into_image();
    image.save(&picture).map_err(|error| Failure::cannot_write(&picture, &error))?;
    println!("\nnumbers  {}\nplot     {}", numbers.display(), picture.display());
    Ok(())
}

/// Trains a model, and measures.
fn train(
    args: &Compare,
    length: usize,
    kind: Kind,
    texts: &Texts,
    device: &Device,
    model: impl FnOnce() -> LanguageModel,
) -> Result<Row, Failure> {
    let batch_size = args.bytes / length;
    let seed = Some(args.training.seed);
    let train = Loader::new(&texts.train, batch_size, seed, 0, device);
    let mut rates = schedule(args.training.learning_rate, args.steps)?;
    device.memory_cleanup();
    sync(device)?;
    let gauge = Gauge::new();
    let (mut model, mut optimizer) = (model(), train::optimizer()?);
    let mut steps = 0;
    let mut started = Instant::now();
    while steps < args.steps {
        for batch in train.iter().take(args.steps - steps) {
            let output = TrainStep::step(&model, read(batch)?);
            model = model.optimize(&mut optimizer, rates.step(), output.grads);
            steps += 1;
            if steps == WARM_UP {
                sync(device)?;
                started = Instant::now();
            }
        }
    }
    sync(device)?;
    let seconds = started.elapsed().as_secs_f64();
    let bytes = match device.memory_pool_usage() {
        Some(usage) => usage.bytes_reserved,
        None => gauge.bytes(),
    };
    let bits = validate(&model.valid(), &Loader::new(&texts.valid, batch_size, None, 0, device))?;
    Ok(Row {
        length,
        attention: kind.name(),
        bits,
        step_ms: 1e3 * seconds / (steps - WARM_UP).max(1) as f64,
        memory_mib: bytes as f64 / f64::from(1 << 20),
    })
}

/// Bits a byte.
pub fn validate(model: &LanguageModel, loader: &Loader) -> Result<f64, Failure> {
    let (mut bits, mut bytes) = (0.0, 0);
    for batch in loader.iter() {
        let score: Score = InferenceStep::step(model, read(batch)?);
        let mean = score.bits.try_into_scalar::<f64>();
        let mean =
            mean.map_err(|error| Failure::Run(format!("the loss cannot be read: {error:?}")))?;
        bits += mean * score.bytes as f64;
        bytes += score.bytes;
    }
    Ok(bits / bytes.max(1) as f64)
}

fn read<E: std::fmt::Display>(batch: Result<Batch, E>) -> Result<Batch, Failure> {
    batch.map_err(|error| Failure::Run(error.to_string()))
}

fn sync(device: &Device) -> Result<(), Failure> {
    device.sync().map_err(|error| Failure::Run(error.to_string()))
}

fn write(rows: &[Row], path: &Path) -> Result<(), Failure> {
    let fail = |error: csv::Error| Failure::cannot_write(path, &error);
    let mut file = csv::Writer::from_path(path).map_err(fail)?;
    rows.iter().try_for_each(|row| file.serialize(row)).map_err(fail)?;
    file.flush().map_err(|error| Failure::cannot_write(path, &error))
}
