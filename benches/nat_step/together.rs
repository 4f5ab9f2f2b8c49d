//! Steps of several devices that share their gradients.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use burn::module::{Module, ModuleMapper, Param};
use burn::optim::GradientsParams;
use burn::tensor::distributed::{DistributedConfig, DistributedContext, ReduceOperation};
use burn::tensor::{Device, Tensor};
use burn_natten::models::nat::Nat;
use burn_natten::optim::AdamWConfig;

use crate::step::{images, is_finite, loss};

/// Steps before those that are timed.
const WARM_UP: u32 = 5;

/// The time of a step with AdamW, in which each device has a batch of this shape: the mean of many that are queued one behind the other, as a
/// training does. One device shares nothing.
pub fn update(
    model: &Nat,
    shape: [usize; 4],
    steps: u32,
    devices: &[Device],
) -> Result<Duration, String> {
    let mean = DistributedConfig { all_reduce_op: ReduceOperation::Mean };
    let _context = (devices.len() > 1).then(|| DistributedContext::init(devices.to_vec(), mean));
    let start = Barrier::new(devices.len());
    let times = thread::scope(|scope| {
        let member = |device: &Device| {
            let mut model = model.clone().fork(device);
            if devices.len() > 1 {
                model = model.map(&mut Shared);
            }
            let (device, start) = (device.clone(), &start);
            scope.spawn(move || steps_of(model, shape, steps, &device, start))
        };
        let threads: Vec<_> = devices.iter().map(member).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<Duration, String>>| {
            thread.join().unwrap_or_else(|_| Err("a device has failed".to_string()))
        };
        threads.into_iter().map(join).collect::<Result<Vec<_>, _>>()
    })?;
    Ok(times.into_iter().max().unwrap_or_default() / steps)
}

/// All steps of a device, from when all are ready to the end of the last one.
fn steps_of(
    model: Nat,
    shape: [usize; 4],
    steps: u32,
    device: &Device,
    start: &Barrier,
) -> Result<Duration, String> {
    let sync = || device.sync().map_err(|error| error.to_string());
    let images = images(shape, device);
    let mut optimizer = AdamWConfig::new().init();
    let mut step = |model: Nat| -> (Nat, Tensor<1>) {
        let loss = loss(&model, images.clone());
        let gradients = loss.backward();
        // Burn's server of gradients forgets a device that begins its next backward pass before all have ended this one, and waits for
        // it for ever.
        start.wait();
        let gradients = GradientsParams::from_grads(gradients, &model);
        (optimizer.step(1e-5, model, gradients), loss)
    };
    let (mut model, mut last) = step(model);
    for _ in 1..WARM_UP {
        (model, last) = step(model);
    }
    // Who fails here has to let the others go on.
    let ready = is_finite(last).and_then(|()| sync());
    start.wait();
    ready?;
    let begin = Instant::now();
    let mut last = None;
    for _ in 0..steps {
        let (next, loss) = step(model);
        (model, last) = (next, Some(loss));
    }
    sync()?;
    let time = begin.elapsed();
    last.map_or(Ok(()), is_finite)?;
    Ok(time)
}

/// Marks parameters as those whose gradients all devices share.
struct Shared;

impl ModuleMapper for Shared {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let (id, tensor, mapper) = param.consume();
        Param::from_mapped_value(id, tensor.set_distributed(id), mapper)
    }
}
