//! The command-line tool, run as users run it.

mod dry_run;
mod errors;
mod flags;
mod measuring;
mod ragged;
mod sharded;
mod sparse;
mod unfused;

use std::process::Command;

use serde_json::Value;

/// What a run of the tool comes to.
struct Run {
    status: Option<i32>,
    stdout: String,
    stderr: String,
}

/// Runs the tool with flags that are separated by spaces.
fn profiler(flags: &str) -> Run {
    let output = Command::new(env!("CARGO_BIN_EXE_natten-profiler"))
        .args(flags.split_whitespace())
        .output()
        .expect("the tool starts");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    Run { status: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Standard output of a run that succeeds.
fn stdout(flags: &str) -> String {
    let run = profiler(flags);
    assert_eq!(run.status, Some(0), "{flags}: {}", run.stderr);
    run.stdout
}

/// The JSON of a run that succeeds: nothing else is on standard output.
fn json(flags: &str) -> Value {
    let text = stdout(&format!("{flags} --json"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{flags}: {error} in {text}"))
}
