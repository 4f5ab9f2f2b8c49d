//! From pictures to batches of tensors.

use std::sync::{Arc, Mutex};

use burn::data::dataloader::batcher::Batcher;
use burn::tensor::{Device, Int, Tensor, TensorData};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::data::{Picture, Pictures};

/// Pictures and their classes.
#[derive(Clone, Debug)]
pub struct Batch {
    /// `[batch, channels, side, side]`, normalized.
    pub images: Tensor<4>,
    /// `[batch]`.
    pub classes: Tensor<1, Int>,
}

/// Normalizes pictures and, for training, moves each by up to a pixel in 16.
#[derive(Clone)]
pub struct PictureBatcher {
    side: usize,
    channels: usize,
    mean: f32,
    deviation: f32,
    shifts: Option<Arc<Mutex<StdRng>>>,
}

impl PictureBatcher {
    /// Makes batches of pictures as they are.
    pub fn new(pictures: &Pictures) -> Self {
        let (mean, deviation) = pictures.moments();
        let (side, channels) = (pictures.side, pictures.channels);
        Self { side, channels, mean, deviation, shifts: None }
    }

    /// Moves pictures at random.
    pub fn with_shifts(mut self, seed: u64) -> Self {
        self.shifts = Some(Arc::new(Mutex::new(StdRng::seed_from_u64(seed))));
        self
    }

    fn shift(&self) -> (i32, i32) {
        let Some(shifts) = &self.shifts else {
            return (0, 0);
        };
        let reach = (self.side / 16).max(1) as i32;
        // A panic while the lock is held cannot leave the generator in a bad state.
        let mut rng = shifts.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        (rng.random_range(-reach..=reach), rng.random_range(-reach..=reach))
    }

    /// Appends a picture that is moved down and right; its edge fills the gap.
    fn append(&self, picture: &Picture, values: &mut Vec<f32>) {
        let (down, right) = self.shift();
        let last = self.side as i32 - 1;
        let from = |to: usize, by: i32| (to as i32 - by).clamp(0, last) as usize;
        for channel in 0..self.channels {
            for y in 0..self.side {
                let row = (channel * self.side + from(y, down)) * self.side;
                values.extend(
                    (0..self.side).map(|x| {
                        (picture.pixels[row + from(x, right)] - self.mean) / self.deviation
                    }),
                );
            }
        }
    }
}

impl Batcher<Picture, Batch> for PictureBatcher {
    fn batch(&self, pictures: Vec<Picture>, device: &Device) -> Batch {
        let mut values = Vec::new();
        for picture in &pictures {
            self.append(picture, &mut values);
        }
        let shape = [pictures.len(), self.channels, self.side, self.side];
        let classes: Vec<i64> = pictures.iter().map(|picture| picture.class as i64).collect();
        Batch {
            images: Tensor::from_data(TensorData::new(values, shape), device),
            classes: Tensor::from_data(TensorData::new(classes, [pictures.len()]), device),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pictures() -> Pictures {
        let picture = Picture { pixels: (0..64).map(|pixel| pixel as f32).collect(), class: 2 };
        Pictures {
            side: 8,
            channels: 1,
            classes: Vec::new(),
            train: vec![picture],
            valid: Vec::new(),
            test: Vec::new(),
        }
    }

    #[test]
    fn batches_are_normalized() {
        let pictures = pictures();
        let batch = PictureBatcher::new(&pictures).batch(pictures.train.clone(), &Device::flex());
        assert_eq!(batch.images.dims(), [1, 1, 8, 8]);
        let mean: f32 = batch.images.clone().mean().into_scalar();
        let square: f32 = batch.images.square().mean().into_scalar();
        assert!(mean.abs() < 1e-5 && (square - 1.0).abs() < 1e-4, "{mean} {square}");
    }

    #[test]
    fn shifts_stay_within_a_pixel_and_repeat_with_the_seed() {
        let pictures = pictures();
        let shifts = |seed| {
            let batcher = PictureBatcher::new(&pictures).with_shifts(seed);
            (0..50).map(|_| batcher.shift()).collect::<Vec<_>>()
        };
        assert_eq!(shifts(4), shifts(4));
        assert_ne!(shifts(4), shifts(5));
        assert!(shifts(4).iter().all(|(down, right)| down.abs() <= 1 && right.abs() <= 1));
    }
}
