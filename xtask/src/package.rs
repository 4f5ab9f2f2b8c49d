use std::fs;
use std::process::Command;

use clap::Args;

use crate::scratch::{self, Sources};
use crate::{Outcome, tools};

/// The packages, each with the most bytes it may have, compressed.
const PACKAGES: [(&str, u64); 2] = [("burn-natten-kernels", 640 << 10), ("burn-natten", 640 << 10)];

/// What every package holds.
const NEEDED: [&str; 5] =
    ["Cargo.toml", "README.md", "LICENSE-APACHE", "LICENSE-MIT", "src/lib.rs"];

/// What users of a package have no use for.
const STRAY: [&str; 11] = [
    ".ci/",
    ".cargo/",
    ".gitignore",
    "CONTRIBUTING.md",
    "benches/",
    "cube_kernels/",
    "deny.toml",
    "rustfmt.toml",
    "test_support/",
    "tests/",
    "xtask/",
];

/// Flags of `package`.
#[derive(Args, Debug)]
pub struct Flags {
    /// Take changes that are not committed along
    #[arg(long)]
    allow_dirty: bool,

    /// Leave out training the README's example with what is in the archives
    #[arg(long)]
    no_verify: bool,
}

/// Checks what the packages hold, makes them, and trains the README's example with them.
pub fn run(flags: &Flags) -> Outcome {
    for (name, _) in PACKAGES {
        let arguments = ["package", "--list", "--allow-dirty", "--package", name];
        check_contents(name, &tools::output(tools::cargo().args(arguments))?)?;
    }
    // Cargo's own verification keeps what it has unpacked by name and version, so that a second one
    // would build against the kernels of the first.
    let mut package = tools::cargo();
    package.args(["package", "--no-verify"]);
    package.args(PACKAGES.iter().flat_map(|(name, _)| ["--package", name]));
    package.args(flags.allow_dirty.then_some("--allow-dirty"));
    tools::run(&mut package)?;
    let archives = tools::target_directory()?.join("package");
    let unpacked = archives.join("unpacked");
    if unpacked.exists() {
        fs::remove_dir_all(&unpacked)?;
    }
    fs::create_dir_all(&unpacked)?;
    for (name, most) in PACKAGES {
        let path = archives.join(format!("{}.crate", with_version(name)));
        let size = fs::metadata(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        println!("{name}: {} KiB", size.len().div_ceil(1024));
        if size.len() > most {
            let text = format!("{name}: has {} bytes, must have at most {most}", size.len());
            return Err(text.into());
        }
        // Without the archive's dates, by which nothing would ever have changed.
        tools::run(Command::new("tar").arg("-xmzf").arg(&path).arg("-C").arg(&unpacked))?;
    }
    if flags.no_verify {
        return Ok(());
    }
    let [kernels, library] = PACKAGES.map(|(name, _)| unpacked.join(with_version(name)));
    scratch::train(&Sources { library, kernels: Some(kernels) })
}

fn with_version(name: &str) -> String {
    format!("{name}-{}", env!("CARGO_PKG_VERSION"))
}

fn check_contents(name: &str, list: &str) -> Result<(), String> {
    if let Some(missing) = NEEDED.iter().find(|file| !list.lines().any(|line| line == **file)) {
        return Err(format!("{name}: lacks {missing}"));
    }
    let is_stray = |line: &&str| STRAY.iter().any(|stray| line.starts_with(stray));
    match list.lines().find(is_stray) {
        Some(stray) => Err(format!("{name}: holds {stray}, which `exclude` must name")),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_neither_too_few_nor_too_many() {
        let list = NEEDED.join("\n");
        assert_eq!(check_contents("x", &list), Ok(()));
        assert_eq!(
            check_contents("x", &list.replace("README.md\n", "")),
            Err("x: lacks README.md".to_string())
        );
        assert_eq!(
            check_contents("x", &format!("{list}\ntests/golden/cases.bin")),
            Err("x: holds tests/golden/cases.bin, which `exclude` must name".to_string())
        );
    }
}
