use std::fs;
use std::path::PathBuf;

use crate::{Outcome, tools};

/// What stands in the README before the two blocks that make up the crate.
const DEPENDENCIES: &str = "<!-- scratch: dependencies -->";
const PROGRAM: &str = "<!-- scratch: program -->";

/// By what factor the loss must fall at least.
const FALL: f64 = 4.0;

/// Where the crates are that are not on crates.io yet.
pub struct Sources {
    /// burn-natten.
    pub library: PathBuf,
    /// burn-natten-kernels, unless the library finds it by itself.
    pub kernels: Option<PathBuf>,
}

/// Trains with this checkout.
pub fn run() -> Outcome {
    train(&Sources { library: tools::root(), kernels: None })
}

/// Builds the README's training example as its readers would, and runs it.
pub fn train(sources: &Sources) -> Outcome {
    let root = tools::root();
    let readme = fs::read_to_string(root.join("README.md"))?;
    let folder = tempfile::tempdir()?;
    let path = folder.path();
    fs::create_dir(path.join("src"))?;
    fs::write(path.join("Cargo.toml"), manifest(block(&readme, DEPENDENCIES)?, sources)?)?;
    fs::write(path.join("src/main.rs"), block(&readme, PROGRAM)?)?;
    // The versions that the workspace is tested with, and what it has built of them.
    fs::copy(root.join("Cargo.lock"), path.join("Cargo.lock"))?;
    let target = tools::target_directory()?;
    let cargo = |arguments: &[&str]| {
        let mut cargo = tools::cargo();
        cargo.args(arguments).current_dir(path).env("CARGO_TARGET_DIR", &target);
        cargo
    };
    let outcome = tools::output(&mut cargo(&["run", "--quiet"]));
    // The next crate has another path, so that nothing would ever use this one's program again.
    tools::run(&mut cargo(&["clean", "--quiet", "--package", "scratch"]))?;
    let text = outcome?;
    print!("{text}");
    Ok(check_losses(&text)?)
}

/// The lines of the fenced block behind `mark`.
fn block<'a>(readme: &'a str, mark: &str) -> Result<&'a str, String> {
    let lacks = || format!("README.md: lacks a fenced block behind {mark}");
    let (_, rest) = readme.split_once(mark).ok_or_else(lacks)?;
    let (_, rest) = rest.split_once("```").ok_or_else(lacks)?;
    let (_, rest) = rest.split_once('\n').ok_or_else(lacks)?;
    rest.split_once("```").map(|(block, _)| block).ok_or_else(lacks)
}

/// The README's dependencies as a manifest, with `sources` for what is not published yet.
fn manifest(dependencies: &str, sources: &Sources) -> Result<String, String> {
    let published = format!("burn-natten = \"{}\"", major_minor());
    if !dependencies.lines().any(|line| line == published) {
        return Err(format!("README.md: does not depend on {published}"));
    }
    let at = |path: &PathBuf| format!("{{ path = {:?} }}", path.display().to_string());
    let local = format!("burn-natten = {}", at(&sources.library));
    let patch = sources.kernels.as_ref().map_or(String::new(), |kernels| {
        format!("[patch.crates-io]\nburn-natten-kernels = {}\n\n", at(kernels))
    });
    Ok(format!(
        "[package]\nname = \"scratch\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n\
         [workspace]\n\n{patch}{}\n\
         [profile.dev]\ndebug = false\n",
        dependencies.replace(&published, &local)
    ))
}

fn major_minor() -> String {
    format!("{}.{}", env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"))
}

/// Fails unless the numbers behind the word `loss` fall.
fn check_losses(text: &str) -> Result<(), String> {
    let numbers = text.lines().filter_map(|line| line.split_once("loss ")?.1.trim().parse().ok());
    let losses: Vec<f64> = numbers.collect();
    match losses.as_slice() {
        [first, .., last] if *last * FALL < *first => Ok(()),
        losses => Err(format!("the losses {losses:?} do not fall by a factor of {FALL}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_behind_their_marks() {
        let readme = "a\n<!-- m -->\n\n```rust\nfn main() {}\n```\nb\n```\nc\n```\n";
        assert_eq!(block(readme, "<!-- m -->"), Ok("fn main() {}\n"));
        assert!(block(readme, "<!-- n -->").is_err());
    }

    #[test]
    fn the_readme_has_both_blocks() {
        let readme = fs::read_to_string(tools::root().join("README.md")).expect("a README");
        let dependencies = block(&readme, DEPENDENCIES).expect("dependencies");
        let sources = Sources { library: "/x".into(), kernels: Some("/y".into()) };
        let manifest = manifest(dependencies, &sources).expect("a manifest");
        assert!(manifest.contains("\nburn-natten = { path = \"/x\" }\n"), "{manifest}");
        assert!(manifest.contains("\nburn-natten-kernels = { path = \"/y\" }\n"), "{manifest}");
        assert!(block(&readme, PROGRAM).expect("a program").contains("fn main()"));
    }

    #[test]
    fn losses_have_to_fall() {
        assert_eq!(check_losses("step 0: loss 1.0\nstep 9: loss 0.1\n"), Ok(()));
        assert!(check_losses("step 0: loss 1.0\nstep 9: loss 0.9\n").is_err());
        assert!(check_losses("step 0: loss 1.0\nstep 9: loss NaN\n").is_err());
        assert!(check_losses("nothing").is_err());
    }
}
