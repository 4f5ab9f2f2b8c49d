use std::process::Command;

use crate::{Outcome, tools};

/// Runs the script that holds the checks.
pub fn run() -> Outcome {
    Ok(tools::run(&mut Command::new(tools::root().join(".ci/run")))?)
}
