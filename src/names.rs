//! Names of the variants of an enum, as command lines and files have them.

/// A name that stands for nothing.
///
/// ```rust
/// use burn_natten::Strategy;
///
/// let error = "fast".parse::<Strategy>().expect_err("is none");
/// assert_eq!(
///     error.to_string(),
///     "'fast' is no strategy, must be among auto, reference, portable, tensor-core, hopper, blackwell"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{got}' is no {what}, must be among {known}")]
pub struct UnknownName {
    got: String,
    what: &'static str,
    known: String,
}

/// The value of this name.
pub(crate) fn find<T: Copy>(
    what: &'static str,
    got: &str,
    all: &[T],
    name: impl Fn(T) -> &'static str,
) -> Result<T, UnknownName> {
    all.iter().copied().find(|value| name(*value) == got).ok_or_else(|| {
        let known: Vec<_> = all.iter().map(|value| name(*value)).collect();
        UnknownName { got: got.to_string(), what, known: known.join(", ") }
    })
}
