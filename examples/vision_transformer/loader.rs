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

/// Angle, in radians, that a picture is turned by at most.
const TURN: f32 = 0.2;
/// Part of its size that a picture grows or shrinks by at most.
const GROWTH: f32 = 0.1;
/// Part of its size that a picture is shifted by at most, along each axis.
const SHIFT: f32 = 0.08;

/// How a picture is moved before it is learned from.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Motion {
    /// In radians.
    turn: f32,
    growth: f32,
    /// Down and right, as parts of the side.
    shift: [f32; 2],
}

/// Normalizes pictures and, for training, moves them a little.
#[derive(Clone)]
pub struct PictureBatcher {
    side: usize,
    channels: usize,
    mean: f32,
    deviation: f32,
    motions: Option<Arc<Mutex<StdRng>>>,
}

impl PictureBatcher {
    /// Makes batches of pictures as they are.
    pub fn new(pictures: &Pictures) -> Self {
        let (mean, deviation) = pictures.moments();
        let (side, channels) = (pictures.side, pictures.channels);
        Self { side, channels, mean, deviation, motions: None }
    }

    /// Turns, scales and shifts pictures at random.
    pub fn with_motions(mut self, seed: u64) -> Self {
        self.motions = Some(Arc::new(Mutex::new(StdRng::seed_from_u64(seed))));
        self
    }

    fn motion(&self) -> Motion {
        let Some(motions) = &self.motions else {
            return Motion { turn: 0.0, growth: 1.0, shift: [0.0; 2] };
        };
        // A panic while the lock is held cannot leave the generator in a bad state.
        let mut rng = motions.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut up_to = |most: f32| rng.random_range(-most..=most);
        Motion {
            turn: up_to(TURN),
            growth: 1.0 + up_to(GROWTH),
            shift: [up_to(SHIFT), up_to(SHIFT)],
        }
    }

    /// Appends a picture after a motion.
    fn append(&self, picture: &Picture, motion: Motion, values: &mut Vec<f32>) {
        let (sin, cos) = motion.turn.sin_cos();
        let center = (self.side - 1) as f32 / 2.0;
        let [down, right] = motion.shift.map(|part| part * self.side as f32);
        for plane in picture.pixels.chunks(self.side * self.side) {
            for y in 0..self.side {
                for x in 0..self.side {
                    // Where this pixel was before the motion.
                    let (v, u) = (y as f32 - center - down, x as f32 - center - right);
                    let from_y = center + (cos * v + sin * u) / motion.growth;
                    let from_x = center + (cos * u - sin * v) / motion.growth;
                    let value = interpolate(plane, self.side, from_y, from_x);
                    values.push((value - self.mean) / self.deviation);
                }
            }
        }
    }
}

/// The value between the four nearest pixels; beyond the edge that of the edge.
fn interpolate(plane: &[f32], side: usize, y: f32, x: f32) -> f32 {
    let last = (side - 1) as f32;
    let (y, x) = (y.clamp(0.0, last), x.clamp(0.0, last));
    let (top, left) = (y as usize, x as usize);
    let (bottom, right) = ((top + 1).min(side - 1), (left + 1).min(side - 1));
    let along = |row: usize| {
        let part = x - left as f32;
        plane[row * side + left] * (1.0 - part) + plane[row * side + right] * part
    };
    let part = y - top as f32;
    along(top) * (1.0 - part) + along(bottom) * part
}

impl Batcher<Picture, Batch> for PictureBatcher {
    fn batch(&self, pictures: Vec<Picture>, device: &Device) -> Batch {
        let mut values = Vec::new();
        for picture in &pictures {
            self.append(picture, self.motion(), &mut values);
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
    fn motions_repeat_with_the_seed() {
        let pictures = pictures();
        let motions = |seed| {
            let batcher = PictureBatcher::new(&pictures).with_motions(seed);
            (0..50).map(|_| batcher.motion()).collect::<Vec<_>>()
        };
        assert_eq!(motions(4), motions(4));
        assert_ne!(motions(4), motions(5));
    }

    #[test]
    fn a_shift_by_a_pixel_moves_pixels_and_repeats_the_edge() {
        let pictures = pictures();
        let batcher =
            PictureBatcher { mean: 0.0, deviation: 1.0, ..PictureBatcher::new(&pictures) };
        let motion = Motion { turn: 0.0, growth: 1.0, shift: [0.125, 0.0] };
        let mut values = Vec::new();
        batcher.append(&pictures.train[0], motion, &mut values);
        let expected = (0..64).map(|pixel: i32| if pixel < 8 { pixel } else { pixel - 8 } as f32);
        assert_eq!(values, expected.collect::<Vec<_>>());
    }
}
