//! What the examples that train or run models have in common.

pub mod attention;
pub mod device;
pub mod flags;
pub mod panels;
pub mod pictures;
pub mod progress;
pub mod report;
pub mod runs;
pub mod training;

use std::process::ExitCode;

/// Why an example stops. The text is one line and says what to change.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A flag is wrong, or does not fit the others.
    #[error("{0}")]
    Usage(String),
    /// A file, a device or the training failed.
    #[error("{0}")]
    Run(String),
}

impl Failure {
    /// A file or folder that cannot be written.
    pub fn cannot_write(path: &std::path::Path, error: &dyn std::fmt::Display) -> Self {
        Self::Run(format!("{}: cannot be written, {error}", path.display()))
    }
}

/// Ends the program: 0, or with the failure on a line of stderr 2 for flags and 1 for the rest.
pub fn finish(outcome: Result<(), Failure>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {failure}");
            ExitCode::from(if matches!(failure, Failure::Usage(_)) { 2 } else { 1 })
        }
    }
}
