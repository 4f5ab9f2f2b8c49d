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

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use kernels::Extent;

mod compile;
mod kernels;

/// The oldest that has the instructions, its consumer successor, and Hopper.
const ARCHITECTURES: [&str; 3] = ["sm_80", "sm_89", "sm_90a"];

fn main() -> ExitCode {
    let mut extent = Extent::Chosen;
    let (mut is_listed, mut keep, mut parts) = (false, None, vec![]);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--sample" => extent = Extent::Sample,
            "--all" => extent = Extent::All,
            "--list" => is_listed = true,
            "--keep" => match arguments.next() {
                Some(folder) => keep = Some(folder),
                None => {
                    eprintln!("--keep needs a folder");
                    return ExitCode::FAILURE;
                }
            },
            _ => parts.push(argument),
        }
    }
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
    let next = AtomicUsize::new(0);
    let results = Mutex::new(BTreeMap::new());
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(kernel) = kernels.get(index) else { break };
                    let taken = match extent {
                        Extent::Sample => &ARCHITECTURES[index % ARCHITECTURES.len()..][..1],
                        _ => &ARCHITECTURES[..],
                    };
                    let result = compile::report(kernel, taken, &toolkit, keep.as_deref());
                    results.lock().expect("no thread panics").insert(kernel.name(), result);
                }
            });
        }
    });
    println!("| kernel | shared memory | architecture | registers | spills (bytes) |");
    println!("|---|---|---|---|---|");
    let mut failures = 0;
    for (name, result) in &results.into_inner().expect("no thread panics") {
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
