//! The handwritten digits, and what a data set is here.

use std::fs::File;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use crate::Failure;

/// Sides of the digits in pixels.
const DIGIT_SIDE: usize = 8;
/// The value of full ink.
const DIGIT_INK: f32 = 16.0;
/// Digits for the test, as many as can be spared: one error is 0.2 %.
const DIGIT_TESTS: usize = 500;
/// The digits are always split the same way, so that a model is never tested on digits that
/// another run has trained it on.
const DIGIT_SPLIT: u64 = 1998;
/// One in this many pictures that are not for the test is for validation.
const VALIDATION: usize = 10;

/// A picture and its class.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    /// `[channels, height, width]`, from 0 to 1.
    pub pixels: Vec<f32>,
    /// Height and width.
    pub size: [usize; 2],
    /// Index of the class.
    pub class: usize,
}

impl Picture {
    /// Pixels of a channel.
    pub fn area(&self) -> usize {
        self.size[0] * self.size[1]
    }
}

/// Pictures for training, for watching it, and for judging its result.
#[derive(Debug)]
pub struct Pictures {
    /// Height and width that the model is made for: those of each picture, unless sizes are mixed.
    pub side: usize,
    /// 1 for gray, 3 for red, green and blue.
    pub channels: usize,
    /// Whether a picture gets another size whenever it is trained on.
    pub is_resampled: bool,
    /// Names of the classes.
    pub classes: Vec<String>,
    /// What the weights are fitted to.
    pub train: Vec<Picture>,
    /// What the progress report shows; nothing is selected by it.
    pub valid: Vec<Picture>,
    /// What is looked at once, at the end.
    pub test: Vec<Picture>,
}

impl Pictures {
    /// Mean and standard deviation of the training pixels.
    pub fn moments(&self) -> (f32, f32) {
        let pixels = || self.train.iter().flat_map(|picture| &picture.pixels).map(|p| *p as f64);
        let count = pixels().count().max(1) as f64;
        let mean = pixels().sum::<f64>() / count;
        let variance = pixels().map(|pixel| (pixel - mean).powi(2)).sum::<f64>() / count;
        // Pictures of one color have no deviation to divide by.
        (mean as f32, variance.sqrt().max(1e-3) as f32)
    }
}

/// The file of digits beside the sources.
pub fn default_digits() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/digits.csv.gz")
}

/// Reads the digits from a gzipped CSV file: 64 pixels from 0 to 16 and the digit on each line.
pub fn digits(path: &Path) -> Result<Pictures, Failure> {
    let fail = |text: String| Failure::Run(format!("{}: {text}", path.display()));
    let file = File::open(path).map_err(|error| fail(format!("cannot be read, {error}")))?;
    let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(GzDecoder::new(file));
    let mut pictures = Vec::new();
    for (index, record) in reader.records().enumerate() {
        let line = index + 1;
        let record = record.map_err(|error| fail(format!("is no gzipped CSV file, {error}")))?;
        pictures.push(digit(&record).map_err(|text| fail(format!("line {line}: {text}")))?);
    }
    if pictures.len() < 2 * DIGIT_TESTS {
        let (got, min) = (pictures.len(), 2 * DIGIT_TESTS);
        return Err(fail(format!("has {got} digits, must have at least {min}")));
    }
    pictures.shuffle(&mut StdRng::seed_from_u64(DIGIT_SPLIT));
    let test = pictures.split_off(pictures.len() - DIGIT_TESTS);
    let (train, valid) = keep_for_validation(pictures);
    let classes = (0..10).map(|digit| digit.to_string()).collect();
    Ok(Pictures { side: DIGIT_SIDE, channels: 1, is_resampled: false, classes, train, valid, test })
}

fn digit(record: &csv::StringRecord) -> Result<Picture, String> {
    let fields = DIGIT_SIDE * DIGIT_SIDE + 1;
    if record.len() != fields {
        return Err(format!("has {} fields, must have {fields}", record.len()));
    }
    let mut pixels = Vec::with_capacity(fields);
    for field in record {
        match field.trim().parse::<f32>() {
            Ok(value) if (0.0..=DIGIT_INK).contains(&value) => pixels.push(value / DIGIT_INK),
            _ => return Err(format!("has the pixel '{field}', must be 0 to {DIGIT_INK}")),
        }
    }
    pixels.truncate(fields - 1);
    match record[fields - 1].trim().parse::<usize>() {
        Ok(class) if class < 10 => Ok(Picture { pixels, size: [DIGIT_SIDE; 2], class }),
        _ => Err(format!("has the digit '{}', must be 0 to 9", &record[fields - 1])),
    }
}

/// `(train, valid)` of shuffled pictures.
pub fn keep_for_validation(mut pictures: Vec<Picture>) -> (Vec<Picture>, Vec<Picture>) {
    let valid = (pictures.len() / VALIDATION).max(1);
    let valid = pictures.split_off(pictures.len().saturating_sub(valid));
    (pictures, valid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digits_are_split_without_overlap() {
        let pictures = digits(&default_digits()).expect("the file is beside the sources");
        let sizes = [pictures.train.len(), pictures.valid.len(), pictures.test.len()];
        assert_eq!(sizes, [1168, 129, 500]);
        let seen = |picture| pictures.train.contains(picture) || pictures.valid.contains(picture);
        assert!(!pictures.test.iter().any(seen));
        for class in 0..10 {
            assert!(pictures.test.iter().filter(|picture| picture.class == class).count() > 30);
        }
    }

    #[test]
    fn digits_are_scaled_to_one() {
        let mut fields = vec!["0"; 65];
        (fields[1], fields[64]) = ("16", "7");
        let picture = digit(&csv::StringRecord::from(fields)).expect("is a digit");
        assert_eq!((picture.pixels.len(), picture.pixels[1], picture.class), (64, 1.0, 7));
    }

    #[test]
    fn bad_lines_say_what_is_wrong() {
        let refused = |fields: Vec<&str>| digit(&csv::StringRecord::from(fields)).unwrap_err();
        assert_eq!(refused(vec!["1", "2"]), "has 2 fields, must have 65");
        let mut fields = vec!["0"; 65];
        fields[3] = "17";
        assert_eq!(refused(fields.clone()), "has the pixel '17', must be 0 to 16");
        (fields[3], fields[64]) = ("1", "10");
        assert_eq!(refused(fields), "has the digit '10', must be 0 to 9");
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = digits(Path::new("no/such/file")).expect_err("there is none");
        assert!(error.to_string().starts_with("no/such/file: cannot be read"));
    }
}
