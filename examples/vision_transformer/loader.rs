//! From pictures to batches of tensors.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use burn::data::dataloader::batcher::Batcher;
use burn::tensor::{Device, Int, Tensor, TensorData};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::data::{Picture, Pictures};
use crate::members::Together;
use crate::resample::{draw_size, interpolate, place};
use crate::tokens::Tokens;

/// Pictures and their classes. Those of the same size are neighbors.
#[derive(Clone, Debug)]
pub struct Batch {
    /// A token for each pixel, normalized.
    pub images: Tokens,
    /// `[batch]`.
    pub classes: Tensor<1, Int>,
    /// Where each picture stood in the list that the batch was made of.
    pub order: Vec<usize>,
    /// Who else trains on a share of the same batch.
    pub together: Together,
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
    /// Down and right, as parts of height and width.
    shift: [f32; 2],
    /// Height and width afterwards.
    size: [usize; 2],
}

/// Puts pictures of any size one behind the other, normalized and, for training, moved a little.
#[derive(Clone)]
pub struct PictureBatcher {
    mean: f32,
    deviation: f32,
    is_resampled: bool,
    motions: Option<Arc<Mutex<StdRng>>>,
    together: Together,
}

impl PictureBatcher {
    /// Makes batches of pictures as they are.
    pub fn new(pictures: &Pictures) -> Self {
        let (mean, deviation) = pictures.moments();
        let (is_resampled, together) = (pictures.is_resampled, Together::of(1));
        Self { mean, deviation, is_resampled, motions: None, together }
    }

    /// Makes the shares of so many devices.
    pub fn with_members(mut self, members: usize) -> Self {
        self.together = Together::of(members);
        self
    }

    /// Turns, scales and shifts pictures at random, and gives them another size where sizes are mixed.
    pub fn with_motions(mut self, seed: u64) -> Self {
        self.motions = Some(Arc::new(Mutex::new(StdRng::seed_from_u64(seed))));
        self
    }

    fn motion(&self, size: [usize; 2]) -> Motion {
        let Some(motions) = &self.motions else {
            return Motion { turn: 0.0, growth: 1.0, shift: [0.0; 2], size };
        };
        // A panic while the lock is held cannot leave the generator in a bad state.
        let mut rng = motions.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let size = if self.is_resampled { draw_size(size, &mut rng) } else { size };
        let mut up_to = |most: f32| rng.random_range(-most..=most);
        Motion {
            turn: up_to(TURN),
            growth: 1.0 + up_to(GROWTH),
            shift: [up_to(SHIFT), up_to(SHIFT)],
            size,
        }
    }

    /// Appends a picture after a motion: pixel by pixel, the channels of each.
    fn append(&self, picture: &Picture, motion: Motion, values: &mut Vec<f32>) {
        let (sin, cos) = motion.turn.sin_cos();
        let center = picture.size.map(|length| (length - 1) as f32 / 2.0);
        let along = |axis: usize, index: usize| {
            let shift = motion.shift[axis] * picture.size[axis] as f32;
            place(index, picture.size[axis], motion.size[axis]) - center[axis] - shift
        };
        for v in (0..motion.size[0]).map(|y| along(0, y)) {
            for u in (0..motion.size[1]).map(|x| along(1, x)) {
                // Where this pixel was before the motion.
                let from_y = center[0] + (cos * v + sin * u) / motion.growth;
                let from_x = center[1] + (cos * u - sin * v) / motion.growth;
                for plane in picture.pixels.chunks(picture.area()) {
                    let value = interpolate(plane, picture.size, from_y, from_x);
                    values.push((value - self.mean) / self.deviation);
                }
            }
        }
    }
}

impl Batcher<Picture, Batch> for PictureBatcher {
    fn batch(&self, pictures: Vec<Picture>, device: &Device) -> Batch {
        let all = 0..pictures.len();
        self.part(&pictures, all, device)
    }
}

impl PictureBatcher {
    /// Some pictures of a batch, moved as they are in the whole of it.
    pub fn part(&self, pictures: &[Picture], part: Range<usize>, device: &Device) -> Batch {
        let motions: Vec<_> = pictures.iter().map(|picture| self.motion(picture.size)).collect();
        let (pictures, motions) = (&pictures[part.clone()], &motions[part]);
        let mut order: Vec<usize> = (0..pictures.len()).collect();
        order.sort_by_key(|index| motions[*index].size);
        let (mut values, mut sizes, mut classes) = (Vec::new(), Vec::new(), Vec::<i64>::new());
        for index in &order {
            let (picture, motion) = (&pictures[*index], motions[*index]);
            self.append(picture, motion, &mut values);
            sizes.push(motion.size);
            classes.push(picture.class as i64);
        }
        Batch {
            images: Tokens::from_pixels(values, sizes, device),
            classes: Tensor::from_data(TensorData::new(classes, [pictures.len()]), device),
            order,
            together: self.together.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pictures() -> Pictures {
        let pixels = (0..64).map(|pixel| pixel as f32).collect();
        let picture = Picture { pixels, size: [8, 8], class: 2 };
        Pictures {
            side: 8,
            channels: 1,
            is_resampled: false,
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
        let values = batch.images.values();
        assert_eq!((batch.images.sizes(), values.dims()), (&[[8, 8]][..], [1, 64, 1]));
        let mean: f32 = values.clone().mean().into_scalar();
        let square: f32 = values.square().mean().into_scalar();
        assert!(mean.abs() < 1e-5 && (square - 1.0).abs() < 1e-4, "{mean} {square}");
    }

    fn plain() -> PictureBatcher {
        let together = Together::of(1);
        PictureBatcher { mean: 0.0, deviation: 1.0, is_resampled: false, motions: None, together }
    }

    /// Two channels, the second of them negative.
    fn of_size(size: [usize; 2], class: usize) -> Picture {
        let area = size[0] * size[1];
        let pixels = (0..area).map(|pixel| pixel as f32);
        let pixels = pixels.clone().chain(pixels.map(|pixel| -pixel)).collect();
        Picture { pixels, size, class }
    }

    #[test]
    fn nothing_is_padded_and_equal_sizes_are_neighbors() {
        let batcher = plain();
        let sizes = [[9, 2], [1, 5], [9, 2], [3, 4], [1, 5]];
        let pictures: Vec<_> = (0..5).map(|index| of_size(sizes[index], index)).collect();
        let batch = batcher.batch(pictures.clone(), &Device::flex());
        assert_eq!(batch.images.sizes(), [[1, 5], [1, 5], [3, 4], [9, 2], [9, 2]]);
        assert_eq!(batch.order, [1, 4, 3, 0, 2]);
        let classes: Vec<i64> =
            batch.classes.into_data().convert::<i64>().try_to_vec().expect("is i64");
        assert_eq!(classes, [1, 4, 3, 0, 2]);

        let values = batch.images.values();
        assert_eq!(values.dims(), [1, 5 + 5 + 12 + 18 + 18, 2]);
        let values: Vec<f32> = values.into_data().try_to_vec().expect("is f32");
        let pixels = |size: &[usize; 2]| 0..size[0] * size[1];
        let expected = batch.images.sizes().iter().flat_map(pixels);
        let expected: Vec<f32> =
            expected.flat_map(|pixel| [pixel as f32, -(pixel as f32)]).collect();
        assert_eq!(values, expected);
    }

    #[test]
    fn batches_repeat_with_the_seed() {
        let pictures: Vec<_> = [[6, 9], [8, 8], [6, 9]].map(|size| of_size(size, 0)).to_vec();
        let batch = |seed| {
            let batcher = PictureBatcher { is_resampled: true, ..plain() }.with_motions(seed);
            let batch = batcher.batch(pictures.clone(), &Device::flex());
            let values = batch.images.values().into_data().try_to_vec::<f32>().expect("is f32");
            (batch.images.sizes().to_vec(), values)
        };
        let (sizes, values) = batch(4);
        assert_eq!((sizes.clone(), values.clone()), batch(4));
        let (others, other_values) = batch(5);
        assert!(sizes != others && values != other_values);
        let pixels: usize = sizes.iter().map(|[height, width]| height * width).sum();
        assert_eq!(values.len(), 2 * pixels);
        assert!(sizes.is_sorted() && sizes != [[6, 9], [6, 9], [8, 8]], "{sizes:?}");
    }

    #[test]
    fn motions_repeat_with_the_seed() {
        let pictures = pictures();
        let motions = |seed| {
            let batcher = PictureBatcher::new(&pictures).with_motions(seed);
            (0..50).map(|_| batcher.motion([8, 8])).collect::<Vec<_>>()
        };
        assert_eq!(motions(4), motions(4));
        assert_ne!(motions(4), motions(5));
    }

    #[test]
    fn a_shift_by_a_pixel_moves_pixels_and_repeats_the_edge() {
        let pictures = pictures();
        let batcher = plain();
        let motion = Motion { turn: 0.0, growth: 1.0, shift: [0.125, 0.0], size: [8, 8] };
        let mut values = Vec::new();
        batcher.append(&pictures.train[0], motion, &mut values);
        let expected = (0..64).map(|pixel: i32| if pixel < 8 { pixel } else { pixel - 8 } as f32);
        assert_eq!(values, expected.collect::<Vec<_>>());
    }
}
