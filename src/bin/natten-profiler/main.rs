//! How fast is my problem? Explains and measures the attention of one problem: what would run, what
//! bounds it, how long it takes on a device and which strategy is the fastest there.
//!
//! Results go to standard output, everything else to standard error. An error is one line, and the
//! exit status is 2 where the flags are at fault and 1 where the device is.

mod args;
mod commands;
mod device;
mod failure;
mod found;
mod measure;
mod memory;
mod passes;
mod print;
mod ragged;
mod request;
mod sharded;
mod sparse;
mod unfused;
mod units;
mod values;

use std::io::Write;
use std::process::ExitCode;

use args::Parsed;
use commands::{dry_run, list, optimize, plain};
use failure::Failure;
use request::Request;

#[global_allocator]
static ALLOCATOR: memory::Counting = memory::Counting;

/// Prints the library's warnings, such as that kernels could not run and tensor operations did.
struct Warnings;

impl log::Log for Warnings {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn && metadata.target().starts_with("burn_natten")
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            eprintln!("warning: {}", record.args());
        }
    }

    fn flush(&self) {}
}

fn main() -> ExitCode {
    if log::set_logger(&Warnings).is_ok() {
        log::set_max_level(log::LevelFilter::Warn);
    }
    match args::parse(std::env::args_os()).and_then(run) {
        Ok(text) => {
            // A reader that closes the pipe, such as `head`, has what it wants.
            let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
            ExitCode::SUCCESS
        }
        Err(Failure::Usage(text)) => {
            eprintln!("error: {text} (natten-profiler -h lists the flags)");
            ExitCode::from(2)
        }
        Err(Failure::Run(text)) => {
            eprintln!("error: {text}");
            ExitCode::FAILURE
        }
    }
}

/// What is to be printed.
fn run(parsed: Parsed) -> Result<String, Failure> {
    let args = match parsed {
        Parsed::Text(text) => return Ok(text),
        Parsed::Run(args) => *args,
    };
    if args.list {
        return Ok(list::run(args.json));
    }
    if let Some(job) = sparse::Job::find(&args)? {
        return sparse::run(&job, &args);
    }
    if let Some(job) = ragged::Job::find(&args)? {
        return ragged::run(&job, &args);
    }
    let request = Request::new(&args)?;
    if !args.devices.is_empty() {
        sharded::run(&request, &args)
    } else if args.unfused {
        unfused::run(&request, &args)
    } else if args.dry_run {
        dry_run::run(&request, &args)
    } else if args.optimize {
        optimize::run(&request, &args)
    } else {
        plain::run(&request, &args)
    }
}
