use std::time::{Duration, Instant};

use burn::tensor::{DType, Device, Distribution, Tensor, TensorCreationOptions};

use super::timing::sync;
use crate::AttentionError;

/// Amounts of work, the next where one is over too soon to say much: the first for slow builds, the
/// last for GPUs.
struct Sizes<'a> {
    /// Sides of square matrices.
    matmul: &'a [usize],
    /// Bytes of the tensor that is read and written, beyond any cache.
    copy: &'a [usize],
}

const SIZES: Sizes<'_> = Sizes { matmul: &[256, 1024, 8192], copy: &[256 << 20, 1 << 30] };
/// Seconds; work that is over sooner does not fill the device.
const SHORT: f64 = 2e-3;
/// How long each rate is measured at least.
const SPAN: Duration = Duration::from_millis(200);

/// What a device reaches with simple work, as Burn runs it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Peaks {
    /// Bytes per second, read and written, of a pass over a tensor of 256 MiB, or of
    /// 1 GiB on a GPU; NaN if it failed.
    pub copy: f64,
    /// Floating-point operations per second of a product of square matrices in the dtype, which
    /// for f32 on CUDA is computed in TF32; NaN if it failed.
    pub matmul: f64,
}

/// Measures both rates of a device in `dtype`, the best of some hundred milliseconds each.
pub fn measure_peaks(device: &Device, dtype: DType) -> Peaks {
    measure(device, dtype, &SIZES)
}

fn measure(device: &Device, dtype: DType, sizes: &Sizes<'_>) -> Peaks {
    let or_nan = |rate: Result<f64, AttentionError>| {
        rate.unwrap_or_else(|error| {
            log::warn!("burn-natten: a peak could not be measured, {error}");
            f64::NAN
        })
    };
    Peaks { copy: or_nan(copy(device, dtype, sizes)), matmul: or_nan(matmul(device, dtype, sizes)) }
}

fn copy(device: &Device, dtype: DType, sizes: &Sizes<'_>) -> Result<f64, AttentionError> {
    escalate(sizes.copy, |bytes| {
        // Drawing as many numbers would take a CPU longer than the measurement.
        const DRAWN: usize = 1 << 20;
        let elements = (bytes / dtype.size()).next_multiple_of(DRAWN);
        let drawn: Tensor<1> = random([DRAWN], device, dtype);
        let mut tensor = Some(drawn.repeat(&[elements / DRAWN]));
        let seconds = best(device, || {
            // In place, so that no allocation is timed.
            tensor = tensor.take().map(|tensor| tensor.mul_scalar(-1.0));
        })?;
        Ok((2.0 * (elements * dtype.size()) as f64, seconds))
    })
}

fn matmul(device: &Device, dtype: DType, sizes: &Sizes<'_>) -> Result<f64, AttentionError> {
    escalate(sizes.matmul, |side| {
        let [left, right] = [(); 2].map(|_| random([side, side], device, dtype));
        let mut product: Tensor<2> = left.clone();
        let seconds = best(device, || product = left.clone().matmul(right.clone()))?;
        Ok((2.0 * (side as f64).powi(3), seconds))
    })
}

/// The rate at the first size that is not over too soon, or else at the last. `run` returns an
/// amount of work and the seconds it takes.
fn escalate(
    sizes: &[usize],
    run: impl Fn(usize) -> Result<(f64, f64), AttentionError>,
) -> Result<f64, AttentionError> {
    let mut rate = f64::NAN;
    for size in sizes {
        let (work, seconds) = run(*size)?;
        rate = work / seconds;
        if seconds >= SHORT {
            break;
        }
    }
    Ok(rate)
}

/// Seconds that `call` takes at best, over batches of calls.
fn best(device: &Device, mut call: impl FnMut()) -> Result<f64, AttentionError> {
    const BATCH: u32 = 4;
    call();
    sync(device)?;
    let start = Instant::now();
    let mut best = f64::INFINITY;
    while start.elapsed() < SPAN {
        let sample = Instant::now();
        for _ in 0..BATCH {
            call();
            // Keeps fusion from making one pass of several.
            device
                .flush()
                .map_err(|error| AttentionError::Execution { reason: error.to_string() })?;
        }
        sync(device)?;
        best = best.min(sample.elapsed().as_secs_f64() / f64::from(BATCH));
    }
    Ok(best)
}

fn random<const D: usize>(shape: [usize; D], device: &Device, dtype: DType) -> Tensor<D> {
    let options = TensorCreationOptions::new(device.clone()).with_dtype(dtype);
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), options)
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;

    /// No machine is slower or faster than this, caches included.
    #[test]
    fn peaks_are_plausible() {
        let sizes = Sizes { matmul: &[64, 128], copy: &[1 << 20, 4 << 20] };
        let Peaks { copy, matmul } = measure(&Device::flex(), DType::F32, &sizes);
        assert!((1e7..1e14).contains(&copy), "{copy:e} bytes/s");
        assert!((1e7..1e16).contains(&matmul), "{matmul:e} FLOP/s");
    }
}
