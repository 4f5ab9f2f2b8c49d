//! The compile gate of AMD GPUs: translates to HIP C++, without a GPU, every kernel that knows no make of GPU, compiles it with a
//! distribution's clang for gfx90a, gfx942 and gfx1100, and prints registers and spills as a Markdown table.
//!
//! `hip_report [--sample] [--list] [--keep FOLDER] [part of a name]`: with `--sample` the first of each kind in each type, for one
//! architecture in turn.
//! `--list` prints names and compiles nothing. `--keep` writes the sources to a folder. Fails if one does not compile.
//!
//! Needs clang 17 or newer with its AMDGPU target and lld, HIP's headers and AMD's device library: on Debian `clang-19`, `lld-19`,
//! `libamdhip64-dev` and `rocm-device-libs`. `HIP_CLANG` names another clang, `CPLUS_INCLUDE_PATH` other headers. bf16 needs those of
//! HIP 6, and cooperative matrices rocWMMA's; what headers lack is left out, with a line.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::process::ExitCode;

use compile::{Architecture, Toolkit};
use gate::{Flags, on_all_cores};
use test_support::absent::everything::{Named, everything};
use test_support::absent::hip::{Source, translate};
use test_support::absent::{Absent, Hardware};
use test_support::format::{BF16, F16, F32};

mod compile;
#[path = "../gate/mod.rs"]
mod gate;

/// CDNA 2 and 3, whose planes have 64 units, and RDNA 3.
const ARCHITECTURES: [Architecture; 3] = [
    Architecture { name: "gfx90a", library: "90a", plane: 64 },
    Architecture { name: "gfx942", library: "940", plane: 64 },
    Architecture { name: "gfx1100", library: "1036", plane: 32 },
];

/// A kernel for an architecture.
struct Kernel {
    architecture: Architecture,
    source: Result<Source, String>,
}

fn main() -> ExitCode {
    run().unwrap_or_else(|reason| {
        eprintln!("{reason}");
        ExitCode::FAILURE
    })
}

fn run() -> Result<ExitCode, String> {
    let Flags { own, is_listed, keep, parts } = Flags::read(&["--sample"])?;
    let toolkit = Toolkit::find()?;
    let kernels = kernels(&toolkit, &parts, !own.is_empty());
    if is_listed {
        kernels.keys().for_each(|name| println!("{name}"));
        return Ok(ExitCode::SUCCESS);
    }
    Ok(report(&kernels.into_iter().collect::<Vec<_>>(), &toolkit, keep.as_deref()))
}

/// Every kernel once for each architecture, or the first of each kind for one, by names that say where it was met first.
fn kernels(toolkit: &Toolkit, parts: &[String], is_sample: bool) -> BTreeMap<String, Kernel> {
    let mut formats = vec![F32, F16];
    if toolkit.has_hip_6() {
        formats.push(BF16);
    } else {
        eprintln!("bf16 is left out: headers of HIP before version 6 cannot convert it");
    }
    let has_matrices = toolkit.has("rocwmma/rocwmma.hpp");
    if !has_matrices {
        eprintln!("cooperative matrices are left out: there is no rocwmma/rocwmma.hpp");
    }
    let mut kernels = BTreeMap::new();
    let (mut kinds, mut sampled) = (HashMap::new(), HashSet::new());
    for (number, architecture) in ARCHITECTURES.into_iter().enumerate() {
        let device = Absent::new(&Hardware {
            name: architecture.name,
            plane: architecture.plane,
            shared_memory: 64 << 10,
            units: 1024,
            cubes: i32::MAX as u32,
            bindings: 1024,
            vector: 16,
            // The kernels take planes of 32 units.
            matrices: has_matrices.then_some([16; 3]),
        });
        let mut known = HashSet::new();
        for format in &formats {
            let launched = everything(&device, *format, parts).into_iter();
            for (place, Named { name, launch }) in launched.enumerate() {
                let kernel = launch.kernel.as_ref();
                let module = module(kernel.name());
                let kind = (module.clone(), format!("{:?}", format.kind));
                // One of the architectures that have it.
                let next = number + kinds.len() % (ARCHITECTURES.len() - number);
                let is_turn = *kinds.entry(kind.clone()).or_insert(next) == number;
                if is_sample && !(is_turn && sampled.insert(kind)) {
                    continue;
                }
                let source = translate(kernel, architecture.plane);
                if source.as_ref().is_ok_and(|source| !known.insert(source.code.clone())) {
                    continue;
                }
                let name = format!("{module}, {name}, {place}, {}", architecture.name);
                kernels.insert(name, Kernel { architecture, source });
            }
        }
    }
    kernels
}

/// Where a kernel stands, of the name of its type.
fn module(name: &str) -> String {
    let path = name.split('<').next().unwrap_or_default();
    let parts: Vec<_> = path.split("::").skip(1).collect();
    parts.join("::")
}

/// Compiles all of them on all cores, and prints the table.
fn report(kernels: &[(String, Kernel)], toolkit: &Toolkit, keep: Option<&str>) -> ExitCode {
    let rows = on_all_cores(kernels, |_, (name, kernel)| {
        let compiled = kernel.source.as_ref().map_err(String::clone).and_then(|source| {
            let taken = toolkit.compile(name, source, kernel.architecture, keep)?;
            Ok(format!("{} | {taken}", source.shared_memory))
        });
        (name.clone(), compiled)
    });
    println!(
        "| kernel | shared memory | VGPRs | SGPRs | scratch (bytes) | spilled VGPRs | waves |"
    );
    println!("|---|---|---|---|---|---|---|");
    let mut failures = 0;
    for (name, row) in rows {
        match row {
            Ok(row) => println!("| {name} | {row} |"),
            Err(text) => {
                failures += 1;
                println!("| {name} | FAILED | | | | | |");
                eprintln!("{name}: {text}");
            }
        }
    }
    println!("\n{} kernels, {failures} failed", kernels.len());
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
