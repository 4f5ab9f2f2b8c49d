//! Pictures in folders, one folder for each class.

use std::fs;
use std::path::{Path, PathBuf};

use image::DynamicImage;

use super::Failure;

/// A class, and the files of its pictures.
#[derive(Clone, Debug, PartialEq)]
pub struct Class {
    /// The name of its folder.
    pub name: String,
    /// In the order of their names.
    pub files: Vec<PathBuf>,
}

/// The classes of `folder/<class>/*.png|jpg|jpeg`, at least two with at least `least` pictures each.
///
/// They come in the order of their names, so that a seed always means the same split.
pub fn classes(flag: &str, folder: &Path, least: usize) -> Result<Vec<Class>, Failure> {
    let usage = |folder: &Path, text: String| {
        Failure::Usage(format!("{flag} {}: {text}", folder.display()))
    };
    let entries = |folder: &Path| {
        entries(folder).map_err(|error| usage(folder, format!("cannot be read, {error}")))
    };
    let folders: Vec<_> = entries(folder)?.into_iter().filter(|path| path.is_dir()).collect();
    if folders.len() < 2 {
        let got = folders.len();
        return Err(usage(folder, format!("has {got} folders of classes, must have at least 2")));
    }
    let mut classes = Vec::with_capacity(folders.len());
    for folder in folders {
        let files: Vec<_> = entries(&folder)?.into_iter().filter(|path| is_picture(path)).collect();
        if files.len() < least {
            let got = files.len();
            return Err(usage(&folder, format!("has {got} pictures, must have at least {least}")));
        }
        classes.push(Class { name: name(&folder), files });
    }
    Ok(classes)
}

fn entries(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut paths = fs::read_dir(folder)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()?;
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

/// Reads a picture. What it is, its content says: a PNG that is called .jpg is common.
pub fn open(path: &Path) -> Result<DynamicImage, Failure> {
    image::ImageReader::open(path)
        .and_then(|reader| reader.with_guessed_format())
        .map_err(image::ImageError::from)
        .and_then(|reader| reader.decode())
        .map_err(|error| {
            let error = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
            Failure::Run(format!("{}: is no picture, {error}", path.display()))
        })
}

/// Red, green and blue one after the other, row by row, from 0 to 1.
pub fn planes(picture: &DynamicImage) -> Vec<f32> {
    let rgb = picture.to_rgb32f();
    (0..3).flat_map(|channel| rgb.pixels().map(move |pixel| pixel.0[channel])).collect()
}

/// Data sets for tests.
#[cfg(test)]
pub mod samples {
    use super::*;

    /// A folder with two classes of ten pictures, `dark` and `light`, removed when dropped.
    pub struct Sample(pub PathBuf);

    impl Sample {
        /// Writes the pictures, all of one color: gray, or with red and blue.
        pub fn new(name: &str, color: bool) -> Self {
            let root = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
            for (class, value) in [("dark", 40u8), ("light", 200u8)] {
                fs::create_dir_all(root.join(class)).expect("the temporary folder is writable");
                for index in 0..10u8 {
                    let shade = value + index;
                    let gray = image::GrayImage::from_pixel(9, 12, image::Luma([shade]));
                    let red = image::RgbImage::from_pixel(9, 12, image::Rgb([shade, 0, 255]));
                    let picture: DynamicImage = if color { red.into() } else { gray.into() };
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
}

#[cfg(test)]
mod tests {
    use super::samples::Sample;
    use super::*;

    #[test]
    fn classes_are_folders() {
        let sample = Sample::new("classes", true);
        let classes = classes("--images", &sample.0, 10).expect("is a data set");
        let names: Vec<_> = classes.iter().map(|class| class.name.as_str()).collect();
        assert_eq!(names, ["dark", "light"]);
        let picture = open(&classes[1].files[3]).expect("is a picture");
        let planes = planes(&picture);
        assert_eq!((planes.len(), planes[0], planes[9 * 12]), (324, 203.0 / 255.0, 0.0));
    }

    #[test]
    fn folders_that_are_no_data_set_are_refused() {
        let sample = Sample::new("refused", false);
        let text = |folder: &str, least| {
            let folder = sample.0.join(folder);
            let error = classes("--images", &folder, least).expect_err("is no data set");
            error.to_string()
        };
        assert!(text("dark", 1).ends_with("has 0 folders of classes, must have at least 2"));
        assert!(text("none", 1).contains("cannot be read"));
        assert!(text("", 11).ends_with("dark: has 10 pictures, must have at least 11"));
        fs::write(sample.0.join("dark/3.png"), "no picture").expect("is writable");
        let error = open(&sample.0.join("dark/3.png")).expect_err("is a text").to_string();
        assert!(error.contains("3.png: is no picture, ") && !error.contains('\n'), "{error}");
    }
}
