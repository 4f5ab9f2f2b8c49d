//! Times of all ways.

use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor};
use burn_natten::AttentionError;
use burn_natten::parallel::{even_shards, try_join_tokens};
use burn_natten::profile::{Pass, Repeats, Timing};
use burn_natten_kernels::{MAX_RANK, Problem};

use super::is_dense;
use super::ways::{self, Members, Way};
use crate::args::Args;
use crate::device;
use crate::failure::Failure;
use crate::measure::progress;
use crate::passes::{SEED, failed, random, repeats, tracking};
use crate::request::Request;

/// What was measured.
pub struct Found {
    /// The devices.
    pub names: Vec<String>,
    pub measurements: Vec<Measurement>,
}

/// A pass of one way.
pub struct Measurement {
    pub way: String,
    pub pass: Pass,
    pub timing: Timing,
    /// Times as fast as one device.
    pub speed_up: f64,
}

pub fn run(request: &Request, args: &Args) -> Result<Found, Failure> {
    if cfg!(debug_assertions) {
        eprintln!("warning: not built with --release, so that times say little");
    }
    let open = |name| {
        device::open(name, args.dtype).and_then(|device| {
            let name = device::describe(name, &device);
            Ok((name, if args.backprop { tracking(&device)? } else { device }))
        })
    };
    let opened = args.devices.iter().copied().map(open).collect::<Result<Vec<_>, _>>()?;
    let (names, devices): (Vec<_>, Vec<_>) = opened.into_iter().unzip();
    let measurements = match request.problem.rank() {
        1 if is_dense(request) => all(ways::dense(request, args, &devices), request, args),
        1 => all(ways::of_one_axis(request, args, &devices), request, args),
        2 => all(ways::of_two_axes(request, args, &devices), request, args),
        _ => all(ways::of_three_axes(request, args, &devices), request, args),
    }?;
    Ok(Found { names, measurements })
}

fn all<const D: usize>(
    ways: Vec<Way<'_, D>>,
    request: &Request,
    args: &Args,
) -> Result<Vec<Measurement>, Failure> {
    let bar = progress(ways.len() as u64);
    let mut measurements = vec![];
    let mut alone: Vec<Duration> = vec![];
    for way in ways {
        bar.set_message(way.name.clone());
        let timings = time(&way, request, args)?;
        if alone.is_empty() {
            alone = timings.iter().map(Timing::median).collect();
        }
        for ((timing, pass), alone) in timings.into_iter().zip(args.passes()).zip(&alone) {
            let speed_up = alone.as_secs_f64() / timing.median().as_secs_f64();
            measurements.push(Measurement { way: way.name.clone(), pass: *pass, timing, speed_up });
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(measurements)
}

/// Times of the passes, each from the launch to the end on all devices. What a loss takes is between the passes, and not counted.
fn time<const D: usize>(
    way: &Way<'_, D>,
    request: &Request,
    args: &Args,
) -> Result<Vec<Timing>, Failure> {
    let Repeats { warmup, samples, idle, limit, .. } = repeats(args);
    let inputs = inputs(way, &request.problem, args);
    for _ in 0..warmup {
        once(way, &inputs, args).map_err(failed)?;
    }
    let start = Instant::now();
    let mut times = vec![];
    while times.is_empty() || (times.len() < samples && start.elapsed() < limit) {
        std::thread::sleep(idle);
        // Wakes the devices.
        once(way, &inputs, args).map_err(failed)?;
        times.push(once(way, &inputs, args).map_err(failed)?);
    }
    let of = |pass: usize| Timing::of_calls(times.iter().map(|times| times[pass]).collect());
    Ok((0..args.passes().len()).filter_map(of).collect())
}

/// Query, key and value of each member, and what the loss weighs its output with.
struct Inputs<const D: usize> {
    members: Members<D>,
    weights: Vec<Tensor<D>>,
}

/// As even as can be, made where they belong.
fn inputs<const D: usize>(way: &Way<'_, D>, problem: &Problem, args: &Args) -> Inputs<D> {
    let axes = &problem.axes[MAX_RANK - (D - 3)..];
    let of = |queries: bool, heads: usize, dim: usize| -> Vec<Tensor<D>> {
        let length =
            |axis: &burn_natten_kernels::Axis| if queries { axis.queries } else { axis.keys };
        let mut shape = [0; D];
        shape[0] = problem.batch;
        for (place, axis) in axes.iter().enumerate() {
            shape[place + 1] = length(axis);
        }
        shape[D - 2] = heads;
        shape[D - 1] = dim;
        let shards = even_shards(shape[way.along], way.devices.len());
        let member = |(shard, device): (usize, &Device)| {
            shape[way.along] = shard;
            random(args, shape, device)
        };
        shards.into_iter().zip(way.devices).map(member).collect()
    };
    for (number, device) in way.devices.iter().enumerate() {
        device.seed(SEED + number as u64);
    }
    let Problem { heads, heads_kv, head_dim, head_dim_v, .. } = *problem;
    let members =
        [of(true, heads, head_dim), of(false, heads_kv, head_dim), of(false, heads_kv, head_dim_v)];
    let weights = of(true, heads, head_dim_v).into_iter().map(Tensor::detach).collect();
    Inputs { members, weights }
}

/// The times of the passes of one call.
fn once<const D: usize>(
    way: &Way<'_, D>,
    inputs: &Inputs<D>,
    args: &Args,
) -> Result<Vec<Duration>, AttentionError> {
    let devices = way.devices;
    sync(devices)?;
    let start = Instant::now();
    let outs = (way.call)(inputs.members.clone())?;
    sync(devices)?;
    let forward = start.elapsed();
    if !args.backprop {
        check(outs)?;
        return Ok(vec![forward]);
    }
    let terms = outs.into_iter().zip(&inputs.weights).map(|(out, weights)| {
        // A number of a member, as one token of one channel.
        (out * weights.clone()).sum().reshape([1, 1, 1])
    });
    let loss = try_join_tokens(terms.collect(), &devices[0], 0)?.sum();
    sync(devices)?;
    let start = Instant::now();
    let gradients = backward(loss, &inputs.members);
    sync(devices)?;
    let backward = start.elapsed();
    check(gradients)?;
    Ok(vec![forward, backward])
}

/// The gradients of all tensors.
#[cfg(feature = "autodiff")]
fn backward<const D: usize>(loss: Tensor<1>, members: &Members<D>) -> Vec<Tensor<D>> {
    let tape = loss.backward();
    members.iter().flatten().filter_map(|leaf| leaf.grad(&tape)).collect()
}

/// [`tracking`] refuses a build without gradients.
#[cfg(not(feature = "autodiff"))]
fn backward<const D: usize>(_loss: Tensor<1>, _members: &Members<D>) -> Vec<Tensor<D>> {
    vec![]
}

/// Reads from everything, so that nothing can have been left out.
fn check<const D: usize>(results: Vec<Tensor<D>>) -> Result<(), AttentionError> {
    for (number, result) in results.into_iter().enumerate() {
        let corner = result.slice([(); D].map(|()| 0..1));
        if corner.is_nan().any().into_scalar::<bool>() {
            let reason = format!("result {number} begins with what is no number");
            return Err(AttentionError::Execution { reason });
        }
    }
    Ok(())
}

/// Waits for all devices, which have all begun by then.
fn sync(devices: &[Device]) -> Result<(), AttentionError> {
    let failed = |error: burn::backend::ExecutionError| AttentionError::Execution {
        reason: error.to_string(),
    };
    devices.iter().try_for_each(|device| device.flush().map_err(failed))?;
    devices.iter().try_for_each(|device| device.sync().map_err(failed))
}
