//! How each Burn backend computes the operators.

use std::collections::BTreeSet;
use std::sync::Mutex;

#[cfg(feature = "autodiff")]
mod autodiff;
#[cfg(feature = "cube")]
mod cube;
pub(crate) mod dispatch;
pub(crate) mod extension;
#[cfg(feature = "flex")]
mod flex;
#[cfg(feature = "cuda")]
pub(crate) mod hopper;
pub(crate) mod merge;
pub(crate) mod reference;

pub(crate) use dispatch::Plan;
pub(crate) use extension::{AdditionalKv, AttentionBackwardOps, AttentionOps};

/// Logs a warning, unless the same was logged before: every call of an operator comes here.
pub(crate) fn log_once(text: String) {
    static LOGGED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut logged = LOGGED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if !logged.contains(&text) {
        log::warn!("burn-natten: {text}");
        logged.insert(text);
    }
}
