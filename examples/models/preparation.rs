//! From pictures to what the models were trained on.
//!
//! The authors trained and tested with timm, whose defaults are: the shorter side resized to
//! `side / 0.875` by a bicubic filter (for models of 384 x 384, by their `crop_pct: 1.0`, to `side`), the middle
//! cut out, and red, green and blue from 0 to 1 less ImageNet's mean, divided by its deviation.

use burn::tensor::{Device, Tensor, TensorData};
use image::imageops::FilterType;
use image::{DynamicImage, GenericImageView};
use rand::Rng;

use crate::common::pictures::planes;

const MEAN: [f32; 3] = [0.485, 0.456, 0.406];
const DEVIATION: [f32; 3] = [0.229, 0.224, 0.225];

/// Bicubic with the same kernel as Pillow's, widened where a picture shrinks.
const FILTER: FilterType = FilterType::CatmullRom;

/// The most that a side is longer than the other before what lies at its ends is left out.
const LONGEST: u32 = 8;

/// The least part of a picture's area that a model learns from at a time.
const LEAST_AREA: f64 = 0.25;
/// The most that such a part is wider than high, or higher than wide.
const WIDEST: f64 = 4.0 / 3.0;
/// How often a part is drawn that may not lie inside of the picture.
const ATTEMPTS: usize = 10;

/// The middle of a picture, `side` x `side`, of the picture with a shorter side of `side * margin`.
pub fn middle(picture: &DynamicImage, side: usize, margin: f64) -> DynamicImage {
    let shorter = (side as f64 * margin).floor().max(side as f64) as u32;
    let picture = without_ends(picture);
    let (width, height) = picture.dimensions();
    let scaled = |length: u32| {
        (u64::from(length) * u64::from(shorter) / u64::from(width.min(height))) as u32
    };
    let (width, height) = (scaled(width), scaled(height));
    let resized = picture.resize_exact(width, height, FILTER);
    let side = side as u32;
    let before = |length: u32| (f64::from(length - side) / 2.0).round_ties_even() as u32;
    resized.crop_imm(before(width), before(height), side, side)
}

/// A picture whose longer side would be endless beside its shorter one, without its ends.
fn without_ends(picture: &DynamicImage) -> DynamicImage {
    let (width, height) = picture.dimensions();
    let most = width.min(height).saturating_mul(LONGEST);
    let [new_width, new_height] = [width, height].map(|length| length.min(most).max(1));
    let (x, y) = ((width - new_width) / 2, (height - new_height) / 2);
    picture.crop_imm(x, y, new_width, new_height)
}

/// A part of a picture at random, and mirrored half of the time.
pub fn part(picture: &DynamicImage, side: usize, rng: &mut impl Rng) -> DynamicImage {
    let (width, height) = picture.dimensions();
    let area = f64::from(width) * f64::from(height);
    let drawn = (0..ATTEMPTS).find_map(|_| {
        let area = area * rng.random_range(LEAST_AREA..=1.0);
        let ratio = rng.random_range(-WIDEST.ln()..=WIDEST.ln()).exp();
        let [w, h] = [(area * ratio).sqrt(), (area / ratio).sqrt()].map(|side| side.round() as u32);
        let fits = (1..=width).contains(&w) && (1..=height).contains(&h);
        fits.then(|| [rng.random_range(0..=width - w), rng.random_range(0..=height - h), w, h])
    });
    let part = match drawn {
        Some([x, y, w, h]) => picture.crop_imm(x, y, w, h),
        None => middle(picture, side, 1.0),
    };
    let part = part.resize_exact(side as u32, side as u32, FILTER);
    if rng.random_bool(0.5) { part.fliph() } else { part }
}

/// `[3, side, side]` in a row, normalized.
pub fn normalized(picture: &DynamicImage) -> Vec<f32> {
    let mut values = planes(picture);
    let pixels = values.len() / 3;
    for (index, value) in values.iter_mut().enumerate() {
        let channel = index / pixels;
        *value = (*value - MEAN[channel]) / DEVIATION[channel];
    }
    values
}

/// `[batch, 3, side, side]` of normalized pictures in a row, in the device's float type.
pub fn batch(values: Vec<f32>, side: usize, device: &Device) -> Tensor<4> {
    let count = values.len() / (3 * side * side);
    Tensor::from_data(TensorData::new(values, [count, 3, side, side]), device)
}

#[cfg(test)]
mod tests {
    use image::{Rgb, RgbImage};
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    use super::*;

    /// Red grows to the right, green downwards.
    fn ramp(width: u32, height: u32) -> DynamicImage {
        let part = |at: u32, length: u32| (at * 255 / (length - 1)) as u8;
        RgbImage::from_fn(width, height, |x, y| Rgb([part(x, width), part(y, height), 51])).into()
    }

    #[test]
    fn the_middle_is_cut_out() {
        let picture = middle(&ramp(256, 512), 224, 1.0 / 0.875).to_rgb8();
        assert_eq!(picture.dimensions(), (224, 224));
        // 16 pixels are cut off at the left, and 144 of 512 at the top.
        assert_eq!(picture.get_pixel(0, 0).0, [16, 71, 51]);
        assert_eq!(picture.get_pixel(223, 223).0, [239, 183, 51]);
        let whole = middle(&ramp(64, 64), 32, 1.0).to_rgb8();
        assert!(whole.get_pixel(0, 0).0[0] < 4 && whole.get_pixel(31, 0).0[0] > 251);
    }

    #[test]
    fn pictures_of_one_pixel_or_row_are_fine() {
        for (width, height) in [(1, 1), (1, 900), (900, 1), (3, 2)] {
            let picture = DynamicImage::new_rgb8(width, height);
            assert_eq!(middle(&picture, 16, 1.2).dimensions(), (16, 16));
            let mut rng = StdRng::seed_from_u64(3);
            assert_eq!(part(&picture, 16, &mut rng).dimensions(), (16, 16));
        }
    }

    #[test]
    fn pixels_are_normalized() {
        let gray = DynamicImage::from(RgbImage::from_pixel(2, 2, Rgb([255, 0, 51])));
        let values = normalized(&gray);
        let expected = [(1.0 - 0.485) / 0.229, -0.456 / 0.224, (0.2 - 0.406) / 0.225];
        for (channel, expected) in expected.into_iter().enumerate() {
            assert!(values[4 * channel..][..4].iter().all(|got| (got - expected).abs() < 1e-6));
        }
    }

    #[test]
    fn parts_repeat_with_the_seed() {
        let picture = ramp(40, 30);
        let parts = |seed| {
            let mut rng = StdRng::seed_from_u64(seed);
            (0..8).map(|_| part(&picture, 8, &mut rng).to_rgb8().into_raw()).collect::<Vec<_>>()
        };
        let first = parts(1);
        assert!(first == parts(1) && first != parts(2) && first[0] != first[1]);
    }
}
