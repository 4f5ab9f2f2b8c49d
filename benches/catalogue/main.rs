//! The problems of `burn_natten_kernels::catalogue` on one device: times, rates and errors.
//!
//! ```sh
//! cargo bench --bench catalogue                                   # shrunk problems, on the CPU
//! cargo bench --bench catalogue --features cuda -- --device cuda --dtype bf16 --out NAME
//! cargo bench --bench catalogue -- --write-json catalogue.json    # for the peers in Python
//! ```
//!
//! Every row is checked against a float64 computation of a few dozen of its rows before it is
//! timed. `--out NAME` writes `NAME.csv` and `NAME.md`.
#![recursion_limit = "256"]

mod args;
mod device;
mod exact;
mod json;
mod log;
mod machine;
mod operator;
mod record;
mod rows;
mod run;
mod table;
mod verify;

use std::process::ExitCode;

use clap::Parser;

use crate::args::Args;

fn main() -> ExitCode {
    let args = Args::parse();
    let result = match &args.write_json {
        Some(path) => json::write(path),
        None => run::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::from(2)
        }
    }
}
