use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor};

use crate::AttentionError;
use crate::backend::FALLBACKS;

/// The state of the device that a time holds for.
///
/// Large chips clock down under load, so that the two differ where power is the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Short batches, each after the device has idled.
    #[default]
    Burst,
    /// Batches back to back; those of the first half of the loop are not counted.
    Sustained,
}

/// How often a pass is run to time it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Repeats {
    /// Idle device or loaded device.
    pub mode: Mode,
    /// Untimed calls at the start, at least 1: kernels are compiled there.
    pub warmup: usize,
    /// Samples to take, at least 1. The sustained loop takes more if it is not over.
    pub samples: usize,
    /// Calls are batched until a sample lasts this long.
    pub min_sample: Duration,
    /// Time without work before each sample of a burst.
    pub idle: Duration,
    /// Least duration of a sustained loop.
    pub sustain: Duration,
    /// No warm-up call and no sample begins later than this after the first of its kind.
    pub limit: Duration,
}

impl Repeats {
    /// 3 warm-up calls, 7 samples of at least 10 ms, idling 0.5 s, sustained for 1 s, at most 20 s.
    pub const fn new(mode: Mode) -> Self {
        Self {
            mode,
            warmup: 3,
            samples: 7,
            min_sample: Duration::from_millis(10),
            idle: Duration::from_millis(500),
            sustain: Duration::from_secs(1),
            limit: Duration::from_secs(20),
        }
    }
}

impl Default for Repeats {
    fn default() -> Self {
        Self::new(Mode::default())
    }
}

/// Times of single calls, each the mean of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    /// In ascending order; not empty.
    samples: Vec<Duration>,
    calls: usize,
}

impl Timing {
    fn new(mut samples: Vec<Duration>, calls: usize) -> Self {
        samples.sort_unstable();
        Self { samples, calls }
    }

    /// Of calls that were timed one by one, by other means; `None` without any.
    pub fn of_calls(samples: Vec<Duration>) -> Option<Self> {
        let calls = samples.len();
        (calls > 0).then(|| Self::new(samples, calls))
    }

    /// All samples, in ascending order; at least one.
    pub fn samples(&self) -> &[Duration] {
        &self.samples
    }

    /// The median of the samples.
    pub fn median(&self) -> Duration {
        self.quantile(0.5)
    }

    /// The first and the third quartile, between samples where they do not fall on one.
    pub fn quartiles(&self) -> (Duration, Duration) {
        (self.quantile(0.25), self.quantile(0.75))
    }

    /// The fastest sample.
    pub fn min(&self) -> Duration {
        self.samples[0]
    }

    /// Number of timed calls in all samples together.
    pub fn calls(&self) -> usize {
        self.calls
    }

    fn quantile(&self, share: f64) -> Duration {
        let place = share * (self.samples.len() - 1) as f64;
        let below = self.samples[place.floor() as usize];
        let above = self.samples[place.ceil() as usize];
        below + (above - below).mul_f64(place.fract())
    }
}

/// Times `call`, which launches some work on the device and returns all that it computes.
///
/// # Errors
///
/// What `call` returns, or [`AttentionError::Execution`] if the device fails, if an output begins with what is not a number, or if a
/// selected tier failed and another one ran in its place.
pub fn time(
    device: &Device,
    repeats: &Repeats,
    mut call: impl FnMut() -> Result<Vec<Tensor<1>>, AttentionError>,
) -> Result<Timing, AttentionError> {
    let start = Instant::now();
    let fallbacks = fallbacks();
    let mut last = call()?;
    sync(device)?;
    if self::fallbacks() != fallbacks {
        let reason = "another tier ran than the one selected; the log says why".to_string();
        return Err(AttentionError::Execution { reason });
    }
    for _ in 1..repeats.warmup {
        if start.elapsed() > repeats.limit {
            break;
        }
        last = call()?;
        sync(device)?;
    }
    // Each result is kept until the next has been launched, as a model would.
    let mut batch = |calls: usize| -> Result<Duration, AttentionError> {
        sync(device)?;
        let start = Instant::now();
        for _ in 0..calls {
            last = call()?;
        }
        sync(device)?;
        Ok(start.elapsed())
    };
    let calls = batch_size(repeats, &mut batch)?;
    let samples = match repeats.mode {
        Mode::Burst => burst(repeats, calls, &mut batch)?,
        Mode::Sustained => sustained(repeats, calls, &mut batch)?,
    };
    touch(last)?;
    let calls = calls as u32;
    let timed = samples.len() * calls as usize;
    Ok(Timing::new(samples.into_iter().map(|sample| sample / calls).collect(), timed))
}

type Batch<'a> = dyn FnMut(usize) -> Result<Duration, AttentionError> + 'a;

/// Calls that together last at least [`Repeats::min_sample`].
fn batch_size(repeats: &Repeats, batch: &mut Batch<'_>) -> Result<usize, AttentionError> {
    const MOST: f64 = 1e6;
    let mut calls = 1;
    loop {
        let elapsed = batch(calls)?.max(Duration::from_nanos(1));
        if elapsed >= repeats.min_sample || calls as f64 >= MOST {
            return Ok(calls);
        }
        // A little more than the proportion asks for, so that this ends.
        let factor = 1.1 * repeats.min_sample.as_secs_f64() / elapsed.as_secs_f64();
        calls = (calls as f64 * factor).ceil().clamp(calls as f64 + 1.0, MOST) as usize;
    }
}

fn burst(
    repeats: &Repeats,
    calls: usize,
    batch: &mut Batch<'_>,
) -> Result<Vec<Duration>, AttentionError> {
    let start = Instant::now();
    let mut samples = vec![];
    while samples.is_empty() || (samples.len() < repeats.samples && start.elapsed() < repeats.limit)
    {
        std::thread::sleep(repeats.idle);
        // Wakes the device: the clock is not at its rate in the first microseconds.
        batch(1)?;
        samples.push(batch(calls)?);
    }
    Ok(samples)
}

fn sustained(
    repeats: &Repeats,
    calls: usize,
    batch: &mut Batch<'_>,
) -> Result<Vec<Duration>, AttentionError> {
    let start = Instant::now();
    let half = repeats.sustain / 2;
    while start.elapsed() < half {
        batch(calls)?;
    }
    let mut samples = vec![];
    while samples.is_empty()
        || start.elapsed() < repeats.sustain
        || (samples.len() < repeats.samples && start.elapsed() < repeats.limit)
    {
        samples.push(batch(calls)?);
    }
    Ok(samples)
}

fn fallbacks() -> u64 {
    FALLBACKS.load(Ordering::Relaxed)
}

pub(super) fn sync(device: &Device) -> Result<(), AttentionError> {
    device.sync().map_err(|error| AttentionError::Execution { reason: error.to_string() })
}

/// Reads from every output, so that none can have been left out.
fn touch(outputs: Vec<Tensor<1>>) -> Result<(), AttentionError> {
    for (index, output) in outputs.into_iter().enumerate() {
        let data = output
            .narrow(0, 0, 1)
            .try_into_data()
            .map_err(|error| AttentionError::Execution { reason: error.to_string() })?;
        if data.iter::<f64>().any(f64::is_nan) {
            let reason = format!("output {index} is not a number");
            return Err(AttentionError::Execution { reason });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(milliseconds: &[u64]) -> Timing {
        Timing::new(milliseconds.iter().copied().map(Duration::from_millis).collect(), 8)
    }

    #[test]
    fn quantiles_lie_between_samples() {
        let odd = timing(&[9, 1, 5, 3, 7]);
        assert_eq!(odd.median(), Duration::from_millis(5));
        assert_eq!(odd.quartiles(), (Duration::from_millis(3), Duration::from_millis(7)));
        assert_eq!(odd.min(), Duration::from_millis(1));
        let even = timing(&[4, 1, 2, 3]);
        assert_eq!(even.median(), Duration::from_micros(2500));
        assert_eq!(timing(&[6]).quartiles(), (Duration::from_millis(6), Duration::from_millis(6)));
        let of_calls = Timing::of_calls(odd.samples().iter().rev().copied().collect());
        assert_eq!(
            of_calls.map(|timing| (timing.median(), timing.calls())),
            Some((odd.median(), 5))
        );
        assert_eq!(Timing::of_calls(vec![]), None);
    }

    #[test]
    fn a_batch_lasts_as_long_as_asked() {
        let repeats = Repeats::default();
        let mut clock = |calls: usize| Ok(Duration::from_micros(30 + 7 * calls as u64));
        let calls = batch_size(&repeats, &mut clock).expect("a size");
        assert!(clock(calls).expect("a duration") >= repeats.min_sample);
        assert!(calls < 2000, "{calls} calls of 7 us");
    }
}
