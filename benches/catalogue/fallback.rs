//! Notices when the library computes with another tier than the one selected, which it logs.

use std::sync::{Mutex, PoisonError};

static SEEN: Mutex<Option<String>> = Mutex::new(None);

struct Listener;

impl log::Log for Listener {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.target().starts_with("burn_natten") && metadata.level() <= log::Level::Warn
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            eprintln!("{}", record.args());
            *SEEN.lock().unwrap_or_else(PoisonError::into_inner) = Some(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// Starts listening.
pub fn listen() -> Result<(), String> {
    log::set_logger(&Listener).map_err(|error| error.to_string())?;
    log::set_max_level(log::LevelFilter::Warn);
    Ok(())
}

/// What has been logged so far. The library says each thing once, so it may hold for later rows.
pub fn seen() -> Option<String> {
    SEEN.lock().unwrap_or_else(PoisonError::into_inner).clone()
}
