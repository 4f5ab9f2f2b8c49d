//! Whole steps.

use std::time::Duration;

use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::GradientsParams;
use burn::tensor::{Device, Distribution, FloatDType, Int, Tensor, capture};
use burn_natten::models::nat::Nat;
use burn_natten::optim::AdamWConfig;

use crate::memory::{self, Memory};
use crate::timed;

/// Steps between the first and those that are timed.
const WARM_UP: u32 = 4;

/// Steps whose memory is watched.
const WATCHED: u32 = 3;

/// The first step, the median of those that count, and the memory of some more.
pub struct Times {
    pub first: Duration,
    pub median: Duration,
    pub memory: Option<Memory>,
}

impl Times {
    /// Of `steps`, those before them, and those after.
    fn of(
        steps: u32,
        device: &Device,
        mut step: impl FnMut() -> Result<Duration, String>,
    ) -> Result<Self, String> {
        let first = step()?;
        for _ in 0..WARM_UP {
            step()?;
        }
        let mut times = (0..steps).map(|_| step()).collect::<Result<Vec<_>, _>>()?;
        times.sort_unstable();
        let mut watched = Ok(());
        let memory = memory::of(device, || {
            watched = (0..WATCHED).try_for_each(|_| step().map(drop));
        })?;
        watched?;
        Ok(Self { first, median: times[times.len() / 2], memory })
    }
}

/// The gradients of all weights.
pub fn gradients(
    model: &Nat,
    shape: [usize; 4],
    steps: u32,
    device: &Device,
) -> Result<Times, String> {
    let images = images(shape, device);
    Times::of(steps, device, || {
        let (loss, time) = timed(device, || {
            let loss = loss(model, images.clone());
            drop(loss.backward());
            loss
        })?;
        is_finite(loss)?;
        Ok(time)
    })
}

/// The same, and an update of the weights.
pub fn update(model: Nat, shape: [usize; 4], steps: u32, device: &Device) -> Result<Times, String> {
    let images = images(shape, device);
    let mut optimizer = AdamWConfig::new().init();
    let mut model = Some(model);
    Times::of(steps, device, || {
        let now = model.take().ok_or("a step has failed")?;
        let ((next, loss), time) = timed(device, || {
            let loss = loss(&now, images.clone());
            let gradients = GradientsParams::from_grads(loss.backward(), &now);
            (optimizer.step(1e-5, now, gradients), loss)
        })?;
        model = Some(next);
        is_finite(loss)?;
        Ok(time)
    })
}

/// The logits alone.
pub fn inference(
    model: &Nat,
    shape: [usize; 4],
    steps: u32,
    device: &Device,
) -> Result<Times, String> {
    let images = images(shape, device);
    Times::of(steps, device, || Ok(timed(device, || model.forward(images.clone()))?.1))
}

/// What `step` gives, recorded once and replayed; `None` where the device has no graphs. The first time is that of recording.
fn replayed<R>(
    steps: u32,
    device: &Device,
    step: impl FnMut() -> R,
) -> Result<Option<Times>, String> {
    let (mut graph, first) = timed(device, || capture(device, step))?;
    if !graph.is_hardware() {
        return Ok(None);
    }
    let replay = || {
        let ((), time) = timed(device, || {
            // SAFETY: the graph owns what it reads and writes, or borrows it, and this thread alone uses it.
            unsafe { graph.replay() };
        })?;
        Ok(time)
    };
    // What a graph keeps for itself is no tensor's.
    Ok(Some(Times { first, memory: None, ..Times::of(steps, device, replay)? }))
}

/// [`inference`] from a graph.
pub fn replayed_inference(
    model: &Nat,
    shape: [usize; 4],
    steps: u32,
    device: &Device,
) -> Result<Option<Times>, String> {
    let images = images(shape, device);
    replayed(steps, device, || model.forward(images.clone()))
}

/// [`gradients`] from a graph.
pub fn replayed_gradients(
    model: &Nat,
    shape: [usize; 4],
    steps: u32,
    device: &Device,
) -> Result<Option<Times>, String> {
    let images = images(shape, &device.clone().autodiff());
    replayed(steps, device, || {
        let loss = loss(model, images.clone());
        let gradients = GradientsParams::from_grads(loss.backward(), model);
        (loss, gradients)
    })
}

fn images(shape: [usize; 4], device: &Device) -> Tensor<4> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), device)
}

/// The mean cross-entropy, in f32: 16-bit logits would lose their differences.
fn loss(model: &Nat, images: Tensor<4>) -> Tensor<1> {
    let device = images.device();
    let classes = Tensor::<1, Int>::zeros([images.dims()[0]], &device);
    let logits = model.forward(images).cast(FloatDType::F32);
    CrossEntropyLossConfig::new().init(&device).forward(logits, classes)
}

fn is_finite(loss: Tensor<1>) -> Result<(), String> {
    let loss = loss.into_scalar::<f32>();
    if loss.is_finite() { Ok(()) } else { Err(format!("the loss is {loss}")) }
}
