//! The chores of the workspace: `cargo xtask --help`.

mod check;
mod compare;
mod dependencies;
mod losses;
mod package;
mod pictures;
mod scratch;
mod tools;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// What a chore ends with; the error's text is for the terminal.
type Outcome = Result<(), Box<dyn std::error::Error>>;

/// The chores of the workspace.
#[derive(Parser, Debug)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand, Debug)]
enum Chore {
    /// Run everything that must hold before a change lands, as .ci/run does
    Check,
    /// Hold licences, sources and versions of all dependencies to deny.toml
    Dependencies,
    /// Draw the pictures in docs/pictures again
    Pictures,
    /// Make the packages that crates.io would get, check what is in them, and train with them
    Package(package::Flags),
    /// Join results of benches and peers into a table and plots
    Compare(compare::Flags),
    /// Draw losses of training steps
    Losses(losses::Flags),
    /// Train the README's example in a crate of its own, outside the workspace
    Scratch,
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().chore {
        Chore::Check => check::run(),
        Chore::Dependencies => dependencies::run(),
        Chore::Pictures => pictures::run(),
        Chore::Package(flags) => package::run(&flags),
        Chore::Compare(flags) => compare::run(&flags),
        Chore::Losses(flags) => losses::run(&flags),
        Chore::Scratch => scratch::run(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
