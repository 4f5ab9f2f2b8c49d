//! The training, with Burn's own loop, metrics and checkpoints.

use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataset::InMemDataset;
use burn::lr_scheduler::LrSchedulerConfig;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::lr_scheduler::sequential::SequentialLrSchedulerConfig;
use burn::module::Module;
use burn::optim::{AdamWConfig, OptimizerRecord};
use burn::store::ModuleRecord;
use burn::tensor::Device;
use burn::train::metric::{AccuracyMetric, LossMetric};
use burn::train::{ExecutionStrategy, Learner, SupervisedTraining};

use crate::Failure;
use crate::cli::Args;
use crate::data::Pictures;
use crate::loader::PictureBatcher;
use crate::model::{VisionTransformer, VisionTransformerConfig};
use crate::progress::PlainProgress;

/// One in this many steps is for warming up.
const WARM_UP: usize = 20;
const WEIGHT_DECAY: f32 = 0.05;

/// A trained model.
pub struct Trained {
    /// The model, on the device and without gradients.
    pub model: VisionTransformer,
    /// How long it took.
    pub time: Duration,
    /// Whether the user stopped it before the last epoch.
    pub is_stopped: bool,
}

/// Trains a new model, or the one of a checkpoint of epoch `from`, up to `args.epochs`.
///
/// `folder` receives checkpoints, metrics and the log.
pub fn train(
    config: &VisionTransformerConfig,
    pictures: &Pictures,
    args: &Args,
    device: &Device,
    folder: &Path,
    from: Option<usize>,
) -> Result<Trained, Failure> {
    device.seed(args.seed);
    let batcher = PictureBatcher::new(pictures);
    let train = DataLoaderBuilder::new(batcher.clone().with_motions(args.seed))
        .batch_size(args.batch_size)
        .shuffle(args.seed)
        .num_workers(1)
        .set_device(device.clone())
        .build(InMemDataset::new(pictures.train.clone()));
    let valid = DataLoaderBuilder::new(batcher)
        .batch_size(args.batch_size)
        .num_workers(1)
        .set_device(device.clone())
        .build(InMemDataset::new(pictures.valid.clone()));

    let device = device.clone().autodiff();
    let mut training = SupervisedTraining::new(folder, train, valid)
        .metrics((AccuracyMetric::new(), LossMetric::new()))
        .with_default_checkpointers()
        .with_training_strategy(ExecutionStrategy::SingleDevice(device.clone()).into())
        .num_epochs(args.epochs);
    if let Some(epoch) = from {
        training = training.checkpoint(epoch);
    }
    // On a terminal Burn draws its own dashboard.
    if !std::io::stdout().is_terminal() {
        training = training.renderer(Box::new(PlainProgress::new()));
    }
    let optimizer = AdamWConfig::new().with_weight_decay(WEIGHT_DECAY).init();
    let steps = pictures.train.len().div_ceil(args.batch_size) * args.epochs;
    let learner =
        Learner::new(config.init(&device), optimizer, schedule(args.learning_rate, steps)?);

    let started = Instant::now();
    let result = training.launch(learner);
    let time = started.elapsed();
    // Closes the dashboard, so that what is printed next stays on the screen.
    drop(result.renderer);
    match result.error {
        Some(error) => Err(Failure::Run(format!("the training failed: {error}"))),
        None => Ok(Trained { model: result.model, time, is_stopped: result.interrupted.is_some() }),
    }
}

/// Rises for the first steps, then falls along a cosine.
fn schedule(highest: f64, steps: usize) -> Result<ModuleLrScheduler, Failure> {
    let warm_up = (steps / WARM_UP).max(1);
    let rest = steps.saturating_sub(warm_up).max(1);
    let lowest = highest / 100.0;
    let schedulers = vec![
        LrSchedulerConfig::Linear(LinearLrSchedulerConfig::new(lowest, highest, warm_up)),
        LrSchedulerConfig::Cosine(
            CosineAnnealingLrSchedulerConfig::new(highest, rest).with_min_lr(lowest),
        ),
    ];
    SequentialLrSchedulerConfig::new(schedulers, vec![warm_up])
        .init()
        .map_err(|error| Failure::Usage(format!("--learning-rate: {error}")))
}

/// The newest epoch whose checkpoint in `folder` can be read and fits the model.
///
/// A training that is killed while it writes leaves a file that cannot be read; the epoch before
/// it is still there.
pub fn newest_checkpoint(
    folder: &Path,
    config: &VisionTransformerConfig,
    device: &Device,
) -> Result<usize, Failure> {
    let folder = folder.join("checkpoint");
    let mut epochs: Vec<usize> = std::fs::read_dir(&folder)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| epoch_of(entry.file_name().to_str()?))
        .collect();
    epochs.sort_unstable_by(|a, b| b.cmp(a));
    let is_whole = |epoch: &usize| {
        let file = |part: &str| folder.join(format!("{part}-{epoch}.bpk"));
        let fits = ModuleRecord::load(file("model"))
            .is_ok_and(|record| config.init(device).try_load_record(record).is_ok());
        fits && OptimizerRecord::load(file("optim")).is_ok() && file("scheduler").is_file()
    };
    epochs
        .into_iter()
        .find(is_whole)
        .ok_or_else(|| Failure::Usage(format!("--resume: {} has no checkpoint", folder.display())))
}

fn epoch_of(file: &str) -> Option<usize> {
    file.strip_prefix("model-")?.strip_suffix(".bpk")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_rises_and_falls() {
        let mut schedule = schedule(0.1, 200).expect("is in range");
        let rates: Vec<f64> = (0..200).map(|_| schedule.step().base()).collect();
        let highest = rates.iter().copied().fold(0.0, f64::max);
        assert!((highest - 0.1).abs() < 1e-9 && rates[0] < 0.01 && rates[199] < 0.002);
    }

    #[test]
    fn epochs_are_read_from_file_names() {
        assert_eq!(epoch_of("model-12.bpk"), Some(12));
        assert_eq!(epoch_of("optim-12.bpk"), None);
        assert_eq!(epoch_of("model-x.bpk"), None);
    }

    #[test]
    fn without_a_checkpoint_there_is_nothing_to_resume() {
        let config = VisionTransformerConfig::new(1, 8, 10, 3, 2);
        let error = newest_checkpoint(Path::new("no/such/folder"), &config, &Device::flex());
        let text = error.expect_err("there is none").to_string();
        assert!(text.starts_with("--resume: ") && text.ends_with("has no checkpoint"), "{text}");
    }
}
