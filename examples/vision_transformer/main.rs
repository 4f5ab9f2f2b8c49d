//! Trains a vision transformer of neighborhood attention to classify pictures.
//!
//! `cargo run --release --example vision_transformer` trains on the 1,797 handwritten digits that
//! come with the sources, on the CPU, in about a minute. It ends with the accuracy on digits that
//! training never saw, a confusion matrix, the trained model, and a picture of what pixels attend
//! to. `-- --help` lists the flags; `-- --images DIR` trains on your own pictures.

mod cli;
mod data;
mod device;
mod folder;
mod loader;
mod model;
mod panels;
mod picture;
mod progress;
mod report;
mod run;
mod training;

use std::process::ExitCode;

/// Why the example stops. The text is one line and says what to change.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A flag is wrong, or does not fit the others.
    #[error("{0}")]
    Usage(String),
    /// A file, a device or the training failed.
    #[error("{0}")]
    Run(String),
}

fn main() -> ExitCode {
    let outcome = match cli::parse(std::env::args_os()) {
        Ok(cli::Parsed::Run(args)) => run::run(&args),
        Ok(cli::Parsed::Text(text)) => {
            print!("{text}");
            Ok(())
        }
        Err(failure) => Err(failure),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::from(if matches!(failure, Failure::Usage(_)) { 2 } else { 1 })
        }
    }
}
