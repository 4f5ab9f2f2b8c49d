//! The training, with Burn's own loop, metrics and checkpoints.

use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

use burn::data::dataloader::DataLoaderBuilder;
use burn::data::dataset::InMemDataset;
use burn::tensor::Device;
use burn::tensor::distributed::{DistributedConfig, ReduceOperation};
use burn::train::metric::{AccuracyMetric, LossMetric};
use burn::train::{ExecutionStrategy, Learner, SupervisedTraining};

use crate::Failure;
use crate::cli::Args;
use crate::common::progress::PlainProgress;
use crate::common::training::schedule;
use crate::data::Pictures;
use crate::loader::PictureBatcher;
use crate::model::{VisionTransformer, VisionTransformerConfig};

pub const WEIGHT_DECAY: f64 = 0.05;

/// A trained model.
pub struct Trained {
    /// The model, on the device and without gradients.
    pub model: VisionTransformer,
    /// How long it took, validation and checkpoints included.
    pub time: Duration,
    /// Steps in that time, if it went to the last epoch.
    pub steps: usize,
    /// Whether the user stopped it before the last epoch.
    pub is_stopped: bool,
}

/// Trains a new model, or the one of a checkpoint of epoch `from`, up to `args.epochs`.
///
/// `folder` receives checkpoints, metrics and the log. Several devices train on a share of each batch each, and take the mean of their
/// gradients: shares have to be of one size, so that some pictures are left out, fewer than there are devices.
pub fn train(
    config: &VisionTransformerConfig,
    pictures: &Pictures,
    args: &Args,
    devices: &[Device],
    folder: &Path,
    from: Option<usize>,
) -> Result<Trained, Failure> {
    for device in devices {
        device.seed(args.seed);
    }
    let (device, members) = (&devices[0], devices.len());
    let batch_size = args.batch_size / members;
    let mut pictures_of_epoch = pictures.train.clone();
    pictures_of_epoch.truncate(share(pictures_of_epoch.len(), members) * members);
    let batcher = PictureBatcher::new(pictures);
    let train =
        DataLoaderBuilder::new(batcher.clone().with_motions(args.seed).with_members(members))
            .batch_size(batch_size)
            .shuffle(args.seed)
            .num_workers(args.workers)
            .set_device(device.clone())
            .build(InMemDataset::new(pictures_of_epoch));
    let valid = DataLoaderBuilder::new(batcher)
        .batch_size(args.batch_size)
        .num_workers(1)
        .set_device(device.clone())
        .build(InMemDataset::new(pictures.valid.clone()));

    let device = device.clone().autodiff();
    let strategy = match members {
        1 => ExecutionStrategy::SingleDevice(device.clone()),
        _ => {
            let devices = devices.iter().map(|device| device.clone().autodiff()).collect();
            ExecutionStrategy::ddp(
                devices,
                DistributedConfig { all_reduce_op: ReduceOperation::Mean },
            )
        }
    };
    let mut training = SupervisedTraining::new(folder, train, valid)
        .metrics((AccuracyMetric::new(), LossMetric::new()))
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
    let optimizer = args.optimizer.adamw(WEIGHT_DECAY, None)?;
    let steps_of_epoch = share(pictures.train.len(), members).div_ceil(batch_size);
    let steps = steps_of_epoch * args.epochs;
    let learner =
        Learner::new(config.init(&device), optimizer, schedule(args.learning_rate, steps)?);

    let started = Instant::now();
    let result = training.launch(learner);
    let time = started.elapsed();
    // Closes the dashboard, so that what is printed next stays on the screen.
    drop(result.renderer);
    match result.error {
        Some(error) => Err(Failure::Run(format!("the training failed: {error}"))),
        None => Ok(Trained {
            model: result.model,
            time,
            steps: steps - steps_of_epoch * from.unwrap_or(0).min(args.epochs),
            is_stopped: result.interrupted.is_some(),
        }),
    }
}

/// How many pictures each of some devices trains on in an epoch: the same for all, as a device with more of them would wait for the
/// others' gradients for ever.
fn share(pictures: usize, members: usize) -> usize {
    pictures / members
}
