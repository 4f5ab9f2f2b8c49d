//! Attention over a video on several devices: what they send each other, how long it takes, and whether it is right.
//!
//! ```text
//! cargo run --release --example context_parallel                                  # a small video, two members on the CPU
//! cargo run --release --features cuda --example context_parallel -- --hunyuan --devices cuda:0,cuda:1
//! ```

mod cli;
#[allow(dead_code, reason = "the examples share it, and each uses a part")]
#[path = "../common/mod.rs"]
mod common;
mod devices;
mod run;

use std::ffi::OsString;
use std::process::ExitCode;

use cli::Args;
use common::flags::{Parsed, parse};
use common::{Failure, finish};

fn main() -> ExitCode {
    finish(start(std::env::args_os()))
}

/// Does what a command line asks for.
fn start(arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<(), Failure> {
    let args: Args = match parse(arguments)? {
        Parsed::Run(args) => *args,
        Parsed::Text(text) => {
            print!("{text}");
            return Ok(());
        }
    };
    print!("{}", run::run(&args)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(flags: &[&str]) -> Result<String, String> {
        let arguments = ["context_parallel"].iter().chain(flags);
        let Ok(Parsed::Run(args)) = parse::<Args>(arguments) else {
            return Err(format!("{flags:?} are refused"));
        };
        run::run(&args).map(|report| report.to_string()).map_err(|failure| failure.to_string())
    }

    const TINY: [&str; 6] = ["--space", "4,5,9", "--window", "3,3,4", "--repeats", "1"];

    #[test]
    fn every_split_is_run_and_compared() {
        for split in ["auto", "heads", "halo"] {
            for devices in ["flex", "flex,flex", "flex,flex,flex,flex"] {
                let flags = ["--split", split, "--axis", "2", "--devices", devices];
                let text = report(&[&TINY[..], &flags].concat()).expect("runs");
                for part in ["4 x 5 x 9 tokens", "members", "sent", "forward", "speed-up"] {
                    assert!(text.contains(part), "{part}: {text}");
                }
            }
        }
        let text =
            report(&[&TINY[..], &["--split", "halo", "--axis", "2"]].concat()).expect("runs");
        assert!(text.contains("halo along axis 2") && text.contains("1 sends"), "{text}");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |flags: &[&str]| report(flags).expect_err("is to be refused");
        let text = refused(&["--devices", "tpu"]);
        assert_eq!(text, "--devices: 'tpu' is none of flex, cpu, cuda:N");
        let text = refused(&["--window", "3,3,100"]);
        assert!(text.starts_with("kernel_size: axis 2 is 100, must be at most "), "{text}");
        let text = refused(&["--heads", "3", "--split", "heads"]);
        assert_eq!(text, "heads of key: is 3, must be a multiple of 2 (members)");
        let text = refused(&["--space", "2,3"]);
        assert_eq!(text, "--space: has 2 numbers, must have 3");
    }
}
