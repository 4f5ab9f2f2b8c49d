//! The compile gate of the Hopper kernels: builds specialisations with NVRTC, without a GPU, and
//! prints what they take as a Markdown table.
//!
//! `sm90_report [--all]`: the schedules that the selection chooses for the problems of the catalogue
//! and for a sweep over head dimensions, ranks and options; with `--all` every candidate of the
//! catalogue as well. Fails if one does not compile, spills registers or has its wgmmas serialised.
//!
//! Needs libnvrtc where the loader finds it, as in the wheel `nvidia-cuda-nvrtc==13.0.*`.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn_natten_kernels::native::compile::{Source, build, nvrtc_version};
use burn_natten_kernels::native::sm90::{Element, OPTIONS, Schedule, candidates, plan};
use burn_natten_kernels::{Axis, Problem, catalogue};

fn main() -> ExitCode {
    let all = std::env::args().any(|argument| argument == "--all");
    let Some((major, minor)) = nvrtc_version() else {
        eprintln!("no libnvrtc found; set LD_LIBRARY_PATH to its folder");
        return ExitCode::FAILURE;
    };
    let schedules = schedules(all);
    let next = AtomicUsize::new(0);
    let rows = Mutex::new(BTreeMap::new());
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(schedule) = schedules.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let row = report(schedule);
                    rows.lock().expect("no thread panics").insert(schedule.to_string(), row);
                }
            });
        }
    });
    let rows = rows.into_inner().expect("no thread panics");
    println!("NVRTC {major}.{minor}, {} specialisations\n", rows.len());
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

fn report(schedule: &Schedule) -> Result<String, String> {
    let source = Source {
        name: schedule.to_string(),
        code: schedule.source(),
        options: OPTIONS.map(String::from).to_vec(),
    };
    let (_, log) = build(&source).map_err(|error| error.to_string())?;
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
    let (_, consumer) = schedule.registers();
    Ok(format!("{registers} | {consumer} | {} | {spills}", schedule.shared_memory()))
}

fn schedules(all: bool) -> Vec<Schedule> {
    let mut problems: Vec<Problem> = catalogue::all().iter().map(|entry| entry.problem).collect();
    let axis = |length, kernel_size| Axis { kernel_size, ..Axis::dense(length, length, false) };
    for dim in [8, 32, 40, 64, 72, 96, 128, 136, 192, 256] {
        for dim_v in [dim, 64] {
            for rank in 1..=3 {
                for option in 0..4 {
                    let mut axes = [Axis::UNIT; 3];
                    for (index, axis_of) in axes.iter_mut().enumerate().skip(3 - rank) {
                        *axis_of = axis(100 + index, 21);
                        axis_of.is_causal = option == 1 || (option == 2 && index == 2);
                        axis_of.stride = if option >= 2 { 3 } else { 1 };
                        axis_of.dilation = if option == 3 { 2 } else { 1 };
                    }
                    problems.push(Problem {
                        batch: 1,
                        heads: 4,
                        heads_kv: 2,
                        head_dim: dim,
                        head_dim_v: dim_v,
                        additional: if option == 3 { 77 } else { 0 },
                        scale: 0.1,
                        axes,
                    });
                }
            }
        }
    }
    let mut schedules = BTreeMap::new();
    let mut add = |schedule: Schedule| schedules.insert(schedule.to_string(), schedule);
    for (index, problem) in problems.iter().enumerate() {
        for element in [Element::Bf16, Element::F16] {
            plan(problem, element).map(&mut add);
        }
        if all && index < catalogue::all().len() {
            for schedule in candidates(problem, Element::Bf16) {
                add(schedule);
            }
        }
    }
    schedules.into_values().collect()
}
