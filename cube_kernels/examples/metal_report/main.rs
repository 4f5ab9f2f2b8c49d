//! The text gate of Apple's GPUs: translates to Metal's shading language, without one, every kernel that knows no make of GPU, and holds the
//! text to a C++ compiler of the host with declarations of what it takes from Metal's library. Metal's own compiler has not seen it.
//!
//! `metal_report [--sample] [--list] [--keep FOLDER] [part of a name]`: with `--sample` the first of each kind in each type.
//! `--list` prints names and compiles nothing. `--keep` writes the sources to a folder. Fails if one does not compile.

use std::collections::{BTreeMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use gate::{Flags, on_all_cores};
use test_support::absent::everything::{Named, everything};
use test_support::absent::metal::translate;
use test_support::absent::{Absent, Hardware, Launch};
use test_support::cpp;
use test_support::format::{BF16, F16, F32};

#[path = "../gate/mod.rs"]
mod gate;

fn main() -> ExitCode {
    run().unwrap_or_else(|reason| {
        eprintln!("{reason}");
        ExitCode::FAILURE
    })
}

fn run() -> Result<ExitCode, String> {
    let Flags { own, is_listed, keep, parts } = Flags::read(&["--sample"])?;
    let compiler = cpp::compiler().ok_or("no C++ compiler")?;
    let kernels: Vec<_> = launches(&parts, !own.is_empty()).into_iter().collect();
    if is_listed {
        kernels.iter().for_each(|(name, _)| println!("{name}"));
        return Ok(ExitCode::SUCCESS);
    }
    let folder = match &keep {
        Some(folder) => PathBuf::from(folder),
        None => std::env::temp_dir().join(format!("metal_report_{}", std::process::id())),
    };
    let text = |error: std::io::Error| error.to_string();
    std::fs::create_dir_all(&folder).map_err(text)?;
    for header in ["metal_stdlib", "metal_simdgroup_matrix"] {
        std::fs::write(folder.join(header), include_str!("metal_stdlib.h")).map_err(text)?;
    }
    let rows = on_all_cores(&kernels, |number, (name, launch)| {
        let file = folder.join(format!("{number}.cpp"));
        (name.clone(), check(compiler, launch, &file))
    });
    if keep.is_none() {
        // There or not: what matters is the table.
        let _ = std::fs::remove_dir_all(&folder);
    }
    let failures: Vec<_> =
        rows.iter().filter_map(|(name, row)| Some((name, row.as_ref().err()?))).collect();
    for (name, text) in &failures {
        println!("{name}: {}", text.chars().take(600).collect::<String>());
    }
    println!("{} kernels, {} failed", rows.len(), failures.len());
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Every kernel once, or the first of each kind in each type, by names that say where it was met first.
fn launches(parts: &[String], is_sample: bool) -> BTreeMap<String, Launch> {
    let device = Absent::new(&Hardware {
        name: "Metal",
        plane: 32,
        shared_memory: 32 << 10,
        units: 1024,
        cubes: i32::MAX as u32,
        bindings: 30,
        vector: 4,
        matrices: Some([8; 3]),
    });
    let (mut kernels, mut known) = (BTreeMap::new(), HashSet::new());
    for format in [F32, F16, BF16] {
        let launched = everything(&device, format, parts).into_iter();
        for (place, Named { name, launch }) in launched.enumerate() {
            let path = launch.kernel.name().split('<').next().unwrap_or_default();
            let module = path.split("::").skip(1).collect::<Vec<_>>().join("::");
            let kind = match is_sample {
                true => format!("{module} {:?}", format.kind),
                false => format!("{:?}", launch.kernel.id()),
            };
            if known.insert(kind) {
                kernels.insert(format!("{module}, {name}, {place}"), launch);
            }
        }
    }
    kernels
}

/// Bytes of shared memory of a kernel whose text compiles.
fn check(compiler: &str, launch: &Launch, file: &Path) -> Result<usize, String> {
    let translated = catch_unwind(AssertUnwindSafe(|| translate(launch.kernel.as_ref())));
    let source = translated.unwrap_or_else(|_| Err("CubeCL's compiler panicked".to_string()))?;
    // A reference to what is constant: the word is a space of addresses in Metal.
    let code = source.code.replace("constant info_st&", "const info_st&");
    std::fs::write(file, code).map_err(|error| error.to_string())?;
    let mut command = Command::new(compiler);
    command.args(["-std=c++17", "-w", "-fsyntax-only", "-I"]).arg(file.with_file_name("."));
    let output = command.arg(file).output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(source.shared_memory),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}
