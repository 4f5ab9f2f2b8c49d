//! Measuring: how long a pass takes on a device, and what the device could do at best.
//!
//! ```rust
//! use burn::tensor::{DType, Device};
//! use burn_natten::profile::{Mode, Repeats, Workload, time_backward, time_forward};
//! use burn_natten::{Context, Strategy};
//! use burn_natten_kernels::catalogue;
//!
//! # fn main() -> Result<(), burn_natten::AttentionError> {
//! let entry = catalogue::find("nat-56-small").expect("is in the catalogue");
//! let workload = Workload {
//!     problem: entry.problem,
//!     dtype: DType::F32,
//!     strategy: Strategy::Auto,
//!     context: Context::current(),
//! };
//! let repeats = Repeats { samples: 3, idle: Default::default(), ..Repeats::new(Mode::Burst) };
//! let forward = time_forward(&workload, &Device::flex(), &repeats)?;
//! let backward = time_backward(&workload, &Device::flex(), &repeats)?;
//! println!("{:?} forward, {:?} backward", forward.median(), backward.median());
//! assert!(forward.min() <= forward.median() && forward.calls() >= 3);
//! # Ok(())
//! # }
//! ```
//!
//! Times are those of a caller: from the first launch of a batch to the end of the last kernel,
//! divided by the number of calls. They include what the host does where the device waits for it.

mod pass;
mod peaks;
mod timing;
mod workload;

pub use pass::Pass;
pub use peaks::{Peaks, measure_peaks};
pub use timing::{Mode, Repeats, Timing, time};
pub use workload::{Gradients, Inputs, Outputs, Workload};

use burn::tensor::Device;

use crate::AttentionError;

/// Seed of the inputs that are timed.
const SEED: u64 = 42;

/// Times the forward pass of a workload, through the operators that users call.
///
/// # Errors
///
/// What the operator returns, or [`AttentionError::Execution`] if the device fails, if an output is
/// not a number, or if the selected tier failed and another one ran in its place.
pub fn time_forward(
    workload: &Workload,
    device: &Device,
    repeats: &Repeats,
) -> Result<Timing, AttentionError> {
    let inputs = workload.inputs(device, SEED);
    time(device, repeats, || {
        let Outputs { out, logsumexp } = workload.forward(&inputs)?;
        Ok(vec![out.flatten(0, 3), logsumexp.flatten(0, 2)])
    })
}

/// Times the backward pass alone: the gradients of all inputs from those of output and logsumexp,
/// both normal, by the operator that autodiff calls. The forward pass runs once, untimed.
///
/// # Errors
///
/// As [`time_forward`].
pub fn time_backward(
    workload: &Workload,
    device: &Device,
    repeats: &Repeats,
) -> Result<Timing, AttentionError> {
    let inputs = workload.inputs(device, SEED);
    let outputs = workload.forward(&inputs)?;
    let upstream = workload.upstream(device, SEED + 1);
    time(device, repeats, || {
        let gradients = workload.backward(&inputs, &outputs, &upstream)?;
        let additional = gradients.additional.map_or(vec![], |(key, value)| vec![key, value]);
        let all = [gradients.query, gradients.key, gradients.value].into_iter().chain(additional);
        Ok(all.map(|gradient| gradient.flatten(0, 3)).collect())
    })
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use std::time::Duration;

    use burn::tensor::{DType, Tensor};
    use burn_natten_kernels::{Axis, Problem};

    use super::*;
    use crate::{Context, Strategy};

    fn workload(axes: &[Axis], additional: usize) -> Workload {
        let problem = Problem::new(axes, 4, 8)
            .with_batch(2)
            .with_heads_kv(2)
            .with_head_dim_v(6)
            .with_additional(additional)
            .with_scale(0.3);
        let (strategy, context) = (Strategy::Auto, Context::current());
        Workload { problem, dtype: DType::F32, strategy, context }
    }

    fn quick(mode: Mode) -> Repeats {
        Repeats {
            warmup: 1,
            samples: 3,
            min_sample: Duration::from_millis(1),
            idle: Duration::from_millis(1),
            sustain: Duration::from_millis(20),
            ..Repeats::new(mode)
        }
    }

    fn axis(length: usize, kernel_size: usize, stride: usize, is_causal: bool) -> Axis {
        Axis::neighborhood(length, kernel_size).with_stride(stride).with_causal(is_causal)
    }

    #[test]
    fn every_rank_and_strategy_is_timed_in_both_passes() {
        let device = Device::flex();
        for (axes, additional, has_bias) in [
            (&[Axis::dense(9, 12, true)][..], 0, false),
            (&[axis(12, 3, 2, true)], 2, true),
            (&[axis(6, 3, 1, false), axis(5, 5, 2, false)], 0, false),
            (&[axis(6, 6, 1, false)], 0, true),
            (&[axis(4, 2, 1, true), axis(5, 3, 1, false), axis(4, 3, 3, false)], 3, true),
        ] {
            for strategy in [Strategy::Auto, Strategy::Reference] {
                let workload = workload(axes, additional);
                let problem = workload.problem.with_bias(has_bias);
                let workload = Workload { strategy, problem, ..workload };
                let repeats = quick(Mode::Burst);
                let forward = time_forward(&workload, &device, &repeats).expect("forward");
                let backward = time_backward(&workload, &device, &repeats).expect("backward");
                assert_eq!((forward.samples().len(), backward.samples().len()), (3, 3));
                assert!(forward.min() > Duration::ZERO && backward.min() > Duration::ZERO);
            }
        }
    }

    #[test]
    fn sustained_samples_follow_a_loop_that_warms_the_device() {
        let axes = [axis(6, 3, 1, false), axis(5, 3, 1, false)];
        let repeats = quick(Mode::Sustained);
        let start = std::time::Instant::now();
        let timing = time_forward(&workload(&axes, 0), &Device::flex(), &repeats).expect("forward");
        assert!(start.elapsed() >= repeats.sustain);
        assert!(timing.samples().len() >= 3 && timing.calls() >= timing.samples().len());
    }

    #[test]
    fn a_workload_that_cannot_run_is_an_error() {
        let axes = [axis(5, 7, 1, false)];
        let error = time_forward(&workload(&axes, 0), &Device::flex(), &quick(Mode::Burst));
        let error = error.expect_err("the window is larger than the axis");
        assert!(error.to_string().starts_with("kernel_size: axis 0 is 7, must be at most 5"));
    }

    /// What is timed as the backward pass is what autodiff computes.
    #[cfg(feature = "autodiff")]
    #[test]
    fn gradients_are_those_of_autodiff() {
        let apart = [axis(6, 3, 1, false), axis(5, 3, 2, true)];
        let full = [axis(6, 6, 1, false), axis(5, 5, 2, false)];
        for (axes, has_bias) in [(apart, false), (full, false), (apart, true), (full, true)] {
            let workload = workload(&axes, 2);
            let workload = Workload { problem: workload.problem.with_bias(has_bias), ..workload };
            let device = Device::flex();
            let (inputs, upstream) = (workload.inputs(&device, 1), workload.upstream(&device, 2));
            let outputs = workload.forward(&inputs).expect("forward");
            let gradients = workload.backward(&inputs, &outputs, &upstream).expect("backward");

            fn track<const D: usize>(tensor: Tensor<D>) -> Tensor<D> {
                let device = tensor.device().autodiff();
                Tensor::from_data(tensor.into_data(), &device).require_grad()
            }
            let constant = |outputs: Outputs| {
                let device = device.clone().autodiff();
                Outputs {
                    out: Tensor::from_data(outputs.out.into_data(), &device),
                    logsumexp: Tensor::from_data(outputs.logsumexp.into_data(), &device),
                }
            };
            let additional = inputs.additional.map(|(key, value)| (track(key), track(value)));
            let tracked = Inputs {
                query: track(inputs.query),
                key: track(inputs.key),
                value: track(inputs.value),
                additional,
                bias: inputs.bias.map(track),
            };
            let outputs = workload.forward(&tracked).expect("forward");
            let upstream = constant(upstream);
            let loss =
                (outputs.out * upstream.out).sum() + (outputs.logsumexp * upstream.logsumexp).sum();
            let tape = loss.backward();
            let (more_keys, more_values) = tracked.additional.expect("additional tokens");
            let (more_keys_grad, more_values_grad) = gradients.additional.expect("gradients");
            for (input, gradient) in [
                (tracked.query, gradients.query),
                (tracked.key, gradients.key),
                (tracked.value, gradients.value),
                (more_keys, more_keys_grad),
                (more_values, more_values_grad),
            ] {
                let expected = input.grad(&tape).expect("a gradient");
                assert!(expected.all_close(gradient, None, Some(1e-5)));
            }
            assert_eq!(tracked.bias.is_some(), has_bias);
            if let Some((bias, gradient)) = tracked.bias.zip(gradients.bias) {
                let expected = bias.grad(&tape).expect("a gradient");
                assert!(expected.all_close(gradient, None, Some(1e-5)));
            }
        }
    }
}
