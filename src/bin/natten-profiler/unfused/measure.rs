//! The halves on a device.

use std::cell::RefCell;

use burn::tensor::{Device, Tensor};
use burn_natten::profile::{Peaks, Timing, measure_peaks, time};
use burn_natten::{
    AttentionError, NeighborhoodOptions, try_na1d_av, try_na1d_qk, try_na2d_av, try_na2d_qk,
    try_na3d_av, try_na3d_qk,
};
use burn_natten_kernels::{MAX_RANK, Problem};

use super::Half;
use crate::args::Args;
use crate::device;
use crate::failure::Failure;
use crate::passes::{SEED, failed, random, repeats, tracking};
use crate::request::Request;

/// What was measured.
pub struct Found {
    /// The device.
    pub name: String,
    pub peaks: Peaks,
    pub passes: Vec<Measurement>,
}

/// Some passes of a half together.
pub struct Measurement {
    pub half: Half,
    pub passes: String,
    pub timing: Timing,
    /// Of its tensors.
    pub bytes: u64,
}

/// Times the forward pass of both halves and, where the flags ask for the backward pass, the forward pass with the gradient of each input and
/// with those of both.
pub fn run(request: &Request, args: &Args) -> Result<Found, Failure> {
    if cfg!(debug_assertions) {
        eprintln!("warning: not built with --release, so that times and peaks say little");
    }
    let device = device::open(args.device, args.dtype)?;
    let peaks = measure_peaks(&device, args.dtype.dtype());
    let mut passes = vec![];
    for half in [Half::Qk, Half::Av] {
        let [forward, backward] = half.bytes(&request.problem, args.dtype.dtype().size());
        let mut add = |device: &Device, tracked, passes_of: &str, bytes| {
            let timing = of_rank(half, request, args, device, tracked)?;
            passes.push(Measurement { half, passes: passes_of.to_string(), timing, bytes });
            Ok(())
        };
        add(&device, [false; 2], "forward", forward)?;
        if args.backprop {
            let device = tracking(&device)?;
            for (name, tracked) in half.inputs().into_iter().zip([[true, false], [false, true]]) {
                // The gradient of an input is a product of the same three shapes.
                add(&device, tracked, &format!("forward and d {name}"), 2 * forward)?;
            }
            add(&device, [true; 2], "forward and backward", forward + backward)?;
        }
    }
    Ok(Found { name: device::describe(args.device, &device), peaks, passes })
}

fn of_rank(
    half: Half,
    request: &Request,
    args: &Args,
    device: &Device,
    tracked: [bool; 2],
) -> Result<Timing, Failure> {
    let timing = match (request.problem.rank(), half) {
        (1, Half::Qk) => timed::<1, 4>(half, try_na1d_qk, request, args, device, tracked),
        (1, Half::Av) => timed::<1, 4>(half, try_na1d_av, request, args, device, tracked),
        (2, Half::Qk) => timed::<2, 5>(half, try_na2d_qk, request, args, device, tracked),
        (2, Half::Av) => timed::<2, 5>(half, try_na2d_av, request, args, device, tracked),
        (_, Half::Qk) => timed::<3, 6>(half, try_na3d_qk, request, args, device, tracked),
        (_, Half::Av) => timed::<3, 6>(half, try_na3d_av, request, args, device, tracked),
    };
    timing.map_err(failed)
}

fn timed<const N: usize, const D: usize>(
    half: Half,
    operator: impl Fn(Tensor<D>, Tensor<D>, NeighborhoodOptions<N>) -> Result<Tensor<D>, AttentionError>,
    request: &Request,
    args: &Args,
    device: &Device,
    tracked: [bool; 2],
) -> Result<Timing, AttentionError> {
    let problem = &request.problem;
    let [first, space] = inputs(half, problem, args, device, tracked);
    let options = request.options::<N>(args);
    // Rows of memory may be longer than those of the tensor, which to flatten would be a copy: what is computed stays here.
    let last = RefCell::new(vec![]);
    let timing = time(device, &repeats(args), || {
        let out = operator(first.clone(), space.clone(), options.clone())?;
        *last.borrow_mut() = results(out, [&first, &space]);
        Ok(vec![])
    })?;
    for result in last.into_inner() {
        let corner = result.slice([(); D].map(|()| 0..1));
        if corner.clone().is_nan().any().into_scalar::<bool>() {
            let reason = format!("{} begins with {corner}", half.name());
            return Err(AttentionError::Execution { reason });
        }
    }
    Ok(timing)
}

/// What both halves are given: by chance, tracked on a device that tracks where that is asked for.
fn inputs<const D: usize>(
    half: Half,
    problem: &Problem,
    args: &Args,
    device: &Device,
    tracked: [bool; 2],
) -> [Tensor<D>; 2] {
    device.seed(SEED);
    let axes = &problem.axes[MAX_RANK - problem.rank()..];
    let window = axes.iter().map(|axis| axis.kernel_size).product();
    let (first, dim) = match half {
        Half::Qk => (problem.head_dim, problem.head_dim),
        Half::Av => (window, problem.head_dim_v),
    };
    let of = |(heads, length): (usize, usize), is_tracked: bool| {
        let space = axes.iter().map(|axis| axis.keys);
        let shape: Vec<_> =
            [problem.batch].into_iter().chain(space).chain([heads, length]).collect();
        let tensor = random(args, shape, device);
        if is_tracked { tensor } else { tensor.detach() }
    };
    [of((problem.heads, first), tracked[0]), of((problem.heads_kv, dim), tracked[1])]
}

/// The gradients of a sum of all outputs, on a device that tracks; or else the outputs.
fn results<const D: usize>(out: Tensor<D>, leaves: [&Tensor<D>; 2]) -> Vec<Tensor<D>> {
    #[cfg(feature = "autodiff")]
    if leaves.into_iter().any(Tensor::is_require_grad) {
        // Burn begins with ones where it is handed more than one number.
        let gradients = out.backward();
        return leaves.into_iter().filter_map(|leaf| leaf.grad(&gradients)).collect();
    }
    let _ = leaves;
    vec![out]
}
