/// A field of a configuration that is out of its range: which one, its value and the bound.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub(super) String);

/// Ends a check with an error unless a condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::models::ConfigError(format!($($text)+)));
        }
    };
}

pub(super) use ensure;

/// As `init` does.
#[track_caller]
pub(super) fn or_panic(checked: Result<(), ConfigError>) {
    if let Err(error) = checked {
        panic!("{error}");
    }
}
