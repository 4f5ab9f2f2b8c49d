//! From files to batches, in several threads and always in the same order.
//!
//! What an epoch draws depends on the seed and on its number alone: a training that was continued
//! sees what it would have seen.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};

use burn::data::dataloader::{DataLoader, DataLoaderIterator, Progress};
use burn::data::dataset::DatasetError;
use burn::tensor::{Device, Tensor, TensorData};
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use super::learner::Batch;
use super::photos::Photo;
use crate::Failure;
use crate::common::pictures::open;
use crate::preparation::{batch, middle, normalized, part};

/// Batches that a thread has ready before it waits.
const READY: usize = 2;

/// What is taken of a picture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Way {
    /// A part of it, at random by this seed, in an order that is random, too.
    Parts(u64),
    /// Its middle, with this margin.
    Middle(f64),
}

impl Way {
    /// Whether it is random.
    pub fn is_training(self) -> bool {
        matches!(self, Self::Parts(_))
    }
}

/// Reads pictures.
#[derive(Clone)]
pub struct Loader {
    photos: Arc<Vec<Photo>>,
    way: Way,
    side: usize,
    batch_size: usize,
    workers: usize,
    device: Device,
    epoch: Arc<AtomicUsize>,
}

impl Loader {
    /// `sizes` are the side of a picture, the pictures of a batch and the number of threads; `epoch` is
    /// that of the first pass.
    pub fn new(
        photos: Vec<Photo>,
        way: Way,
        [side, batch_size, workers]: [usize; 3],
        epoch: usize,
        device: &Device,
    ) -> Self {
        let (photos, epoch) = (Arc::new(photos), Arc::new(AtomicUsize::new(epoch)));
        Self { photos, way, side, batch_size, workers, device: device.clone(), epoch }
    }

    /// Reads and prepares a picture of an epoch.
    fn prepare(&self, index: usize, epoch: usize) -> Result<Vec<f32>, Failure> {
        let picture = open(&self.photos[index].path)?;
        let picture = match self.way {
            Way::Parts(seed) => part(&picture, self.side, &mut rng(seed, epoch, index + 1)),
            Way::Middle(margin) => middle(&picture, self.side, margin),
        };
        Ok(normalized(&picture))
    }
}

/// Draws of an epoch: for its order with `place` 0, or for one of its pictures.
fn rng(seed: u64, epoch: usize, place: usize) -> StdRng {
    let mut bytes = [0; 32];
    for (number, value) in [seed, epoch as u64, place as u64].into_iter().enumerate() {
        bytes[8 * number..][..8].copy_from_slice(&value.to_le_bytes());
    }
    StdRng::from_seed(bytes)
}

/// What a thread sends: the values of a batch and its classes.
type Prepared = Result<(Vec<f32>, Vec<i64>), Failure>;

impl DataLoader<Batch> for Loader {
    fn iter<'a>(&'a self) -> Box<dyn DataLoaderIterator<Batch> + 'a> {
        let epoch = self.epoch.fetch_add(1, Ordering::Relaxed);
        let mut order: Vec<usize> = (0..self.photos.len()).collect();
        if let Way::Parts(seed) = self.way {
            order.shuffle(&mut rng(seed, epoch, 0));
            // What the model draws, for drop path, begins anew as well.
            self.device.seed(seed.wrapping_add(epoch as u64));
        }
        let order = Arc::new(order);
        let thread = |worker: usize| {
            let (sender, receiver) = sync_channel::<Prepared>(READY);
            let (loader, order) = (self.clone(), order.clone());
            std::thread::spawn(move || {
                let batches = order.chunks(loader.batch_size).skip(worker).step_by(loader.workers);
                for indices in batches {
                    let values = indices.iter().map(|index| loader.prepare(*index, epoch));
                    let values = values.collect::<Result<Vec<_>, _>>();
                    let class = |index: &usize| loader.photos[*index].class as i64;
                    let prepared =
                        values.map(|values| (values.concat(), indices.iter().map(class).collect()));
                    // Nobody waits for it when a training stops.
                    if sender.send(prepared).is_err() {
                        return;
                    }
                }
            });
            receiver
        };
        let receivers = (0..self.workers).map(thread).collect();
        Box::new(Pass { loader: self, receivers, batches: 0, done: 0 })
    }

    fn num_items(&self) -> usize {
        self.photos.len()
    }

    fn to_device(&self, device: &Device) -> Arc<dyn DataLoader<Batch>> {
        Arc::new(Self { device: device.clone(), ..self.clone() })
    }

    fn slice(&self, start: usize, end: usize) -> Arc<dyn DataLoader<Batch>> {
        let photos = Arc::new(self.photos[start..end].to_vec());
        Arc::new(Self { photos, ..self.clone() })
    }
}

/// A pass over all pictures: the threads take turns.
struct Pass<'a> {
    loader: &'a Loader,
    receivers: Vec<Receiver<Prepared>>,
    batches: usize,
    done: usize,
}

impl Iterator for Pass<'_> {
    type Item = Result<Batch, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done == self.loader.photos.len() {
            return None;
        }
        let worker = self.batches % self.receivers.len();
        self.batches += 1;
        let prepared = self.receivers[worker].recv().unwrap_or_else(|_| {
            Err(Failure::Run("a thread that reads pictures has ended early".into()))
        });
        Some(prepared.map_err(DatasetError::new).map(|(values, classes)| {
            self.done += classes.len();
            let device = &self.loader.device;
            let count = classes.len();
            Batch {
                images: batch(values, self.loader.side, device),
                classes: Tensor::from_data(TensorData::new(classes, [count]), device),
            }
        }))
    }
}

impl DataLoaderIterator<Batch> for Pass<'_> {
    fn progress(&self) -> Progress {
        Progress::new(self.done, self.loader.photos.len(), Some("items".to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::pictures::samples::Sample;

    fn loader(sample: &Sample, way: Way, workers: usize, epoch: usize) -> Loader {
        let photo = |index: usize| Photo {
            path: sample.0.join(format!("{}/{}.png", ["dark", "light"][index % 2], index / 2)),
            class: index % 2,
        };
        let photos = (0..19).map(photo).collect();
        Loader::new(photos, way, [4, 5, workers], epoch, &Device::flex())
    }

    fn pass(loader: &Loader) -> Vec<(Vec<f32>, Vec<i64>)> {
        let numbers = |batch: Result<Batch, DatasetError>| {
            let batch = batch.expect("all pictures are fine");
            let images = batch.images.into_data().try_to_vec().expect("is f32");
            let classes = batch.classes.into_data().convert::<i64>().try_to_vec();
            (images, classes.expect("is i64"))
        };
        loader.iter().map(numbers).collect()
    }

    #[test]
    fn the_number_of_threads_changes_nothing_and_the_epoch_does() {
        let _alone = crate::alone::alone();
        let sample = Sample::new("threads", true);
        let way = Way::Parts(7);
        let one = loader(&sample, way, 1, 0);
        let (first, second) = (pass(&one), pass(&one));
        assert_eq!(
            first.iter().map(|(_, classes)| classes.len()).collect::<Vec<_>>(),
            [5, 5, 5, 4]
        );
        assert!(first == pass(&loader(&sample, way, 3, 0)) && first != second);
        // As after a checkpoint of the first epoch.
        assert!(second == pass(&loader(&sample, way, 2, 1)));
        assert!(first != pass(&loader(&sample, Way::Parts(8), 1, 0)));
        let still = loader(&sample, Way::Middle(1.0), 2, 0);
        let classes: Vec<i64> = pass(&still).into_iter().flat_map(|(_, classes)| classes).collect();
        assert!(classes.into_iter().eq((0..19).map(|index| index % 2)));
    }

    #[test]
    fn a_bad_picture_ends_the_pass_with_its_name() {
        let sample = Sample::new("bad", false);
        std::fs::write(sample.0.join("light/2.png"), "no picture").expect("is writable");
        let loader = loader(&sample, Way::Middle(1.0), 2, 0);
        let error = loader.iter().find_map(Result::err).expect("one is bad").to_string();
        assert!(error.contains("light/2.png: is no picture, "), "{error}");
    }
}
