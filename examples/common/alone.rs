//! What tests of whole programs share.

use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

/// Draws of the CPU are shared by all threads, and each new model draws: who makes one or seeds them
/// is alone.
pub fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A new folder, removed when it is dropped. Its owner is alone.
pub struct Folder(pub PathBuf, #[expect(dead_code, reason = "is held")] MutexGuard<'static, ()>);

impl Folder {
    /// A folder of this name and of this process.
    pub fn new(name: &str) -> Self {
        let alone = alone();
        let folder = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("the temporary folder is writable");
        Self(folder, alone)
    }

    /// The path of a file in it, as a flag has it.
    pub fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("is a text").to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
