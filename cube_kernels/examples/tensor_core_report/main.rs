//! The compile gate of the tensor-core kernels: translates candidates with both of CubeCL's compilers for
//! CUDA, without a GPU, compiles what comes out for sm_80, sm_89 and sm_90a, and prints registers and spills
//! as a Markdown table.
//!
//! `tensor_core_report [--all] [--sample N] [--keep FOLDER] [part of a name]`: what the selection chooses for
//! the catalogue and a sweep over head dimensions, ranks and options; with `--all` every candidate, with `--sample` every
//! Nth kernel for one architecture in turn. `--keep` writes the sources to a folder. Fails if one does not compile.
//!
//! Needs libnvrtc and CUDA's headers as well as ptxas: `CUDA_PATH` names a toolkit, or the folder of the wheels
//! `nvidia-cuda-nvrtc`, `nvidia-cuda-nvcc`, `nvidia-nvvm`, `nvidia-cuda-cccl` and `nvidia-cuda-runtime`.

use std::process::ExitCode;

mod compile;
mod kernels;

/// The oldest that has the instructions, its consumer successor, and Hopper.
const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_89", "sm_90a"];

fn main() -> ExitCode {
    let mut all = false;
    let mut keep = None;
    let mut sample = None;
    let mut parts = vec![];
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--all" => all = true,
            "--keep" => keep = arguments.next(),
            "--sample" => match arguments.next().map(|number| number.parse::<usize>()) {
                Some(Ok(number @ 1..)) => sample = Some(number),
                _ => {
                    eprintln!("--sample takes a number from 1 on");
                    return ExitCode::FAILURE;
                }
            },
            _ => parts.push(argument),
        }
    }
    let Some(toolkit) = compile::Toolkit::find() else {
        eprintln!("CUDA_PATH has to name the folder that holds bin/ptxas and include");
        return ExitCode::FAILURE;
    };
    let mut kernels = kernels::kernels(all);
    kernels.retain(|kernel| parts.iter().all(|part| kernel.name().contains(part)));
    let mut architectures = ARCHITECTURES.to_vec();
    let kernels: Vec<_> = kernels.into_iter().step_by(sample.unwrap_or(1)).collect();
    println!("| kernel | shared memory | architecture | registers | spills (bytes) |");
    println!("|---|---|---|---|---|");
    let mut failures = 0;
    for kernel in &kernels {
        let taken = if sample.is_some() { &architectures[..1] } else { &architectures };
        match compile::report(kernel, taken, &toolkit, keep.as_deref()) {
            Ok(rows) => rows.iter().for_each(|row| println!("{row}")),
            Err(text) => {
                failures += 1;
                println!("| {} | FAILED | | | |", kernel.name());
                eprintln!("{}: {text}", kernel.name());
            }
        }
        architectures.rotate_left(1);
    }
    println!("\n{} kernels, {failures} failed", kernels.len());
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
