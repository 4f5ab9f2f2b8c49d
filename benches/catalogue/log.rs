//! Prints what the library warns of, such as that it computes with another tier than usual.

struct Printer;

impl ::log::Log for Printer {
    fn enabled(&self, metadata: &::log::Metadata<'_>) -> bool {
        metadata.target().starts_with("burn_natten") && metadata.level() <= ::log::Level::Warn
    }

    fn log(&self, record: &::log::Record<'_>) {
        if self.enabled(record.metadata()) {
            eprintln!("{}", record.args());
        }
    }

    fn flush(&self) {}
}

/// Starts printing.
pub fn print() -> Result<(), String> {
    ::log::set_logger(&Printer).map_err(|error| error.to_string())?;
    ::log::set_max_level(::log::LevelFilter::Warn);
    Ok(())
}
