//! From texts to batches.
//!
//! What an epoch draws depends on the seed and on its number alone: a training that was continued sees what it would have seen.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::data::dataset::DatasetError;
use burn::tensor::{Device, Int, Tensor, TensorData};
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use crate::text::Text;

/// Bytes, and the one behind each.
#[derive(Clone, Debug)]
pub struct Batch {
    /// `[batch, tokens]`
    pub bytes: Tensor<2, Int>,
    /// `[batch, tokens]`
    pub next: Tensor<2, Int>,
}

/// How many bytes went through a training, and how long that took, without validation.
#[derive(Clone, Debug, Default)]
pub struct Clock(Arc<Mutex<(usize, Duration)>>);

impl Clock {
    fn add(&self, bytes: usize, time: Duration) {
        // A panic while the lock is held cannot leave numbers in a bad state.
        let mut sums = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        *sums = (sums.0 + bytes, sums.1 + time);
    }

    /// Bytes a second.
    pub fn speed(&self) -> f64 {
        let sums = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        sums.0 as f64 / sums.1.as_secs_f64().max(1e-9)
    }
}

/// Cuts a text into batches.
#[derive(Clone)]
pub struct Loader {
    text: Text,
    /// Numbers of its sequences.
    sequences: Range<usize>,
    batch_size: usize,
    device: Device,
    /// The seed of a random order; without one, sequences come as they are.
    seed: Option<u64>,
    epoch: Arc<AtomicUsize>,
    /// How fast the batches were used.
    pub clock: Clock,
}

impl Loader {
    /// `epoch` is that of the first pass.
    pub fn new(
        text: &Text,
        batch_size: usize,
        seed: Option<u64>,
        epoch: usize,
        device: &Device,
    ) -> Self {
        Self {
            text: text.clone(),
            sequences: 0..text.sequences(),
            batch_size,
            device: device.clone(),
            seed,
            epoch: Arc::new(AtomicUsize::new(epoch)),
            clock: Clock::default(),
        }
    }

    /// Steps of a pass.
    pub fn steps(&self) -> usize {
        self.sequences.len().div_ceil(self.batch_size)
    }

    fn batch(&self, sequences: &[usize], offset: usize) -> Batch {
        let shape = [sequences.len(), self.text.sequence - 1];
        let tensor = |from: usize| {
            let of = |number: &usize| &self.text.sequence(*number, offset)[from..][..shape[1]];
            let bytes = sequences.iter().flat_map(of).map(|byte| i64::from(*byte));
            Tensor::from_data(TensorData::new(bytes.collect(), shape), &self.device)
        };
        Batch { bytes: tensor(0), next: tensor(1) }
    }
}

impl DataLoader<Batch> for Loader {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<Batch> + 'a> {
        let epoch = self.epoch.fetch_add(1, Ordering::Relaxed);
        let mut order: Vec<usize> = self.sequences.clone().collect();
        let mut offset = 0;
        if let Some(seed) = self.seed {
            let mut bytes = [0; 32];
            bytes[..8].copy_from_slice(&seed.to_le_bytes());
            bytes[8..16].copy_from_slice(&(epoch as u64).to_le_bytes());
            let mut random = StdRng::from_seed(bytes);
            order.shuffle(&mut random);
            offset = random.random_range(0..self.text.offsets());
        }
        Box::new(Pass { loader: self, order, offset, done: 0, started: Instant::now() })
    }

    fn num_items(&self) -> usize {
        self.sequences.len()
    }

    fn to_device(&self, device: &Device) -> Arc<dyn DataLoader<Batch>> {
        Arc::new(Self { device: device.clone(), ..self.clone() })
    }

    fn slice(&self, start: usize, end: usize) -> Arc<dyn DataLoader<Batch>> {
        let first = self.sequences.start;
        let sequences = first + start..first + end;
        Arc::new(Self { sequences, ..self.clone() })
    }
}

/// A pass over all sequences.
struct Pass<'a> {
    loader: &'a Loader,
    order: Vec<usize>,
    offset: usize,
    done: usize,
    started: Instant,
}

impl Iterator for Pass<'_> {
    type Item = Result<Batch, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        let Loader { batch_size, device, text, clock, .. } = self.loader;
        let rest = &self.order[self.done..];
        if rest.is_empty() {
            // What is under way on the device belongs to the pass. What fails there is said where its result is read.
            let _ = device.sync();
            clock.add(self.done * (text.sequence - 1), self.started.elapsed());
            return None;
        }
        let sequences = &rest[..rest.len().min(*batch_size)];
        let batch = self.loader.batch(sequences, self.offset);
        self.done += sequences.len();
        Some(Ok(batch))
    }
}

impl DataLoaderIterator<Batch> for Pass<'_> {
    fn progress(&self) -> Progress {
        Progress::new(self.done, self.order.len(), Some("items".to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pass(loader: &Loader) -> Vec<Vec<i64>> {
        let read = |tensor: Tensor<2, Int>| -> Vec<i64> {
            tensor.into_data().convert::<i64>().try_to_vec().expect("is i64")
        };
        let of = |batch: Result<Batch, DatasetError>| {
            let batch = batch.expect("never fails");
            assert_eq!(batch.bytes.dims(), batch.next.dims());
            let (bytes, next) = (read(batch.bytes), read(batch.next));
            assert!(bytes.iter().zip(&next).all(|(byte, next)| byte + 1 == *next));
            bytes
        };
        loader.iter().map(of).collect()
    }

    #[test]
    fn the_epoch_decides_on_the_order_and_the_beginning() {
        let text = Text { bytes: (0..200u8).collect(), sequence: 11, is_running: true };
        let device = Device::flex();
        let loader = |epoch, seed| Loader::new(&text, 4, Some(seed), epoch, &device);
        let one = loader(0, 7);
        let (first, second) = (pass(&one), pass(&one));
        assert_eq!(first.len(), one.steps());
        assert!(first != second && first == pass(&loader(0, 7)));
        // As after a checkpoint of the first epoch.
        assert!(second == pass(&loader(1, 7)) && first != pass(&loader(0, 8)));
        let still = pass(&Loader::new(&text, 4, None, 0, &device)).concat();
        assert!(still.iter().copied().eq(0..still.len() as i64));
    }
}
