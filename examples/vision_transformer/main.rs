//! Trains a vision transformer of neighborhood attention to classify pictures.
//!
//! `cargo run --release --example vision_transformer` trains on the 1,797 handwritten digits that
//! come with the sources, on the CPU, in about a minute. It ends with the accuracy on digits that
//! training never saw, a confusion matrix, the trained model, and a picture of what pixels attend
//! to. `-- --help` lists the flags; `-- --images DIR` trains on your own pictures, and
//! `-- --mixed-sizes` on pictures of different sizes in one batch, without padding.
//! On a GPU, `--features cuda,optim -- --device cuda --dtype bf16` has an optimizer that trains in
//! half types.

#[cfg(test)]
#[path = "../common/alone.rs"]
mod alone;
mod cli;
#[path = "../common/mod.rs"]
mod common;
mod data;
mod folder;
mod loader;
mod losses;
mod members;
mod model;
mod picture;
mod positions;
mod resample;
mod run;
mod tokens;
mod training;

use std::process::ExitCode;

use cli::Args;
use common::flags::{Parsed, parse};
use common::{Failure, finish};

/// The system's own may be what a step waits for: each launch is made by one thread and freed by another.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    finish(match parse::<Args>(std::env::args_os()) {
        Ok(Parsed::Run(args)) => run::run(&args),
        Ok(Parsed::Text(text)) => {
            print!("{text}");
            Ok(())
        }
        Err(failure) => Err(failure),
    })
}
