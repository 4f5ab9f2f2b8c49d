//! Trains a language model of bytes with native sparse attention, or with dense attention, and lets it write.
//!
//! ```text
//! cargo run --release --example language_model -- train                    # on this crate's documentation
//! cargo run --release --example language_model -- train --text FILE --attention dense
//! cargo run --release --example language_model -- write --prompt "# What"
//! cargo run --release --example language_model -- compare                  # both, as sequences grow
//! ```
//!
//! The two models differ in nothing but how tokens attend to those before them. `--copies` trains on letters that come
//! again far behind: what is in no window has to be selected.

#[cfg(test)]
#[path = "../common/alone.rs"]
mod alone;
mod attention;
mod cli;
#[allow(dead_code, reason = "the examples share it, and each uses a part")]
#[path = "../common/mod.rs"]
mod common;
mod compare;
#[path = "../common/half.rs"]
mod half;
mod loader;
#[path = "../../src/bin/natten-profiler/memory.rs"]
mod memory;
mod model;
mod plot;
mod score;
#[cfg(test)]
mod tests;
mod text;
mod train;
mod write;

use std::ffi::OsString;
use std::process::ExitCode;

use cli::{Cli, Command};
use common::flags::{Parsed, parse};
use common::{Failure, finish};

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

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
        Command::Train(args) => train::run(&args),
        Command::Write(args) => write::run(&args),
        Command::Compare(args) => compare::run(&args),
    }
}
