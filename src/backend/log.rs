use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;

/// Passes that were computed by another tier than the one planned, because that one failed.
pub(crate) static FALLBACKS: AtomicU64 = AtomicU64::new(0);

/// Logs a warning, unless the same was logged before: every call of an operator comes here.
pub(crate) fn log_once(text: String) {
    static LOGGED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    let mut logged = LOGGED.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if !logged.contains(&text) {
        log::warn!("burn-natten: {text}");
        logged.insert(text);
    }
}
