//! The C++ compiler of the host.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Its name, where there is one. Says so where there is none, and fails there with `BURN_NATTEN_REQUIRE_CXX=1`.
pub fn compiler() -> Option<&'static str> {
    let runs = |name: &&str| {
        Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    let found = ["c++", "g++", "clang++"].into_iter().find(runs);
    let is_required = std::env::var("BURN_NATTEN_REQUIRE_CXX").is_ok_and(|value| value == "1");
    assert!(found.is_some() || !is_required, "no C++ compiler");
    if found.is_none() {
        println!("passed without a run: no C++ compiler");
    }
    found
}

/// Runs the compiler in a folder. An error is the start of what it printed.
pub fn compile(compiler: &str, arguments: &[&str], folder: &Path) -> Result<(), String> {
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

/// What names a file by all that it is made of.
pub fn hash(of: impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// One object of all sources among these files, which is kept in `kept` for later processes.
pub fn object(
    compiler: &str,
    arguments: &[&str],
    files: &[(&str, &str)],
    kept: &Path,
) -> Result<PathBuf, String> {
    let object = kept.join(format!("{}.o", hash((compiler, arguments, files))));
    if object.exists() {
        return Ok(object);
    }
    let folder = Folder::below(kept);
    for (name, text) in files {
        folder.write(name, text);
    }
    let sources: Vec<_> = files.iter().filter_map(|(name, _)| name.strip_suffix(".cpp")).collect();
    std::thread::scope(|scope| {
        let compile_one = |name: &str| {
            let (source, to) = (format!("{name}.cpp"), format!("{name}.o"));
            compile(compiler, &[arguments, &["-c", &source, "-o", &to]].concat(), &folder.0)
        };
        let threads: Vec<_> =
            sources.iter().map(|name| scope.spawn(move || compile_one(name))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    let objects: Vec<_> = sources.iter().map(|name| format!("{name}.o")).collect();
    let objects: Vec<_> = objects.iter().map(String::as_str).collect();
    let whole = [&["-r", "-nostdlib", "-o", "whole"], &objects[..]].concat();
    compile(compiler, &whole, &folder.0)?;
    finish(&folder.0.join("whole"), &object);
    Ok(object)
}

/// Gives a file its name: another process sees it whole or not at all.
pub fn finish(from: &Path, to: &Path) {
    fs::rename(from, to).expect("a folder that can be written");
}

/// A folder that is removed in the end.
pub struct Folder(pub PathBuf);

impl Folder {
    /// In this folder.
    pub fn below(parent: &Path) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("burn_natten_{}_{number}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder for temporary files");
        Self(path)
    }

    /// Where temporary files are.
    pub fn temporary() -> Self {
        Self::below(&std::env::temp_dir())
    }

    /// Writes a file, and gives its path.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, bytes).expect("written");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
