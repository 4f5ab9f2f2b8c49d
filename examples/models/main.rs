//! Runs the models of the papers with weights from files.
//!
//! ```text
//! cargo run --release --features models --example models -- classify --help
//! cargo run --release --features models --example models -- fine-tune --help
//! cargo run --release --features models --example models -- sample --help
//! ```
//!
//! `classify` names what NAT, DiNAT or DiNAT_s sees in a picture, and draws what a layer attends to.
//! `fine-tune` trains one of them on a folder of pictures. `sample` lets an HDiT make pictures.

#[cfg(test)]
#[path = "../common/alone.rs"]
mod alone;
mod classifier;
mod classify;
mod cli;
#[path = "../common/mod.rs"]
mod common;
mod fine_tune;
#[path = "../common/half.rs"]
mod half;
mod look;
mod preparation;
mod recipe;
mod sample;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::process::ExitCode;

use cli::{Cli, Command};
use common::flags::{Parsed, parse};
use common::{Failure, finish};

fn main() -> ExitCode {
    finish(run(std::env::args_os()))
}

/// Does what a command line asks for.
fn run(arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<(), Failure> {
    let cli = match parse::<Cli>(arguments)? {
        Parsed::Run(cli) => cli,
        Parsed::Text(text) => {
            print!("{text}");
            return Ok(());
        }
    };
    match cli.command {
        Command::Classify(args) => classify::run(&args),
        Command::FineTune(args) => fine_tune::run(&args),
        Command::Sample(args) => sample::run(&args),
    }
}
