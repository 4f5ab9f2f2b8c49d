//! Pictures in folders, one folder for each class.

use std::path::{Path, PathBuf};

use image::DynamicImage;
use image::imageops::FilterType;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use crate::Failure;
use crate::common::pictures::{classes, open, planes};
use crate::data::{Picture, Pictures, keep_for_validation};

/// Of the pictures of a class, one in this many is for the test.
const TEST: usize = 5;
/// A class needs one picture for the test and a few to learn from.
const LEAST: usize = TEST;

/// Reads `folder/<class>/*.png|jpg|jpeg`, resized to `side`, and splits each class by `seed`.
///
/// Pictures are gray if all files are, otherwise red, green and blue.
pub fn images(folder: &Path, side: usize, seed: u64) -> Result<Pictures, Failure> {
    let found = classes("--images", folder, LEAST)?;
    let mut decoded = Vec::with_capacity(found.len());
    for class in &found {
        let resized = |path: &PathBuf| Ok(resize(&open(path)?, side));
        decoded.push(class.files.iter().map(resized).collect::<Result<Vec<_>, _>>()?);
    }
    let classes = found.into_iter().map(|class| class.name).collect();
    let is_gray = decoded.iter().flatten().all(|picture| !picture.color().has_color());
    let mut rng = StdRng::seed_from_u64(seed);
    let (mut rest, mut test) = (Vec::new(), Vec::new());
    for (class, pictures) in decoded.into_iter().enumerate() {
        let mut pictures: Vec<_> = pictures
            .into_iter()
            .map(|picture| Picture { pixels: pixels(&picture, is_gray), class })
            .collect();
        pictures.shuffle(&mut rng);
        test.extend(pictures.split_off(pictures.len() - pictures.len() / TEST));
        rest.extend(pictures);
    }
    rest.shuffle(&mut rng);
    test.shuffle(&mut rng);
    let (train, valid) = keep_for_validation(rest);
    Ok(Pictures { side, channels: if is_gray { 1 } else { 3 }, classes, train, valid, test })
}

fn resize(picture: &DynamicImage, side: usize) -> DynamicImage {
    picture.resize_exact(side as u32, side as u32, FilterType::Triangle)
}

/// `[channels, side, side]` from 0 to 1.
fn pixels(picture: &DynamicImage, is_gray: bool) -> Vec<f32> {
    if is_gray {
        return picture.to_luma32f().into_raw();
    }
    planes(picture)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::pictures::samples::Sample;

    #[test]
    fn classes_are_folders_and_a_fifth_is_for_the_test() {
        let sample = Sample::new("gray", false);
        let pictures = images(&sample.0, 8, 3).expect("is a data set");
        assert_eq!((pictures.channels, pictures.side), (1, 8));
        assert_eq!(pictures.classes, ["dark", "light"]);
        assert_eq!([pictures.train.len(), pictures.valid.len(), pictures.test.len()], [15, 1, 4]);
        let light = pictures.test.iter().find(|picture| picture.class == 1).expect("one of each");
        assert!(light.pixels.len() == 64 && light.pixels[0] > 0.75);
        let again = images(&sample.0, 8, 3).expect("is a data set");
        assert_eq!(again.test, pictures.test);
    }

    #[test]
    fn colors_are_planes() {
        let sample = Sample::new("color", true);
        let pictures = images(&sample.0, 8, 3).expect("is a data set");
        assert_eq!(pictures.channels, 3);
        let pixels = &pictures.train[0].pixels;
        assert_eq!((pixels.len(), pixels[64], pixels[128]), (192, 0.0, 1.0));
    }
}
