//! The compile gate of the Blackwell kernels: builds specialisations with NVRTC for both chips, without a GPU, and prints what they
//! take as a Markdown table.
//!
//! `sm100_report [--sample] [--list] [--keep=FOLDER] [part of a name]..`: what the selection chooses for the catalogue, and for a sweep over head
//! dimensions, ranks and options of axes, of both passes. With `--sample` one of every kind, in a minute. `--list` prints names and compiles
//! nothing; `--keep=FOLDER` writes sources and machine code there, and prints nothing. Fails if one does not compile, spills registers or has local memory.
//!
//! Needs libnvrtc where the loader finds it, as in the wheel `nvidia-cuda-nvrtc==13.0.*`.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::process::ExitCode;

use burn_natten_kernels::native::Element;
use burn_natten_kernels::native::compile::{Source, nvrtc_version};
use burn_natten_kernels::native::sm100::{
    Architecture, Schedule, delta_source, plan, plan_backward, unsupported,
};
use burn_natten_kernels::{Axis, MAX_RANK, Pass, Problem, catalogue};
use native_report::{Log, compile, print, save};

mod native_report;

/// Each class of head dimensions: chunks of 64 elements, products and sums differ.
const DIMS: [(usize, usize); 11] = [
    (8, 8),
    (40, 24),
    (64, 64),
    (64, 128),
    (96, 72),
    (128, 128),
    (8, 256),
    (136, 200),
    (192, 160),
    (256, 8),
    (256, 256),
];

fn main() -> ExitCode {
    let (flags, names): (Vec<_>, Vec<_>) =
        std::env::args().skip(1).partition(|argument| argument.starts_with("--"));
    let has = |flag: &str| flags.iter().any(|given| given == flag);
    let keep = flags.iter().find_map(|flag| flag.strip_prefix("--keep="));
    let is_known = |flag: &&String| {
        ["--sample", "--list"].contains(&flag.as_str()) || flag.starts_with("--keep=")
    };
    if let Some(flag) = flags.iter().find(|flag| !is_known(flag)) {
        eprintln!("{flag} is none of --sample, --list, --keep=FOLDER");
        return ExitCode::FAILURE;
    }
    let mut programs = programs(has("--sample"));
    programs.retain(|program| names.iter().all(|part| program.source.name.contains(part)));
    if has("--list") {
        programs.iter().for_each(|program| println!("{}", program.source.name));
        return ExitCode::SUCCESS;
    }
    let Some((major, minor)) = nvrtc_version() else {
        eprintln!("no libnvrtc found; set LD_LIBRARY_PATH to its folder");
        return ExitCode::FAILURE;
    };
    if let Some(folder) = keep {
        return save(programs.iter().map(|program| &program.source), Path::new(folder));
    }
    let rows = compile(&programs, |program| &program.source, report);
    println!("# Specialisations of the Blackwell kernels\n");
    println!("Made by `cargo run -p burn-natten-kernels --features cuda --example sm100_report`");
    println!("with NVRTC {major}.{minor}: {} specialisations, no GPU.\n", rows.len());
    print(&rows, &["registers at launch", "most", "shared memory", "tensor memory", "spills"])
}

/// A kernel to be compiled.
struct Program {
    source: Source,
    /// Of attention; none of what prepares a backward pass.
    schedule: Option<Schedule>,
}

impl Program {
    fn new(
        architecture: Architecture,
        (name, code): (String, String),
        schedule: Option<Schedule>,
    ) -> Self {
        let name = format!("{name}_{}", architecture.name());
        Self { source: Source { name, code, options: architecture.options() }, schedule }
    }
}

fn report(program: &Program, log: &Log) -> Result<String, String> {
    let Log { text, registers, spills } = log;
    if *spills > 0 || !text.contains(" 0 bytes stack frame") {
        return Err(text.clone());
    }
    let (most, shared, tensor) = program.schedule.map_or((*registers, 0, 0), |schedule| {
        (schedule.registers(), schedule.shared_memory(), schedule.tensor_memory())
    });
    Ok(format!("{registers} | {most} | {shared} | {tensor} | {spills}"))
}

/// What is compiled, each program once for both chips.
fn programs(is_sample: bool) -> Vec<Program> {
    let mut schedules = BTreeMap::new();
    for (number, problem) in problems().into_iter().enumerate() {
        let element = [Element::Bf16, Element::F16][number % 2];
        let backward = plan_backward(&problem, element, None).expect("supported");
        let forward = plan(&problem, element).expect("supported");
        for schedule in std::iter::once(&forward).chain(backward.schedules()) {
            schedules.insert(schedule.to_string(), *schedule);
        }
    }
    let mut seen = HashSet::new();
    if is_sample {
        // One for each value of each macro that is no extent of a tile.
        schedules.retain(|_, schedule| {
            let before = seen.len();
            let macros = schedule.macros(Architecture::Sm100).into_iter();
            let kinds = macros.filter(|(name, _)| {
                !name.starts_with("ROW") && !name.starts_with("COLUMN") && *name != "SHARED_MEMORY"
            });
            seen.extend(kinds.map(|(name, value)| (schedule.pass == Pass::Forward, name, value)));
            seen.len() > before
        });
    }
    let mut programs = vec![];
    for architecture in Architecture::ALL {
        for (name, schedule) in &schedules {
            let text = (name.clone(), schedule.source(architecture));
            programs.push(Program::new(architecture, text, Some(*schedule)));
        }
        for element in [Element::Bf16, Element::F16] {
            for read in [128, 0] {
                programs.push(Program::new(architecture, delta_source(element, read), None));
            }
        }
    }
    programs
}

fn problems() -> Vec<Problem> {
    let mut problems: Vec<Problem> = DIMS
        .into_iter()
        .flat_map(|dims| {
            (1..=MAX_RANK).flat_map(move |rank| {
                [false, true].into_iter().map(move |has_all| problem(dims, rank, has_all))
            })
        })
        .collect();
    // Queries that stand elsewhere than keys of the same number.
    for problem in problems.clone().into_iter().step_by(5) {
        let mut shifted = problem;
        shifted.axes[MAX_RANK - 1] = Axis::dense(200, 128, true);
        problems.push(shifted);
    }
    let named = catalogue::all().into_iter().map(|entry| entry.problem);
    named.chain(problems).filter(|problem| unsupported(problem).is_none()).collect()
}

/// Dense, or with everything that an axis may have.
fn problem((dim, dim_v): (usize, usize), rank: usize, has_all: bool) -> Problem {
    let mut axes = [Axis::UNIT; MAX_RANK];
    for (index, axis) in axes.iter_mut().enumerate().skip(MAX_RANK - rank) {
        *axis = Axis::dense(128, 128, false);
        if has_all {
            (axis.kernel_size, axis.stride, axis.dilation) = (21, 3, 2);
            axis.is_causal = index == MAX_RANK - 1;
        }
    }
    Problem::new(axes, 4, dim).with_heads_kv(2).with_head_dim_v(dim_v).with_additional(if has_all {
        77
    } else {
        0
    })
}
