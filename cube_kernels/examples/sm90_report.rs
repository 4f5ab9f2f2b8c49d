//! The compile gate of the Hopper kernels: builds specialisations with NVRTC, without a GPU, and
//! prints what they take as a Markdown table. Progress goes to standard error.
//!
//! `sm90_report [--all]`: what the selection chooses for the catalogue, a sweep over head
//! dimensions, ranks, options and shapes of CTA, and further schedules until every value of every
//! macro, and every tile with every stacking axis, has been compiled once. With `--all` every
//! candidate of the catalogue and a wider sweep: an hour or more. Fails if one does not compile,
//! spills registers or has its wgmmas serialised.
//!
//! Needs libnvrtc where the loader finds it, as in the wheel `nvidia-cuda-nvrtc==13.0.*`.

use std::collections::{BTreeMap, HashSet};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use burn_natten_kernels::native::compile::{Source, build, nvrtc_version};
use burn_natten_kernels::native::sm90::{Element, OPTIONS, Schedule, candidates, estimate, plan};
use burn_natten_kernels::{Axis, MAX_RANK, Problem, catalogue};

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
                    let mut rows = rows.lock().expect("no thread panics");
                    rows.insert(schedule.to_string(), row);
                    if rows.len() % 10 == 0 {
                        eprintln!("{} of {} compiled", rows.len(), schedules.len());
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

/// What is compiled, each schedule once.
fn schedules(all: bool) -> Vec<Schedule> {
    let mut schedules = BTreeMap::new();
    let mut add = |schedule: Schedule| schedules.insert(schedule.to_string(), schedule);
    for entry in catalogue::all() {
        plan(&entry.problem, Element::Bf16).map(&mut add);
        if all {
            plan(&entry.problem, Element::F16).map(&mut add);
            candidates(&entry.problem, Element::Bf16).into_iter().map(&mut add).for_each(drop);
        }
    }
    // Each class of head dimensions: the accumulators and the tiles of shared memory differ.
    let classes: &[(usize, usize)] = match all {
        false => &[
            (8, 8),
            (40, 24),
            (64, 64),
            (64, 128),
            (96, 72),
            (128, 128),
            (136, 8),
            (8, 256),
            (256, 256),
        ],
        true => &[
            (8, 8),
            (16, 64),
            (24, 24),
            (32, 32),
            (40, 72),
            (48, 48),
            (56, 56),
            (64, 64),
            (72, 40),
            (80, 80),
            (96, 96),
            (104, 104),
            (112, 112),
            (120, 120),
            (128, 64),
            (128, 128),
            (136, 136),
            (160, 160),
            (192, 128),
            (192, 192),
            (224, 224),
            (248, 248),
            (256, 64),
            (64, 256),
            (256, 256),
        ],
    };
    let problems = || {
        classes.iter().flat_map(|dims| {
            (1..=MAX_RANK)
                .flat_map(move |rank| OPTIONS_OF_AXES.map(|option| problem(*dims, rank, option)))
        })
    };
    for (index, problem) in problems().enumerate() {
        // Every other problem in the other type, or both.
        let elements = [Element::Bf16, Element::F16];
        let taken = if all { &elements[..] } else { &elements[index % 2..][..1] };
        for element in taken {
            plan(&problem, *element).map(&mut add);
        }
        if (problem.head_dim, problem.head_dim_v) == (64, 64) || all {
            best_of_each_shape(&problem).into_iter().map(&mut add).for_each(drop);
        }
    }
    // What has not been met so far.
    let mut seen: HashSet<_> = schedules.values().flat_map(traits).collect();
    for problem in problems() {
        for schedule in candidates(&problem, Element::Bf16) {
            let before = seen.len();
            seen.extend(traits(&schedule));
            if seen.len() > before {
                schedules.insert(schedule.to_string(), schedule);
            }
        }
    }
    schedules.into_values().collect()
}

/// Options of the problems of the sweep, from the fewest instructions to the most.
#[derive(Clone, Copy)]
enum Options {
    Dense,
    Window,
    Causal,
    All,
}

const OPTIONS_OF_AXES: [Options; 4] =
    [Options::Dense, Options::Window, Options::Causal, Options::All];

fn problem((head_dim, head_dim_v): (usize, usize), rank: usize, option: Options) -> Problem {
    let mut axes = [Axis::UNIT; MAX_RANK];
    for (index, axis) in axes.iter_mut().enumerate().skip(MAX_RANK - rank) {
        *axis = Axis::dense(128, 128, false);
        match option {
            Options::Dense => {}
            Options::Window => axis.kernel_size = 21,
            Options::Causal => (axis.kernel_size, axis.is_causal) = (21, true),
            Options::All => {
                (axis.kernel_size, axis.stride, axis.dilation) = (21, 3, 2);
                axis.is_causal = index == MAX_RANK - 1;
            }
        }
    }
    let additional = if matches!(option, Options::All) { 77 } else { 0 };
    Problem { batch: 1, heads: 4, heads_kv: 2, head_dim, head_dim_v, additional, scale: 0.1, axes }
}

/// The most promising schedule of each shape of CTA.
fn best_of_each_shape(problem: &Problem) -> Vec<Schedule> {
    let mut schedules = candidates(problem, Element::Bf16);
    schedules.sort_by(|a, b| estimate(a, problem).total_cmp(&estimate(b, problem)));
    let mut shapes = HashSet::new();
    schedules.retain(|s| shapes.insert((s.warpgroups, s.blocks, s.ctas)));
    schedules
}

/// A macro's value; a tile of queries (0) or keys (1) with the stacking axis.
#[derive(PartialEq, Eq, Hash)]
enum Trait {
    Macro(&'static str, usize),
    Tile(usize, [usize; MAX_RANK], usize),
}

/// What a schedule is one example of.
fn traits(schedule: &Schedule) -> Vec<Trait> {
    let macros = schedule.macros().into_iter().map(|(name, value)| Trait::Macro(name, value));
    let tiles = [schedule.q_tile, schedule.kv_tile].into_iter().enumerate();
    let tiles = tiles.map(|(which, tile)| Trait::Tile(which, tile, schedule.stack));
    macros.chain(tiles).collect()
}
