//! Pictures between their pixels.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::data::{Picture, Pictures};

/// Pictures of mixed sizes grow by up to this factor along each axis.
const MOST_GROWTH: f32 = 1.5;

/// Gives each picture of the validation and of the test a size of its own, and those for training another one whenever they are seen.
pub fn mix_sizes(mut pictures: Pictures, seed: u64) -> Pictures {
    let mut rng = StdRng::seed_from_u64(seed);
    for picture in pictures.valid.iter_mut().chain(&mut pictures.test) {
        *picture = resized(picture, draw_size(picture.size, &mut rng));
    }
    pictures.is_resampled = true;
    pictures
}

/// From the size that a picture has to half as much more, along each axis.
pub fn draw_size(size: [usize; 2], rng: &mut StdRng) -> [usize; 2] {
    size.map(|length| rng.random_range(length..=(length as f32 * MOST_GROWTH) as usize))
}

/// Where place `index` of `to` is among `from` that cover the same length.
pub fn place(index: usize, from: usize, to: usize) -> f32 {
    (index as f32 + 0.5) * from as f32 / to as f32 - 0.5
}

/// The same picture with other pixels.
fn resized(picture: &Picture, size: [usize; 2]) -> Picture {
    let [height, width] = size;
    let mut pixels = Vec::with_capacity(picture.pixels.len() / picture.area() * height * width);
    for plane in picture.pixels.chunks(picture.area()) {
        for y in (0..height).map(|y| place(y, picture.size[0], height)) {
            let row = (0..width).map(|x| place(x, picture.size[1], width));
            pixels.extend(row.map(|x| interpolate(plane, picture.size, y, x)));
        }
    }
    Picture { pixels, size, class: picture.class }
}

/// The value between the four nearest pixels; beyond the edge that of the edge.
pub fn interpolate(plane: &[f32], [height, width]: [usize; 2], y: f32, x: f32) -> f32 {
    let (y, x) = (y.clamp(0.0, (height - 1) as f32), x.clamp(0.0, (width - 1) as f32));
    let (top, left) = (y as usize, x as usize);
    let (bottom, right) = ((top + 1).min(height - 1), (left + 1).min(width - 1));
    let along = |row: usize| {
        let part = x - left as f32;
        plane[row * width + left] * (1.0 - part) + plane[row * width + right] * part
    };
    let part = y - top as f32;
    along(top) * (1.0 - part) + along(bottom) * part
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{default_digits, digits};

    #[test]
    fn a_picture_grows_between_its_pixels() {
        let pixels = vec![0.0, 4.0, 8.0, 12.0];
        let picture = Picture { pixels, size: [2, 2], class: 3 };
        assert_eq!(resized(&picture, [2, 2]), picture);
        let grown = resized(&picture, [2, 4]);
        assert_eq!((grown.size, grown.class), ([2, 4], 3));
        assert_eq!(grown.pixels, [0.0, 1.0, 3.0, 4.0, 8.0, 9.0, 11.0, 12.0]);
    }

    #[test]
    fn sizes_are_drawn_by_the_seed() {
        let mixed = |seed| mix_sizes(digits(&default_digits()).expect("is there"), seed);
        let pictures = mixed(3);
        assert_eq!(pictures.test, mixed(3).test);
        assert_ne!(pictures.test, mixed(4).test);
        assert!(pictures.is_resampled && pictures.train[0].size == [8, 8]);
        let all = || pictures.valid.iter().chain(&pictures.test);
        for size in 8..=12 {
            assert!(all().any(|picture| picture.size[0] == size));
            assert!(all().any(|picture| picture.size[1] == size));
        }
        assert!(all().any(|picture| picture.size[0] != picture.size[1]));
        assert!(all().all(|picture| picture.size.iter().all(|side| (8..=12).contains(side))));
        assert!(all().all(|picture| picture.pixels.len() == picture.area()));
    }
}
