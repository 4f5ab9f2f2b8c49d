//! What the compile gates of native kernels share: programs are built on all cores, and what they take is a Markdown table.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn_natten_kernels::native::compile::{Source, build};

use gate::on_all_cores;

#[allow(dead_code, reason = "these gates have flags of their own")]
#[path = "../gate/mod.rs"]
mod gate;

/// A program's columns behind its name, or why it fails.
pub type Rows = BTreeMap<String, Result<String, String>>;

/// Builds all of them on all cores.
pub fn compile<P: Sync>(
    programs: &[P],
    source: impl Fn(&P) -> &Source + Sync,
    report: impl Fn(&P, &Log) -> Result<String, String> + Sync,
) -> Rows {
    let compiled = AtomicUsize::new(0);
    on_all_cores(programs, |_, program| {
        let source = source(program);
        let row = Log::of(source).and_then(|log| report(program, &log));
        let count = 1 + compiled.fetch_add(1, Ordering::Relaxed);
        if count.is_multiple_of(10) {
            eprintln!("{count} of {} compiled", programs.len());
        }
        (source.name.clone(), row)
    })
}

/// Prints the table with these columns behind the names; fails if a program does.
pub fn print(rows: &Rows, columns: &[&str]) -> ExitCode {
    println!("| specialisation | {} |", columns.join(" | "));
    println!("|{}", "---|".repeat(columns.len() + 1));
    let mut failures = 0;
    for (name, row) in rows {
        match row {
            Ok(row) => println!("| {name} | {row} |"),
            Err(log) => {
                failures += 1;
                println!("| {name} | FAILED |{}", " |".repeat(columns.len() - 1));
                eprintln!("{name}: {log}");
            }
        }
    }
    println!("\n{failures} failed");
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Writes sources and their machine code for `nvdisasm -c` into a folder; fails if one does not compile.
pub fn save<'a>(sources: impl Iterator<Item = &'a Source>, folder: &Path) -> ExitCode {
    let write = |source: &Source| {
        let (image, _) = build(source).map_err(|error| error.to_string())?;
        for (extension, bytes) in [("cu", source.code.as_bytes()), ("cubin", &image)] {
            let file = folder.join(format!("{}.{extension}", source.name));
            fs::write(&file, bytes).map_err(|error| format!("{}: {error}", file.display()))?;
        }
        Ok::<(), String>(())
    };
    for source in sources {
        if let Err(text) = write(source) {
            eprintln!("{text}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// What the compiler said of a program.
pub struct Log {
    pub text: String,
    /// Of a thread at launch.
    pub registers: usize,
    /// Bytes.
    pub spills: usize,
}

impl Log {
    fn of(source: &Source) -> Result<Self, String> {
        let (_, text) = build(source).map_err(|error| error.to_string())?;
        let number = |before: &str, after: &str| {
            let part = text.split(after).next()?;
            part.rsplit(before).next()?.trim().parse::<usize>().ok()
        };
        let registers = number("Used", "registers").ok_or("no register count in the log")?;
        let spills = number(",", "bytes spill stores").ok_or("no spills in the log")?;
        Ok(Self { text, registers, spills })
    }
}
