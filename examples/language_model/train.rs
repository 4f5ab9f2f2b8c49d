//! Training, with Burn's own loop and checkpoints.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::config::Config;
use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, FloatDType};
use burn::train::{ExecutionStrategy, Learner, SupervisedTraining};
use serde_json::json;

use crate::Failure;
use crate::cli::{Train, Training};
use crate::common::flags::Precision;
use crate::common::progress::PlainProgress;
use crate::common::training::{Optimizer, newest_checkpoint, schedule};
use crate::common::{device, runs};
use crate::loader::Loader;
use crate::model::{LanguageModel, LanguageModelConfig};
use crate::score::BitsPerByte;
use crate::text::Texts;

const WEIGHT_DECAY: f64 = 0.1;
/// The largest norm of a weight's gradient that a step follows in full.
const LARGEST_GRADIENT: f32 = 1.0;

/// Trains, and tells where the model is.
pub fn run(args: &Train) -> Result<(), Failure> {
    let mut config = args.model.config(args.attention, args.length)?;
    let (device, is_half) = open(&args.training)?;
    config.is_half = is_half;
    let texts = Texts::find(&args.source, args.length, args.training.seed)?;
    let run = json!({
        "model": config,
        "text": args.source.text,
        "copies": args.source.copies,
        "bytes": texts.train.bytes.len() + texts.valid.bytes.len(),
        "length": args.length,
        "batch_size": args.batch_size,
        "epochs": args.epochs,
        "learning_rate": args.training.learning_rate,
        "seed": args.training.seed,
        "optimizer": Optimizer::default(),
    });
    let files = runs::folder(&args.output, &run, args.resume)?;
    device.seed(args.training.seed);
    let model = config.init(&device.clone().autodiff());
    let from = match args.resume {
        true => Some(newest_checkpoint(&files, &device, || model.clone())?),
        false => None,
    };
    let [train, valid] = [&texts.train, &texts.valid].map(|text| text.bytes.len());
    println!("{train} bytes to train, {valid} to validate; {} attention", args.attention.name());
    if let Some(epoch) = from {
        println!("continuing after epoch {epoch}");
    }
    let parameters = model.num_params();
    let (model, speed) = train_from(args, &texts, model, &device, &files, from)?;
    let weights = save(model, &config, &args.output)?;
    println!("training       {speed:.0} bytes a second");
    println!("model          {} ({parameters} parameters)", weights.display());
    Ok(())
}

/// The device of the flags, and whether activations are in bf16.
pub fn open(args: &Training) -> Result<(Device, bool), Failure> {
    let device = device::open(args.device, 0, Precision::F32)?;
    let is_half = match args.dtype {
        Precision::F32 => false,
        Precision::Bf16 if device.supports_dtype(FloatDType::BF16) => true,
        Precision::Bf16 => {
            let text =
                format!("--dtype: is bf16, which --device {:?} cannot compute in", args.device);
            return Err(Failure::Usage(text.to_lowercase()));
        }
        Precision::F16 => {
            // Its small gradients would be zero without a scale of the loss.
            return Err(Failure::Usage("--dtype: is f16, must be f32 or bf16 to train".into()));
        }
    };
    Ok((device, is_half))
}

/// What makes steps of gradients.
pub fn optimizer() -> Result<ModuleOptimizer, Failure> {
    Optimizer::default().adamw(WEIGHT_DECAY, Some(LARGEST_GRADIENT))
}

/// Trains up to the last epoch, from the checkpoint of epoch `from` if there is one. Returns bytes a second, too.
fn train_from(
    args: &Train,
    texts: &Texts,
    model: LanguageModel,
    device: &Device,
    files: &Path,
    from: Option<usize>,
) -> Result<(LanguageModel, f64), Failure> {
    let seed = Some(args.training.seed);
    let train = Loader::new(&texts.train, args.batch_size, seed, from.unwrap_or(0), device);
    let valid = Loader::new(&texts.valid, args.batch_size, None, 0, device);
    let (clock, steps) = (train.clock.clone(), train.steps() * args.epochs);
    let strategy = ExecutionStrategy::SingleDevice(device.clone().autodiff());
    let mut training = SupervisedTraining::new(files, Arc::new(train), Arc::new(valid))
        .metrics((BitsPerByte::default(),))
        .with_default_checkpointers()
        .with_training_strategy(strategy.into())
        .num_epochs(args.epochs);
    if let Some(epoch) = from {
        training = training.checkpoint(epoch);
    }
    // On a terminal Burn draws its own dashboard.
    if !std::io::stdout().is_terminal() {
        training = training.renderer(Box::new(PlainProgress::new()));
    }
    let rates = schedule(args.training.learning_rate, steps)?;
    let result = training.launch(Learner::new(model, optimizer()?, rates));
    // Closes the dashboard, so that what is printed next stays on the screen.
    drop(result.renderer);
    if let Some(error) = result.error {
        return Err(Failure::Run(format!("the training failed: {error}")));
    }
    if result.interrupted.is_some() {
        println!("stopped before the last epoch; --resume continues");
    }
    Ok((result.model, clock.speed()))
}

/// Writes what `write` takes.
fn save(
    model: LanguageModel,
    config: &LanguageModelConfig,
    folder: &Path,
) -> Result<PathBuf, Failure> {
    let (sizes, weights) = (folder.join("model.json"), folder.join("model.bpk"));
    config.save(&sizes).map_err(|error| Failure::cannot_write(&sizes, &error))?;
    model.save_file(&weights).map_err(|error| Failure::cannot_write(&weights, &error))?;
    Ok(weights)
}

/// Reads what a training has written.
pub fn load(
    folder: &Path,
    device: &Device,
) -> Result<(LanguageModelConfig, LanguageModel), Failure> {
    let (sizes, weights) = (folder.join("model.json"), folder.join("model.bpk"));
    let fail = |path: &Path, error: &dyn std::fmt::Display| {
        Failure::Run(format!("{}: is no model of train, {error}", path.display()))
    };
    let config = LanguageModelConfig::load(&sizes).map_err(|error| fail(&sizes, &error))?;
    let model = config.init(device).try_load_file(&weights);
    Ok((config, model.map_err(|error| fail(&weights, &error))?))
}
