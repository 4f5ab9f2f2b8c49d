//! Programs of the host: the machine, and kernels linked with it.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, OnceLock};

use test_support::cpp::{Folder, compile, finish, hash, object};

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

/// Half of the machine's time goes into joining clocks, which are arrays.
fn vectors() -> &'static [&'static str] {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        return &["-mavx2"];
    }
    &[]
}

/// The machine without a kernel, compiled once.
fn machine(compiler: &str) -> &'static Path {
    static MACHINE: OnceLock<PathBuf> = OnceLock::new();
    MACHINE.get_or_init(|| {
        let arguments = [&DIALECT, vectors(), &["-O3", "-Wall", "-Wextra", "-Werror"][..]].concat();
        object(compiler, &arguments, &FILES, &kept()).unwrap_or_else(|log| panic!("{log}"))
    })
}

/// The machine with a kernel, whose text is `code`. An error is the compiler's.
pub fn build(compiler: &str, code: &str, entry: &str) -> Result<PathBuf, String> {
    type Slot = Arc<OnceLock<Result<PathBuf, String>>>;
    static KNOWN: LazyLock<Mutex<HashMap<String, Slot>>> = LazyLock::new(Mutex::default);
    let text = text::program(code, entry);
    let key = hash((compiler, FILES, &text, entry, contraction(), vectors()));
    let slot = KNOWN.lock().expect("no panic").entry(key.clone()).or_default().clone();
    slot.get_or_init(|| {
        let program = kept().join(format!("{entry}_{key}"));
        if program.exists() {
            return Ok(program);
        }
        let machine = machine(compiler).to_str().expect("a path of text");
        let folder = Folder::below(&kept());
        for (name, text) in FILES {
            folder.write(name, text);
        }
        folder.write("kernel.cpp", text);
        // Each access becomes a call, which the machine has: the sanitizer's library is not linked.
        let arguments = ["-O1", "-w", "-fsanitize=thread", "-c", "kernel.cpp"];
        compile(compiler, &[&DIALECT, contraction(), &arguments[..]].concat(), &folder.0)?;
        compile(compiler, &["kernel.o", machine, "-o", "kernel"], &folder.0)?;
        finish(&folder.0.join("kernel"), &program);
        Ok(program)
    })
    .clone()
}
