//! Pictures in folders, one folder for each class.

use std::fs;
use std::path::{Path, PathBuf};

use image::DynamicImage;
use image::imageops::FilterType;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use crate::Failure;
use crate::data::{Picture, Pictures, keep_for_validation};

/// Of the pictures of a class, one in this many is for the test.
const TEST: usize = 5;
/// A class needs one picture for the test and a few to learn from.
const LEAST: usize = TEST;

/// Reads `folder/<class>/*.png|jpg|jpeg`, resized to `side`, and splits each class by `seed`.
///
/// Pictures are gray if all files are, otherwise red, green and blue.
pub fn images(folder: &Path, side: usize, seed: u64) -> Result<Pictures, Failure> {
    let folders: Vec<_> = entries(folder)?.into_iter().filter(|path| path.is_dir()).collect();
    if folders.len() < 2 {
        let (folder, got) = (folder.display(), folders.len());
        let text = format!("--images {folder}: has {got} folders of classes, must have at least 2");
        return Err(Failure::Usage(text));
    }
    let (mut classes, mut decoded) = (Vec::new(), Vec::new());
    for folder in folders {
        let mut pictures = Vec::new();
        for path in entries(&folder)?.into_iter().filter(|path| is_picture(path)) {
            pictures.push(decode(&path, side)?);
        }
        if pictures.len() < LEAST {
            let (folder, got) = (folder.display(), pictures.len());
            let text = format!("--images {folder}: has {got} pictures, must have at least {LEAST}");
            return Err(Failure::Usage(text));
        }
        classes.push(name(&folder));
        decoded.push(pictures);
    }
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

/// What is in a folder, by name, so that a seed always means the same split.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let fail =
        |error| Failure::Usage(format!("--images {}: cannot be read, {error}", folder.display()));
    let mut paths = fs::read_dir(folder)
        .map_err(fail)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()
        .map_err(fail)?;
    paths.retain(|path| !name(path).starts_with('.'));
    paths.sort();
    Ok(paths)
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn is_picture(path: &Path) -> bool {
    let extension = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
    path.is_file() && ["png", "jpg", "jpeg"].contains(&extension.as_str())
}

fn decode(path: &Path, side: usize) -> Result<DynamicImage, Failure> {
    // By content, since a PNG that is called .jpg is common.
    let picture = image::ImageReader::open(path)
        .and_then(|reader| reader.with_guessed_format())
        .map_err(image::ImageError::from)
        .and_then(|reader| reader.decode())
        .map_err(|error| Failure::Run(format!("{}: is no picture, {error}", path.display())))?;
    Ok(picture.resize_exact(side as u32, side as u32, FilterType::Triangle))
}

/// `[channels, side, side]` from 0 to 1.
fn pixels(picture: &DynamicImage, is_gray: bool) -> Vec<f32> {
    if is_gray {
        return picture.to_luma32f().into_raw();
    }
    let rgb = picture.to_rgb32f();
    (0..3).flat_map(|channel| rgb.pixels().map(move |pixel| pixel.0[channel])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with two classes of ten pictures, removed when dropped.
    struct Sample(PathBuf);

    impl Sample {
        fn new(name: &str, color: bool) -> Self {
            let root = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
            for (class, value) in [("dark", 40u8), ("light", 200u8)] {
                fs::create_dir_all(root.join(class)).expect("the temporary folder is writable");
                for index in 0..10u8 {
                    let shade = value + index;
                    let picture = if color {
                        DynamicImage::from(image::RgbImage::from_pixel(
                            9,
                            12,
                            image::Rgb([shade, 0, 255]),
                        ))
                    } else {
                        DynamicImage::from(image::GrayImage::from_pixel(
                            9,
                            12,
                            image::Luma([shade]),
                        ))
                    };
                    let path = root.join(class).join(format!("{index}.png"));
                    picture.save(path).expect("is writable");
                }
            }
            Self(root)
        }
    }

    impl Drop for Sample {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

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

    #[test]
    fn a_folder_without_classes_is_refused() {
        let sample = Sample::new("empty", false);
        let error = images(&sample.0.join("dark"), 8, 3).expect_err("has no folders");
        assert!(error.to_string().ends_with("has 0 folders of classes, must have at least 2"));
        let error = images(&sample.0.join("none"), 8, 3).expect_err("does not exist");
        assert!(error.to_string().contains("cannot be read"));
    }
}
