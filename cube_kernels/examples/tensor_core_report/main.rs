//! The compile gate of the tensor-core kernels: translates candidates with both of CubeCL's compilers for
//! CUDA, without a GPU, compiles what comes out for sm_80, sm_89 and sm_90a, and prints registers and spills
//! as a Markdown table.
//!
//! `tensor_core_report [--sample | --all] [--list] [--keep FOLDER] [part of a name]`: what the selection chooses for
//! the catalogue and a sweep over head dimensions, ranks and options; with `--sample` the choices for the catalogue
//! and one of every kind, each for one architecture in turn; with `--all` every candidate. `--list` prints names and
//! compiles nothing. `--keep` writes the sources to a folder. Fails if one does not compile.
//!
//! Needs libnvrtc and CUDA's headers as well as ptxas: `CUDA_PATH` names a toolkit, or the folder of the wheels
//! `nvidia-cuda-nvrtc`, `nvidia-cuda-nvcc`, `nvidia-nvvm`, `nvidia-cuda-cccl` and `nvidia-cuda-runtime`.

use std::process::ExitCode;

use gate::{Flags, on_all_cores};
use kernels::Extent;

mod compile;
#[path = "../gate/mod.rs"]
mod gate;
mod kernels;

/// The oldest that has the instructions, its consumer successor, and Hopper.
const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_89", "sm_90a"];

fn main() -> ExitCode {
    let Flags { own, is_listed, keep, parts } = match Flags::read(&["--sample", "--all"]) {
        Ok(flags) => flags,
        Err(text) => {
            eprintln!("{text}");
            return ExitCode::FAILURE;
        }
    };
    let extent = match own.last() {
        Some(&"--sample") => Extent::Sample,
        Some(_) => Extent::All,
        None => Extent::Chosen,
    };
    let mut kernels = kernels::kernels(extent);
    kernels.retain(|kernel| parts.iter().all(|part| kernel.name().contains(part)));
    if is_listed {
        kernels.iter().for_each(|kernel| println!("{}", kernel.name()));
        return ExitCode::SUCCESS;
    }
    let Some(toolkit) = compile::Toolkit::find() else {
        eprintln!("CUDA_PATH has to name the folder that holds bin/ptxas and include");
        return ExitCode::FAILURE;
    };
    let results = on_all_cores(&kernels, |index, kernel| {
        let taken = match extent {
            Extent::Sample => &ARCHITECTURES[index % ARCHITECTURES.len()..][..1],
            _ => &ARCHITECTURES[..],
        };
        (kernel.name(), compile::report(kernel, taken, &toolkit, keep.as_deref()))
    });
    println!("| kernel | shared memory | architecture | registers | spills (bytes) |");
    println!("|---|---|---|---|---|");
    let mut failures = 0;
    for (name, result) in &results {
        match result {
            Ok(rows) => rows.iter().for_each(|row| println!("{row}")),
            Err(text) => {
                failures += 1;
                println!("| {name} | FAILED | | | |");
                eprintln!("{name}: {text}");
            }
        }
    }
    println!("\n{} kernels, {failures} failed", kernels.len());
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
