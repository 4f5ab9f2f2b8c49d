//! How each Burn backend computes the operators.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
#[cfg(feature = "cube")]
use std::sync::atomic::Ordering;

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
#[cfg(feature = "cube")]
mod tensor_core;

pub(crate) use dispatch::Plan;
pub(crate) use extension::{AdditionalKv, AttentionBackwardOps, AttentionOps};

/// Passes that were computed by another tier than the one planned, because that one failed.
pub(crate) static FALLBACKS: AtomicU64 = AtomicU64::new(0);

/// Says that `instead` computes a pass, since the planned tier cannot.
#[cfg(feature = "cube")]
pub(crate) fn degrade(instead: &str, error: &dyn std::error::Error) {
    FALLBACKS.fetch_add(1, Ordering::Relaxed);
    log_once(format!("using {instead}, because {error}"));
}

/// Logs a warning, unless the same was logged before: every call of an operator comes here.
pub(crate) fn log_once(text: String) {
    static LOGGED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut logged = LOGGED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if !logged.contains(&text) {
        log::warn!("burn-natten: {text}");
        logged.insert(text);
    }
}
