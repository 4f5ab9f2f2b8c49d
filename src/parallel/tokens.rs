use burn::tensor::{Device, Tensor};

use super::exchange::{cat, narrow, try_exchange};
use super::shards::{even_shards, ranges, validate};
use crate::AttentionError;
use crate::problem::same;

/// The axis of a tensor that one of its spatial axes is. `what` says which these are.
pub(super) fn tensor_axis(axis: usize, axes: usize, what: &str) -> Result<usize, AttentionError> {
    if axis < axes {
        return Ok(axis + 1);
    }
    let bound = format!("less than {axes} ({what})");
    Err(AttentionError::Parameter { parameter: "axis", got: axis, bound })
}

/// What is between the first axis of a tensor and its last one.
fn inner_axis(rank: usize, axis: usize) -> Result<usize, AttentionError> {
    tensor_axis(axis, rank.saturating_sub(2), "the axes between the first and the last")
}

/// Cuts a tensor along an axis, one shard for each device, of lengths that differ by one at most. Differentiable; [`join_tokens`] is the way
/// back.
///
/// Devices may be named twice, and their order is that of the shards. A device that has the tensor already gets a view of it.
///
/// # Shapes
///
/// - x: `[batch, *space, ..]`, such as a query `[batch, depth, height, width, heads, head_dim]`, or features `[batch, height, width,
///   channels]`
/// - axis: 0 for the first axis behind the batch
/// - returns the same, shorter along the axis
///
/// # Panics
///
/// With the text of the [`AttentionError`] that [`try_split_tokens`] returns.
///
/// # Example
///
/// ```rust
/// use burn::tensor::{Device, Distribution, Tensor};
/// use burn_natten::parallel::{join_tokens, split_tokens};
///
/// let device = Device::flex();
/// let x = Tensor::<4>::random([1, 6, 9, 32], Distribution::Default, &device);
/// let shards = split_tokens(x.clone(), &[device.clone(), device.clone()], 1);
/// assert_eq!((shards[0].dims(), shards[1].dims()), ([1, 6, 5, 32], [1, 6, 4, 32]));
/// assert!(join_tokens(shards, &device, 1).equal(x).all().into_scalar::<bool>());
/// ```
#[track_caller]
pub fn split_tokens<const D: usize>(
    x: Tensor<D>,
    devices: &[Device],
    axis: usize,
) -> Vec<Tensor<D>> {
    match try_split_tokens(x, devices, axis) {
        Ok(shards) => shards,
        Err(error) => panic!("{error}"),
    }
}

/// [`split_tokens`], with an error instead of a panic.
///
/// # Errors
///
/// [`AttentionError`] if there is no such axis, no device, fewer tokens than devices, or no way between the devices.
pub fn try_split_tokens<const D: usize>(
    x: Tensor<D>,
    devices: &[Device],
    axis: usize,
) -> Result<Vec<Tensor<D>>, AttentionError> {
    let along = inner_axis(D, axis)?;
    let shards = even_shards(x.dims()[along], devices.len());
    try_split_tokens_into(x, devices, axis, &shards)
}

/// [`split_tokens`] into shards of these lengths, of which there are as many as devices: for members of different speed, or cuts at
/// multiples of a stride.
///
/// # Panics
///
/// With the text of the [`AttentionError`] that [`try_split_tokens_into`] returns.
///
/// # Example
///
/// ```rust
/// use burn::tensor::{Device, Tensor};
/// use burn_natten::parallel::split_tokens_into;
///
/// let device = Device::flex();
/// let x = Tensor::<4>::ones([1, 6, 9, 32], &device);
/// let shards = split_tokens_into(x, &[device.clone(), device], 1, &[7, 2]);
/// assert_eq!(shards[1].dims(), [1, 6, 2, 32]);
/// ```
#[track_caller]
pub fn split_tokens_into<const D: usize>(
    x: Tensor<D>,
    devices: &[Device],
    axis: usize,
    shards: &[usize],
) -> Vec<Tensor<D>> {
    match try_split_tokens_into(x, devices, axis, shards) {
        Ok(shards) => shards,
        Err(error) => panic!("{error}"),
    }
}

/// [`split_tokens_into`], with an error instead of a panic.
///
/// # Errors
///
/// As [`try_split_tokens`]; and if there are not as many shards as devices, or they are not all tokens.
pub fn try_split_tokens_into<const D: usize>(
    x: Tensor<D>,
    devices: &[Device],
    axis: usize,
    shards: &[usize],
) -> Result<Vec<Tensor<D>>, AttentionError> {
    let along = inner_axis(D, axis)?;
    if shards.len() != devices.len() {
        let (parameter, bound) = ("shards", format!("{} (devices)", devices.len()));
        return Err(AttentionError::Parameter { parameter, got: shards.len(), bound });
    }
    validate(shards, x.dims()[along])?;
    let shard = |(tokens, device)| try_exchange(narrow(x.clone(), along, tokens), device);
    ranges(shards).zip(devices).map(shard).collect()
}

/// One tensor on a device of its shards on any. Differentiable: each shard gets its part of the gradient.
///
/// # Shapes
///
/// - shards: at least one, `[batch, *space, ..]`, of the same shape but along the axis
/// - axis: 0 for the first axis behind the batch
/// - returns the same, longer along the axis
///
/// # Panics
///
/// With the text of the [`AttentionError`] that [`try_join_tokens`] returns.
///
/// # Example
///
/// ```rust
/// use burn::tensor::{Device, Tensor};
/// use burn_natten::parallel::join_tokens;
///
/// let device = Device::flex();
/// let shards = [3, 5].map(|tokens| Tensor::<3>::ones([2, tokens, 8], &device));
/// assert_eq!(join_tokens(shards.to_vec(), &device, 0).dims(), [2, 8, 8]);
/// ```
#[track_caller]
pub fn join_tokens<const D: usize>(
    shards: Vec<Tensor<D>>,
    device: &Device,
    axis: usize,
) -> Tensor<D> {
    match try_join_tokens(shards, device, axis) {
        Ok(tensor) => tensor,
        Err(error) => panic!("{error}"),
    }
}

/// [`join_tokens`], with an error instead of a panic.
///
/// # Errors
///
/// [`AttentionError`] if there is no shard or no such axis, shards differ in type or along another axis, or there is no way from
/// their devices.
pub fn try_join_tokens<const D: usize>(
    shards: Vec<Tensor<D>>,
    device: &Device,
    axis: usize,
) -> Result<Tensor<D>, AttentionError> {
    const ARGUMENT: &str = "shards";
    const FIRST: &str = "the first of them";
    let along = inner_axis(D, axis)?;
    let Some(first) = shards.first() else {
        let bound = "at least 1".to_string();
        return Err(AttentionError::Parameter { parameter: ARGUMENT, got: 0, bound });
    };
    let (shape, expected) = (first.dims(), first.dtype());
    for shard in &shards {
        for axis in (0..D).filter(|axis| *axis != along) {
            same(&shard.dims(), ARGUMENT, &shape, FIRST, axis, "any")?;
        }
        if shard.dtype() != expected {
            let (argument, got, other) = (ARGUMENT, shard.dtype(), FIRST);
            return Err(AttentionError::MixedDTypes { argument, got, expected, other });
        }
    }
    let moved: Result<_, _> = shards.into_iter().map(|shard| try_exchange(shard, device)).collect();
    Ok(cat(moved?, along))
}
