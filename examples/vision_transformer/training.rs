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
/// gradients, each by the size of its share.
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
    pictures_of_epoch.truncate(usable(pictures_of_epoch.len(), members, batch_size));
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
    let steps_of_epoch = (pictures.train.len() / members).div_ceil(batch_size);
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

/// How many pictures some devices train on in an epoch. All, unless the last device, which takes what Burn cannot divide evenly, would
/// have a batch more than others, and wait for their gradients for ever: then as many each.
fn usable(pictures: usize, members: usize, batch_size: usize) -> usize {
    let share = pictures / members;
    let last = pictures - share * (members - 1);
    match share.div_ceil(batch_size) == last.div_ceil(batch_size) {
        true => pictures,
        false => share * members,
    }
}

#[cfg(test)]
mod tests {
    use burn::data::dataloader::split::split_dataloader;

    use super::*;
    use crate::data;

    #[test]
    fn devices_have_as_many_batches_as_each_other() {
        let digits = data::digits(&data::default_digits()).expect("is beside the sources");
        let device = Device::flex();
        for (pictures, members, batch_size, expected) in [
            (32, 2, 8, 32),
            (33, 2, 8, 32),
            (35, 2, 8, 35),
            (11, 3, 4, 9),
            (17, 3, 4, 17),
            (10, 1, 4, 10),
        ] {
            assert_eq!(usable(pictures, members, batch_size), expected);
            let some = InMemDataset::new(digits.train[..expected].to_vec());
            let loader = DataLoaderBuilder::new(PictureBatcher::new(&digits))
                .batch_size(batch_size)
                .shuffle(1)
                .num_workers(2)
                .set_device(device.clone())
                .build(some);
            let shares = split_dataloader(loader, &vec![device.clone(); members]);
            let batches = |share: usize| -> Vec<usize> {
                shares[share].iter().map(|batch| batch.expect("is read").order.len()).collect()
            };
            let shares: Vec<_> = (0..members).map(batches).collect();
            assert!(shares.iter().all(|share| share.len() == shares[0].len()), "{shares:?}");
            assert_eq!(shares.iter().flatten().sum::<usize>(), expected);
        }
    }
}
