//! What goes wrong.

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The flags are at fault.
    #[error("{0}")]
    Usage(String),
    /// The device is.
    #[error("{0}")]
    Run(String),
}
