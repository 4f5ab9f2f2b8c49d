//! The program from its flags to its files, with small models.

mod classify;
mod fine_tune;
mod sample;

use std::path::Path;

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Distribution, Tensor};
use clap::Parser;

use crate::alone::Folder;
use crate::cli::Cli;
use crate::{Failure, run};

impl Folder {
    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let file = self.file(name);
        std::fs::write(&file, content).expect("the temporary folder is writable");
        file
    }
}

/// A file of the tests that the original models have written.
fn golden(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/models");
    folder.join(name).to_str().expect("is a text").to_owned()
}

fn flags<'a>(flags: &[&'a str]) -> Vec<&'a str> {
    [&["models"], flags].concat()
}

fn parsed(arguments: &[&str]) -> Cli {
    Cli::try_parse_from(flags(arguments)).expect("the flags are fine")
}

/// The text of a failure, which has to be one line, and whether it is one of the flags.
fn refused(arguments: &[&str]) -> (String, bool) {
    let failure = run(flags(arguments)).expect_err("is to be refused");
    let is_usage = matches!(failure, Failure::Usage(_));
    let text = failure.to_string();
    assert!(!text.contains('\n') && text.len() < 900, "{text}");
    (text, is_usage)
}

/// Gives all weights random values, those that start at zero as well.
fn shaken<M: Module>(model: M) -> M {
    struct Shake;
    impl ModuleMapper for Shake {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            param.map(|weights| {
                let noise = weights.random_like(Distribution::Normal(0.0, 0.2));
                weights + noise
            })
        }
    }
    model.map(&mut Shake)
}

#[test]
fn flags_are_checked() {
    for (arguments, parts) in [
        (&["classify"][..], &["--model", "--weights", "--picture"][..]),
        (&["nonsense"], &["nonsense"]),
        (&["sample", "--weights", "a", "--steps", "1"], &["--steps", "1", "from 2 to 10000"]),
        (&["sample", "--weights", "a", "--sampler", "euler"], &["euler", "dpmpp-2m, heun"]),
        (
            &["classify", "--model", "a", "--weights", "b", "--picture", "c", "--head", "1"],
            &["--attention"],
        ),
        (
            &["fine-tune", "--model", "a", "--weights", "b", "--images", "c", "--average", "1"],
            &["--average", "below 1"],
        ),
    ] {
        let (text, is_usage) = refused(arguments);
        assert!(is_usage && parts.iter().all(|part| text.contains(part)), "{text}");
    }
    for help in [&["--help"][..], &["classify", "--help"], &["fine-tune", "--help"], &[]] {
        run(flags(help)).expect("help is no error");
    }
}
