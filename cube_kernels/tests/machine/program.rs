//! Programs of the host: the machine, and kernels linked with it.

use std::collections::HashMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, OnceLock};

use crate::text;

/// The machine's files.
const FILES: [(&str, &str); 10] = [
    ("device.h", include_str!("cpp/device.h")),
    ("machine.h", include_str!("cpp/machine.h")),
    ("access.cpp", include_str!("cpp/access.cpp")),
    ("blackwell.cpp", include_str!("cpp/blackwell.cpp")),
    ("clocks.cpp", include_str!("cpp/clocks.cpp")),
    ("copies.cpp", include_str!("cpp/copies.cpp")),
    ("fibers.cpp", include_str!("cpp/fibers.cpp")),
    ("hopper.cpp", include_str!("cpp/hopper.cpp")),
    ("layout.cpp", include_str!("cpp/layout.cpp")),
    ("machine.cpp", include_str!("cpp/machine.cpp")),
];

/// A folder that is removed in the end.
pub struct Folder(pub PathBuf);

impl Folder {
    /// In this folder.
    fn below(parent: &Path) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("burn_natten_machine_{}_{number}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder for temporary files");
        Self(path)
    }

    /// Where temporary files are.
    pub fn new() -> Self {
        Self::below(&std::env::temp_dir())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn hash(of: impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// Where programs are made and kept between runs, by the hash of all that they are made of: below cargo's target folder.
fn kept() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("machine");
    fs::create_dir_all(&folder).expect("cargo's folder for tests");
    folder
}

/// What every part is compiled with. A fortified C library, which some systems have by default, takes the jumps from one fiber's stack to
/// another's for errors.
const DIALECT: [&str; 2] = ["-std=c++17", "-U_FORTIFY_SOURCE"];

/// As on a device, a product and a sum become one instruction, which rounds once: what holds by luck of two roundings fails here too.
fn contraction() -> &'static [&'static str] {
    #[cfg(target_arch = "x86_64")]
    if !std::arch::is_x86_feature_detected!("fma") {
        return &[];
    }
    match cfg!(target_arch = "x86_64") {
        true => &["-ffp-contract=fast", "-fexpensive-optimizations", "-mfma"],
        false => &["-ffp-contract=fast", "-fexpensive-optimizations"],
    }
}

/// Runs the compiler.
fn compile(compiler: &str, arguments: &[&str], folder: &Path) -> Result<(), String> {
    let output = Command::new(compiler)
        .current_dir(folder)
        .args(arguments)
        .output()
        .expect("the compiler ran before");
    let log = String::from_utf8_lossy(&output.stderr);
    match output.status.success() {
        true => Ok(()),
        false => Err(log.chars().take(3000).collect()),
    }
}

/// Another process sees a program whole or not at all.
fn finish(from: &Path, to: &Path) {
    fs::rename(from, to).expect("cargo's folder for tests can be written");
}

/// The machine without a kernel, compiled once.
fn machine(compiler: &str) -> &'static Path {
    static MACHINE: OnceLock<PathBuf> = OnceLock::new();
    MACHINE.get_or_init(|| {
        let object = kept().join(format!("machine_{}.o", hash((compiler, FILES))));
        if object.exists() {
            return object;
        }
        let folder = Folder::below(&kept());
        write_files(&folder.0);
        let sources: Vec<_> =
            FILES.iter().map(|(name, _)| *name).filter(|name| name.ends_with(".cpp")).collect();
        std::thread::scope(|scope| {
            for name in &sources {
                let folder = &folder.0;
                scope.spawn(move || {
                    let arguments = ["-O2", "-Wall", "-Wextra", "-Werror", "-c", name];
                    compile(compiler, &[&DIALECT, &arguments[..]].concat(), folder)
                        .unwrap_or_else(|log| panic!("{log}"));
                });
            }
        });
        let objects: Vec<_> = sources.iter().map(|name| name.replace(".cpp", ".o")).collect();
        let mut arguments = vec!["-r", "-nostdlib", "-o", "whole.o"];
        arguments.extend(objects.iter().map(String::as_str));
        compile(compiler, &arguments, &folder.0).unwrap_or_else(|log| panic!("{log}"));
        finish(&folder.0.join("whole.o"), &object);
        object
    })
}

fn write_files(folder: &Path) {
    for (name, text) in FILES {
        fs::write(folder.join(name), text).expect("written");
    }
}

/// The machine with a kernel, whose text is `code`. An error is the compiler's.
pub fn build(compiler: &str, code: &str, entry: &str) -> Result<PathBuf, String> {
    type Slot = Arc<OnceLock<Result<PathBuf, String>>>;
    static KNOWN: LazyLock<Mutex<HashMap<String, Slot>>> = LazyLock::new(Mutex::default);
    let text = text::program(code, entry);
    let key = hash((compiler, FILES, &text, entry, contraction()));
    let slot = KNOWN.lock().expect("no panic").entry(key.clone()).or_default().clone();
    slot.get_or_init(|| {
        let program = kept().join(format!("{entry}_{key}"));
        if program.exists() {
            return Ok(program);
        }
        let machine = machine(compiler).to_str().expect("a path of text");
        let folder = Folder::below(&kept());
        write_files(&folder.0);
        fs::write(folder.0.join("kernel.cpp"), text).expect("written");
        // Each access becomes a call, which the machine has: the sanitizer's library is not linked.
        let arguments = ["-O1", "-w", "-fsanitize=thread", "-c", "kernel.cpp"];
        compile(compiler, &[&DIALECT, contraction(), &arguments[..]].concat(), &folder.0)?;
        compile(compiler, &["kernel.o", machine, "-o", "kernel"], &folder.0)?;
        finish(&folder.0.join("kernel"), &program);
        Ok(program)
    })
    .clone()
}
