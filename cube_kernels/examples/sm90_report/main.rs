//! The compile gate of the Hopper kernels: builds specialisations with NVRTC, without a GPU, and
//! prints what they take as a Markdown table. Progress goes to standard error.
//!
//! `sm90_report [--sample | --all] [--list] [--keep=FOLDER] [part of a name]..`: what the selection chooses for the catalogue, a sweep over
//! head dimensions, ranks, options and shapes of CTA, and further schedules until every value of every
//! macro, and every tile with every stacking axis, has been compiled once; of both passes. With
//! `--sample` a tenth of it: what is chosen for the catalogue, and each value of a macro once. With
//! `--all` every candidate of the catalogue and a wider sweep: hours. `--list` prints names and
//! compiles nothing; `--keep=FOLDER` writes sources and machine code there, and prints nothing. Fails if one does not compile, spills registers, but for those that are known to, or has its wgmmas serialised.
//!
//! Needs libnvrtc where the loader finds it, as in the wheel `nvidia-cuda-nvrtc==13.0.*`.

use std::collections::BTreeSet;
use std::iter;
use std::path::PathBuf;
use std::process::ExitCode;

use burn_natten_kernels::native::compile::{Source, nvrtc_version};
use burn_natten_kernels::native::sm90::{
    Element, OPTIONS, delta_source, inverse_source, lists_source,
};
use native_report::{Log, compile, print, save};
use sweep::{Extent, dims, schedules, selections, unions};

#[path = "../native_report/mod.rs"]
mod native_report;
mod sweep;

fn main() -> ExitCode {
    let (flags, names): (Vec<_>, Vec<_>) =
        std::env::args().skip(1).partition(|argument| argument.starts_with("--"));
    let mut extent = Extent::Sweep;
    let mut is_listed = false;
    let mut keep = None;
    for flag in flags {
        match flag.as_str() {
            "--sample" => extent = Extent::Sample,
            "--all" => extent = Extent::All,
            "--list" => is_listed = true,
            _ => match flag.strip_prefix("--keep=") {
                Some(folder) => keep = Some(PathBuf::from(folder)),
                None => {
                    eprintln!("{flag} is none of --sample, --all, --list, --keep=FOLDER");
                    return ExitCode::FAILURE;
                }
            },
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
    if let Some(folder) = keep {
        return save(programs.iter().map(|program| &program.source), &folder);
    }
    let rows = compile(&programs, |program| &program.source, report);
    println!("# Specialisations of the Hopper kernels\n");
    println!("Made by `cargo run -p burn-natten-kernels --features cuda --example sm90_report`");
    println!("with NVRTC {major}.{minor}: {} specialisations, no GPU.\n", rows.len());
    print(&rows, &["registers at launch", "of a consumer", "shared memory", "spills"])
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

/// Kernels that are known to spill, and so many bytes at most: of some with a position bias, which wait for a schedule that does
/// not, or are faster that way (three CTAs that sum its gradient), and of some that have most of what there is at once, or boxes of 4 x 4 x 4
/// queries and 2 x 4 x 8 keys.
const SPILLING: [(&str, usize); 9] = [
    ("sm90_queries_bf16_d64_q8x8_k8x8_1w1b2s3c_y_late_onehot_bias13x13_dbias1", 16),
    ("sm90_queries_bf16_d64_q8x8_k8x8_1w1b2s3c_y_late_onehot_causal_yx_bias13x13_dbias1", 16),
    ("sm90_forward_bf16_d128_q4x4x4_k2x4x8_2w2b2s1c_z_onehot_causal_zyx_bias9x9x9", 20),
    (
        "sm90_forward_bf16_d128_q8x8_k8x8_2w2b2s1c_y_onehot_causal_x_strided_dilated_additional_bias13x13",
        4,
    ),
    (
        "sm90_forward_bf16_d64_q4x4x4_k2x4x8_1w1b2s3c_z_onehot_causal_x_strided_dilated_additional_bias9x9x9",
        4,
    ),
    ("sm90_queries_bf16_d64_q8x8_k8x8_1w2b2s2c_y_onehot_causal_x_strided_dilated_additional", 12),
    ("sm90_forward_bf16_d64_q4x4x4_k2x4x8_1w1b2s1c4t_z_onehot", 8),
    ("sm90_forward_bf16_d64_q4x4x4_k2x4x8_1w1b2s1c4t_z_onehot_causal_zyx", 8),
    ("sm90_queries_bf16_d64_q4x4x4_k2x4x8_1w2b2s2c_z_onehot", 12),
];

fn report(program: &Program, log: &Log) -> Result<String, String> {
    let Log { text, registers, spills } = log;
    let serialised = text.contains("serialized") || text.contains("(C75");
    let known = SPILLING.iter().find(|(name, _)| *name == program.source.name);
    if serialised || *spills > known.map_or(0, |(_, most)| *most) {
        return Err(text.clone());
    }
    let (consumer, shared_memory) = program.consumer;
    let consumer = if consumer > 0 { consumer } else { *registers };
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
    // None where nothing is read of the output.
    for head_dim_v in iter::once(0).chain(dims_v) {
        for element in [Element::Bf16, Element::F16] {
            let (name, code) = delta_source(element, head_dim_v, false);
            programs.push(Program::new(name, code, (0, 0)));
        }
    }
    for of in unions(extent) {
        for kernel in of.kernels() {
            programs.push(Program::new(of.name(kernel), of.source(kernel), (0, 0)));
        }
        let (name, code) = of.lists_source();
        programs.push(Program::new(name, code, (0, 0)));
    }
    for schedule in selections(extent) {
        programs.push(Program::new(schedule.to_string(), schedule.source(), (0, 0)));
    }
    let (name, code) = inverse_source();
    programs.push(Program::new(name, code, (0, 0)));
    for is_turned in [false, true] {
        let (name, code) = lists_source(is_turned);
        programs.push(Program::new(name, code, (0, 0)));
    }
    programs
}
