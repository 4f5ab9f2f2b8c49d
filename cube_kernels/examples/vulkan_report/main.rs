//! The compile gate of Vulkan and WebGPU: translates to SPIR-V and to WGSL, without a GPU, every kernel that knows no make of GPU, holds
//! the first to `spirv-val` and the second to naga, and prints what fails and how many do not.
//!
//! `vulkan_report [--sample] [--list] [--plain] [--keep FOLDER] [part of a name]`: with `--sample` the first of each kind in each type.
//! `--list` prints names and compiles nothing. `--keep` writes modules and sources to a folder. `--plain` is a device without
//! extensions, for which CubeCL 0.11.3 writes no valid module with shared memory. Fails if a kernel does not compile.
//!
//! Needs `spirv-val` of Debian's package `spirv-tools`.

use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use std::process::{Command, ExitCode};

use gate::{Flags, on_all_cores};
use test_support::absent::everything::{Named, everything};
use test_support::absent::vulkan::{Extensions, check_wgsl, spirv, wgsl};
use test_support::absent::{Absent, Hardware, Launch};
use test_support::format::{BF16, F16, F32};

#[path = "../gate/mod.rs"]
mod gate;

/// A kernel in one of the languages.
enum Source {
    SpirV(Vec<u32>),
    Wgsl(String),
}

fn main() -> ExitCode {
    run().unwrap_or_else(|reason| {
        eprintln!("{reason}");
        ExitCode::FAILURE
    })
}

fn run() -> Result<ExitCode, String> {
    let Flags { own, is_listed, keep, parts } = Flags::read(&["--sample", "--plain"])?;
    let has = |flag| own.contains(&flag);
    let validator = Command::new("spirv-val").arg("--version").output();
    validator.map_err(|error| format!("no spirv-val: {error}"))?;
    let extensions = match has("--plain") {
        true => Extensions::default(),
        false => Extensions { explicit_layout: true, float_controls: false },
    };
    let kernels: Vec<_> = launches(&parts, has("--sample")).into_iter().collect();
    if is_listed {
        kernels.iter().for_each(|(name, _)| println!("{name}"));
        return Ok(ExitCode::SUCCESS);
    }
    let jobs: Vec<_> = kernels
        .iter()
        .flat_map(|kernel| [(true, kernel), (false, kernel)])
        // WGSL has neither.
        .filter(|(is_spirv, (name, _))| {
            *is_spirv || !(name.contains("BF16") || name.contains("matrices"))
        })
        .collect();
    let rows = on_all_cores(&jobs, |number, (is_spirv, (name, launch))| {
        let kernel = launch.kernel.as_ref();
        let language = if *is_spirv { "SPIR-V" } else { "WGSL" };
        let translate = || match is_spirv {
            true => spirv(kernel, extensions).map(Source::SpirV),
            false => wgsl(kernel).map(Source::Wgsl),
        };
        let source = std::panic::catch_unwind(std::panic::AssertUnwindSafe(translate))
            .unwrap_or_else(|_| Err("CubeCL's compiler panicked".to_string()));
        let checked = source.and_then(|source| check(number, &source, keep.as_deref()));
        (format!("{language}, {name}"), checked)
    });
    let failures = rows.iter().filter_map(|(name, row)| Some((name, row.as_ref().err()?)));
    let failures: Vec<_> = failures.collect();
    for (name, text) in &failures {
        println!("{name}: {}", text.chars().take(600).collect::<String>());
    }
    println!("{} kernels, {} failed", rows.len(), failures.len());
    Ok(if failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Every kernel once, or the first of each kind in each type, by names that say where it was met first.
fn launches(parts: &[String], is_sample: bool) -> BTreeMap<String, Launch> {
    let device = Absent::new(&Hardware {
        name: "Vulkan",
        plane: 32,
        shared_memory: 48 << 10,
        units: 1024,
        cubes: 65535,
        bindings: 1024,
        vector: 4,
        matrices: Some([16; 3]),
    });
    let (mut kernels, mut known) = (BTreeMap::new(), HashSet::new());
    for format in [F32, F16, BF16] {
        for (place, Named { name, launch }) in
            everything(&device, format, parts).into_iter().enumerate()
        {
            let module = module(launch.kernel.name());
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

/// Where a kernel stands, of the name of its type.
fn module(name: &str) -> String {
    let path = name.split('<').next().unwrap_or_default();
    path.split("::").skip(1).collect::<Vec<_>>().join("::")
}

/// Bytes of a module or source that is valid.
fn check(number: usize, source: &Source, keep: Option<&str>) -> Result<usize, String> {
    let (bytes, ending) = match source {
        Source::SpirV(words) => (words.iter().flat_map(|word| word.to_le_bytes()).collect(), "spv"),
        Source::Wgsl(text) => (text.clone().into_bytes(), "wgsl"),
    };
    let own = format!("vulkan_report_{}_{number}.{ending}", std::process::id());
    let file = match keep {
        Some(folder) => Path::new(folder).join(own),
        None => std::env::temp_dir().join(own),
    };
    std::fs::write(&file, &bytes).map_err(|error| error.to_string())?;
    let checked = match source {
        Source::SpirV(_) => {
            let output =
                Command::new("spirv-val").arg("--target-env").arg("vulkan1.3").arg(&file).output();
            let output = output.map_err(|error| error.to_string())?;
            let text = || {
                String::from_utf8_lossy(&output.stdout).into_owned()
                    + &String::from_utf8_lossy(&output.stderr)
            };
            if output.status.success() { Ok(bytes.len()) } else { Err(text()) }
        }
        Source::Wgsl(text) => check_wgsl(text).map(|()| bytes.len()),
    };
    if keep.is_none() {
        // There or not: what matters is the result.
        let _ = std::fs::remove_file(file);
    }
    checked
}
