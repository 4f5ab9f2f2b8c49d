use burn::nn::Linear;
use burn::tensor::{Device, Tensor};

use super::linear;
use crate::models::ConfigError;
use crate::models::check::ensure;

/// From channels to classes, if there are classes.
pub(in crate::models) type Classifier = Option<Linear>;

pub(in crate::models) fn classifier(
    channels: usize,
    num_classes: usize,
    device: &Device,
) -> Classifier {
    (num_classes > 0).then(|| linear(channels, num_classes, true, device))
}

/// The mean over all positions, then the classes.
///
/// `[batch, height, width, channels]` to `[batch, classes]`, or `[batch, channels]` without classes.
pub(in crate::models) fn classify(map: Tensor<4>, head: &Classifier) -> Tensor<2> {
    let pooled = map.flatten::<3>(1, 2).mean_dim(1).squeeze_dim::<2>(1);
    match head {
        Some(head) => head.forward(pooled),
        None => pooled,
    }
}

pub(in crate::models) fn check_rate(rate: f64) -> Result<(), ConfigError> {
    ensure!(
        (0.0..1.0).contains(&rate),
        "drop_path_rate: is {rate}, must be at least 0 and below 1"
    );
    Ok(())
}

/// The drop path of each block, which grows from 0 to `rate`.
pub(in crate::models) fn drop_path_rates(rate: f64, blocks: usize) -> Vec<f64> {
    let last = blocks.saturating_sub(1).max(1) as f64;
    (0..blocks).map(|block| rate * block as f64 / last).collect()
}
