//! Optimizers, learning rates, and the checkpoints of a training.

use std::path::Path;

use burn::grad_clipping::GradientClippingConfig;
use burn::lr_scheduler::LrSchedulerConfig;
use burn::lr_scheduler::cosine::CosineAnnealingLrSchedulerConfig;
use burn::lr_scheduler::linear::LinearLrSchedulerConfig;
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn::lr_scheduler::sequential::SequentialLrSchedulerConfig;
use burn::module::Module;
use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::store::ModuleRecord;
use burn::tensor::Device;
use clap::ValueEnum;
use serde::Serialize;

use super::Failure;

/// One in this many steps is for warming up.
const WARM_UP: usize = 20;

/// Whose AdamW trains.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Optimizer {
    /// This crate's, with the feature `optim`: few kernels, and nothing lost of what a step changes in weights of half types
    Own,
    /// Burn's
    Burn,
}

impl Default for Optimizer {
    /// This crate's, where it is built.
    fn default() -> Self {
        if cfg!(feature = "optim") { Self::Own } else { Self::Burn }
    }
}

impl Optimizer {
    /// AdamW; gradients of a larger norm than `clipping` are scaled down to it.
    pub fn adamw(
        self,
        weight_decay: f64,
        clipping: Option<f32>,
    ) -> Result<ModuleOptimizer, Failure> {
        let clipping = clipping.map(GradientClippingConfig::Norm);
        match self {
            #[cfg(feature = "optim")]
            Self::Own => Ok(burn_natten::optim::AdamWConfig::new()
                .with_weight_decay(weight_decay)
                .with_grad_clipping(clipping)
                .init()),
            #[cfg(not(feature = "optim"))]
            Self::Own => Err(Failure::Usage(
                "--optimizer own: is not in this build, add --features optim".into(),
            )),
            Self::Burn => Ok(burn::optim::AdamWConfig::new()
                .with_weight_decay(weight_decay as f32)
                .with_grad_clipping(clipping)
                .init()),
        }
    }
}

/// Rises for the first steps, then falls along a cosine.
pub fn schedule(highest: f64, steps: usize) -> Result<ModuleLrScheduler, Failure> {
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
///
/// Burn loads the state of an optimizer to its default device, which need not be one that this machine has: a training goes on
/// only where `device` is the default.
pub fn newest_checkpoint<M: Module>(
    folder: &Path,
    device: &Device,
    model: impl Fn() -> M,
) -> Result<usize, Failure> {
    let default = Device::default();
    if default != device.clone().without_autodiff() {
        return Err(Failure::Usage(format!(
            "--resume: Burn's default device is {default:?}, must be that of --device; name it as the variable BURN_DEVICE, such \
             as BURN_DEVICE=flex"
        )));
    }
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
            .is_ok_and(|record| model().try_load_record(record).is_ok());
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
    use burn::nn::LinearConfig;

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
        let resumed = |device: Device| {
            let model = || LinearConfig::new(2, 2).init(&Device::flex());
            let error = newest_checkpoint(Path::new("no/such/folder"), &device, model);
            error.expect_err("there is none").to_string()
        };
        let text = resumed(Device::default());
        assert!(text.starts_with("--resume: ") && text.ends_with("has no checkpoint"), "{text}");
        if Device::default() != Device::flex() {
            let text = resumed(Device::flex());
            assert!(text.ends_with("such as BURN_DEVICE=flex"), "{text}");
        }
    }
}
