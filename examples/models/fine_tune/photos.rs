//! The pictures to train with, and those to validate with.

use std::path::PathBuf;

use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

use crate::Failure;
use crate::cli::FineTune;
use crate::common::pictures::{Class, classes};

/// One in this many pictures of a class is for validation, and one at least.
const VALIDATION: usize = 10;

/// A file with a picture, and its class. It is read when it is needed.
#[derive(Clone, Debug, PartialEq)]
pub struct Photo {
    /// The file.
    pub path: PathBuf,
    /// Index of the class.
    pub class: usize,
}

/// A data set.
#[derive(Debug)]
pub struct Photos {
    /// Names of the classes.
    pub classes: Vec<String>,
    /// What the weights are fitted to.
    pub train: Vec<Photo>,
    /// What they are judged by.
    pub valid: Vec<Photo>,
}

impl Photos {
    /// The pictures of the folders that the flags name.
    pub fn find(args: &FineTune) -> Result<Self, Failure> {
        // A class needs a picture to learn from and one to validate with.
        let least = if args.validation.is_some() { 1 } else { 2 };
        let mut found = classes("--images", &args.images, least)?;
        let names: Vec<_> = found.iter().map(|class| class.name.clone()).collect();
        let valid = match &args.validation {
            Some(folder) => {
                let valid = classes("--validation", folder, 1)?;
                if !valid.iter().map(|class| &class.name).eq(&names) {
                    let text = format!(
                        "--validation {}: has the classes {}, must have those of --images, {}",
                        folder.display(),
                        listed(valid.iter().map(|class| class.name.as_str())),
                        listed(names.iter().map(String::as_str))
                    );
                    return Err(Failure::Usage(text));
                }
                valid
            }
            None => held_out(&mut found, args.seed),
        };
        Ok(Self { classes: names, train: photos(found), valid: photos(valid) })
    }
}

/// Takes the pictures for validation out of each class.
fn held_out(found: &mut [Class], seed: u64) -> Vec<Class> {
    let mut rng = StdRng::seed_from_u64(seed);
    let take = |class: &mut Class| {
        class.files.shuffle(&mut rng);
        let count = (class.files.len() / VALIDATION).max(1);
        let files = class.files.split_off(class.files.len() - count);
        Class { name: class.name.clone(), files }
    };
    found.iter_mut().map(take).collect()
}

fn photos(classes: Vec<Class>) -> Vec<Photo> {
    let of_class = |(class, found): (usize, Class)| {
        found.files.into_iter().map(move |path| Photo { path, class })
    };
    classes.into_iter().enumerate().flat_map(of_class).collect()
}

/// The first few names.
fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    const MOST: usize = 5;
    let mut names: Vec<_> = names.take(MOST + 1).collect();
    if names.len() > MOST {
        names[MOST] = "..";
    }
    names.join(", ")
}
