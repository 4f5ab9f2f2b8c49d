use std::fs;

use clap::Args;

use crate::{Outcome, tools};

/// The packages, each with the most bytes it may have, compressed.
const PACKAGES: [(&str, u64); 2] = [("burn-natten-kernels", 256 << 10), ("burn-natten", 512 << 10)];

/// What every package holds.
const NEEDED: [&str; 5] =
    ["Cargo.toml", "README.md", "LICENSE-APACHE", "LICENSE-MIT", "src/lib.rs"];

/// What users of a package have no use for.
const STRAY: [&str; 9] = [
    ".ci/",
    ".cargo/",
    ".gitignore",
    "CONTRIBUTING.md",
    "benches/",
    "cube_kernels/",
    "rustfmt.toml",
    "tests/",
    "xtask/",
];

/// Flags of `package`.
#[derive(Args, Debug)]
pub struct Flags {
    /// Take changes that are not committed along
    #[arg(long)]
    allow_dirty: bool,

    /// Leave out building the packages from their archives
    #[arg(long)]
    no_verify: bool,
}

/// Checks what the packages hold, makes them, and builds them from their archives.
pub fn run(flags: &Flags) -> Outcome {
    for (name, _) in PACKAGES {
        let arguments = ["package", "--list", "--allow-dirty", "--package", name];
        check_contents(name, &tools::output(tools::cargo().args(arguments))?)?;
    }
    // Together: burn-natten is built against the archive of the kernels, not against crates.io's.
    let mut package = tools::cargo();
    package.args(["package", "--workspace", "--exclude", "xtask"]);
    package.args(flags.allow_dirty.then_some("--allow-dirty"));
    package.args(flags.no_verify.then_some("--no-verify"));
    tools::run(&mut package)?;
    let folder = tools::target_directory()?.join("package");
    for (name, most) in PACKAGES {
        let path = folder.join(format!("{name}-{}.crate", env!("CARGO_PKG_VERSION")));
        let size = fs::metadata(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        println!("{name}: {} KiB", size.len().div_ceil(1024));
        if size.len() > most {
            return Err(
                format!("{name}: has {} bytes, must have at most {most}", size.len()).into()
            );
        }
    }
    Ok(())
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
