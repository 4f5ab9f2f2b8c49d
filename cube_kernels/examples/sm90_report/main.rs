//! The compile gate of the Hopper kernels: builds specialisations with NVRTC, without a GPU, and
//! prints what they take as a Markdown table. Progress goes to standard error.
//!
//! `sm90_report [--sample | --all] [--list] [part of a name]`: what the selection chooses for the catalogue, a sweep over
//! head dimensions, ranks, options and shapes of CTA, and further schedules until every value of every
//! macro, and every tile with every stacking axis, has been compiled once; of both passes. With
//! `--sample` a tenth of it: what is chosen for the catalogue, and each value of a macro once. With
//! `--all` every candidate of the catalogue and a wider sweep: hours. `--list` prints names and
//! compiles nothing. Fails if one does not compile, spills registers or has its wgmmas serialised.
//!
//! Needs libnvrtc where the loader finds it, as in the wheel `nvidia-cuda-nvrtc==13.0.*`.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn_natten_kernels::native::compile::{Source, build, nvrtc_version};
use burn_natten_kernels::native::sm90::{Element, OPTIONS, delta_source};
use sweep::{Extent, dims, schedules};

mod sweep;

fn main() -> ExitCode {
    let (flags, names): (Vec<_>, Vec<_>) =
        std::env::args().skip(1).partition(|argument| argument.starts_with("--"));
    let mut extent = Extent::Sweep;
    let mut is_listed = false;
    for flag in flags {
        match flag.as_str() {
            "--sample" => extent = Extent::Sample,
            "--all" => extent = Extent::All,
            "--list" => is_listed = true,
            _ => {
                eprintln!("{flag} is none of --sample, --all, --list");
                return ExitCode::FAILURE;
            }
        }
    }
    let mut programs = programs(extent);
    programs.retain(|program| names.iter().all(|part| program.source.name.contains(part)));
    if is_listed {
        programs.iter().for_each(|program| println!("{}", program.source.name));
        return ExitCode::SUCCESS;
    }
    let Some((major, minor)) = nvrtc_version() else {
        eprintln!("no libnvrtc found; set LD_LIBRARY_PATH to its folder");
        return ExitCode::FAILURE;
    };
    let next = AtomicUsize::new(0);
    let rows = Mutex::new(BTreeMap::new());
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(program) = programs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let row = report(program);
                    let mut rows = rows.lock().expect("no thread panics");
                    rows.insert(program.source.name.clone(), row);
                    if rows.len() % 10 == 0 {
                        eprintln!("{} of {} compiled", rows.len(), programs.len());
                    }
                }
            });
        }
    });
    let rows = rows.into_inner().expect("no thread panics");
    println!("# Specialisations of the Hopper kernels\n");
    println!("Made by `cargo run -p burn-natten-kernels --features cuda --example sm90_report`");
    println!("with NVRTC {major}.{minor}: {} specialisations, no GPU.\n", rows.len());
    println!("| specialisation | registers at launch | of a consumer | shared memory | spills |");
    println!("|---|---|---|---|---|");
    let mut failures = 0;
    for (name, row) in &rows {
        match row {
            Ok(row) => println!("| {name} | {row} |"),
            Err(log) => {
                failures += 1;
                println!("| {name} | FAILED | | | |");
                eprintln!("{name}: {log}");
            }
        }
    }
    println!("\n{failures} failed");
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A kernel to be compiled.
struct Program {
    source: Source,
    /// Registers of a consumer, and bytes of shared memory.
    consumer: (usize, usize),
}

impl Program {
    fn new(name: String, code: String, consumer: (usize, usize)) -> Self {
        let options = OPTIONS.map(String::from).to_vec();
        Self { source: Source { name, code, options }, consumer }
    }
}

fn report(program: &Program) -> Result<String, String> {
    let (_, log) = build(&program.source).map_err(|error| error.to_string())?;
    let serialised = log.contains("serialized") || log.contains("(C75");
    let number = |before: &str, after: &str| {
        let text = log.split(after).next()?;
        text.rsplit(before).next()?.trim().parse::<usize>().ok()
    };
    let registers = number("Used", "registers").ok_or("no register count in the log")?;
    let spills = number(",", "bytes spill stores").ok_or("no spills in the log")?;
    if serialised || spills > 0 {
        return Err(log);
    }
    let (consumer, shared_memory) = program.consumer;
    let consumer = if consumer > 0 { consumer } else { registers };
    Ok(format!("{registers} | {consumer} | {shared_memory} | {spills}"))
}

/// What is compiled, each program once.
fn programs(extent: Extent) -> Vec<Program> {
    let mut programs: Vec<Program> = schedules(extent)
        .iter()
        .map(|schedule| {
            let consumer = (schedule.registers().1, schedule.shared_memory());
            Program::new(schedule.to_string(), schedule.source(), consumer)
        })
        .collect();
    let dims_v: BTreeSet<usize> =
        dims(extent == Extent::All).iter().map(|(_, head_dim_v)| *head_dim_v).collect();
    for head_dim_v in dims_v {
        for element in [Element::Bf16, Element::F16] {
            let (name, code) = delta_source(element, head_dim_v);
            programs.push(Program::new(name, code, (0, 0)));
        }
    }
    programs
}
