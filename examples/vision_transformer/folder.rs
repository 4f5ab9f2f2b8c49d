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

/// How the sizes of pictures become those that a model takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resize {
    /// To squares of this side.
    Squares(usize),
    /// In proportion, the longer side to this many pixels.
    Longer(usize),
}

/// Reads `folder/<class>/*.png|jpg|jpeg`, resizes the pictures, and splits each class by `seed`.
///
/// Pictures are gray if all files are, otherwise red, green and blue.
pub fn images(folder: &Path, resize: Resize, seed: u64) -> Result<Pictures, Failure> {
    let found = classes("--images", folder, LEAST)?;
    let mut decoded = Vec::with_capacity(found.len());
    for class in &found {
        let resized = |path: &PathBuf| Ok(resize.apply(&open(path)?));
        decoded.push(class.files.iter().map(resized).collect::<Result<Vec<_>, _>>()?);
    }
    let classes = found.into_iter().map(|class| class.name).collect();
    let is_gray = decoded.iter().flatten().all(|picture| !picture.color().has_color());
    let mut rng = StdRng::seed_from_u64(seed);
    let (mut rest, mut test) = (Vec::new(), Vec::new());
    for (class, pictures) in decoded.into_iter().enumerate() {
        let mut pictures: Vec<_> =
            pictures.into_iter().map(|picture| of_class(&picture, is_gray, class)).collect();
        pictures.shuffle(&mut rng);
        test.extend(pictures.split_off(pictures.len() - pictures.len() / TEST));
        rest.extend(pictures);
    }
    rest.shuffle(&mut rng);
    test.shuffle(&mut rng);
    let (train, valid) = keep_for_validation(rest);
    let (Resize::Squares(side) | Resize::Longer(side)) = resize;
    let channels = if is_gray { 1 } else { 3 };
    Ok(Pictures { side, channels, is_resampled: false, classes, train, valid, test })
}

impl Resize {
    fn apply(self, picture: &DynamicImage) -> DynamicImage {
        match self {
            Self::Squares(side) => {
                picture.resize_exact(side as u32, side as u32, FilterType::Triangle)
            }
            Self::Longer(side) => picture.resize(side as u32, side as u32, FilterType::Triangle),
        }
    }
}

fn of_class(picture: &DynamicImage, is_gray: bool, class: usize) -> Picture {
    let pixels = if is_gray { picture.to_luma32f().into_raw() } else { planes(picture) };
    Picture { pixels, size: [picture.height() as usize, picture.width() as usize], class }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::pictures::samples::Sample;

    #[test]
    fn classes_are_folders_and_a_fifth_is_for_the_test() {
        let sample = Sample::new("gray", false);
        let pictures = images(&sample.0, Resize::Squares(8), 3).expect("is a data set");
        assert_eq!((pictures.channels, pictures.side), (1, 8));
        assert_eq!(pictures.classes, ["dark", "light"]);
        assert_eq!([pictures.train.len(), pictures.valid.len(), pictures.test.len()], [15, 1, 4]);
        let light = pictures.test.iter().find(|picture| picture.class == 1).expect("one of each");
        assert!(light.pixels.len() == 64 && light.pixels[0] > 0.75);
        let again = images(&sample.0, Resize::Squares(8), 3).expect("is a data set");
        assert_eq!(again.test, pictures.test);
    }

    #[test]
    fn colors_are_planes() {
        let sample = Sample::new("color", true);
        let pictures = images(&sample.0, Resize::Squares(8), 3).expect("is a data set");
        assert_eq!(pictures.channels, 3);
        let pixels = &pictures.train[0].pixels;
        assert_eq!((pixels.len(), pixels[64], pixels[128]), (192, 0.0, 1.0));
    }

    #[test]
    fn proportions_are_kept_where_sizes_are_mixed() {
        // The samples are 9 wide and 12 high.
        let sample = Sample::new("tall", true);
        let pictures = images(&sample.0, Resize::Longer(16), 3).expect("is a data set");
        assert_eq!(pictures.side, 16);
        for picture in pictures.train.iter().chain(&pictures.test) {
            assert_eq!((picture.size, picture.pixels.len()), ([16, 12], 3 * 16 * 12));
        }
    }
}
