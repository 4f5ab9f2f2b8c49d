//! Packed batches.

use std::path::PathBuf;

use crate::{json, profiler, stdout};

/// A file of sizes, which is removed in the end.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let name = format!("burn_natten_{name}_{}.txt", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, text).expect("can be written");
        Self(path)
    }

    /// The flag that names it.
    fn flag(&self) -> String {
        format!("--ragged {}", self.0.display())
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn work_is_that_of_all_sequences() {
    let file = File::new("texts", "5\n\n 3\n9 \n5\n");
    let plan = json(&format!("{} -n 2 -d 8 --causal 1 --dry-run", file.flag()));
    let pairs = |length: u64| length * (length + 1) / 2;
    let expected = 2 * (2 * pairs(5) + pairs(3) + pairs(9));
    assert_eq!(plan["pairs"].as_u64(), Some(expected));
    assert_eq!(plan["forward"]["flops"].as_u64(), Some(4 * 8 * expected));
    let described = plan["problem"].as_str().expect("a line");
    assert!(described.starts_with("4 sequences of 3 shapes, 22 tokens, dense, causal"), "{plan}");
    // No window is larger than its image.
    let images = File::new("images", "4x4\n2, 7\n");
    let plan = json(&format!("{} -w 3 -d 8 --dry-run", images.flag()));
    assert_eq!(plan["pairs"].as_u64(), Some(16 * 9 + 14 * 6));
    let table = stdout(&format!("{} -w 3 -d 8 --dry-run", images.flag()));
    assert!(table.contains("2 x 7") || table.contains("4 x 4"), "{table}");
}

#[test]
fn all_ranks_are_measured() {
    for (name, sizes, flags) in [
        ("one", "20\n7\n31", "--causal 1 -n 4 --heads-kv 2 -d 8 --dim-value 16"),
        ("line", "20\n7\n31", "-w 5 --dilation 2 -n 2 -d 8"),
        ("plane", "5 6\n3 3\n1 9", "-w 3 --stride 2 -n 2 -d 8"),
        ("space", "2 3 4\n3 3 3", "-w 2 3 3 --causal 1 0 0 -n 1 -d 4"),
    ] {
        let file = File::new(name, sizes);
        let found =
            json(&format!("{} {flags} --backprop --repeats 1 --warmup-steps 1", file.flag()));
        let passes = found["measurements"].as_array().expect("passes");
        let names: Vec<_> = passes.iter().filter_map(|pass| pass["pass"].as_str()).collect();
        assert_eq!(names, ["forward", "forward and backward"], "{name}");
        assert!(passes.iter().all(|pass| pass["median"].as_f64() > Some(0.0)), "{found}");
    }
}

#[test]
fn what_is_wrong_is_said() {
    let file = File::new("wrong", "4 5\n6\n");
    for (file, flags, expected) in [
        (None, "--ragged no/such/file", "--ragged no/such/file: cannot be read, "),
        (Some(&file), "-w 3", "line 2 has 1 numbers, must have 2"),
        (Some(&File::new("words", "4 five")), "-w 3", "line 1 is '4 five', must be 1 to 3 numbers"),
        (Some(&File::new("zero", "0")), "", "line 1 is '0', must be 1 to 3 numbers from 1 on"),
        (Some(&File::new("none", "\n")), "", "has no sizes, must have at least 1"),
        (Some(&File::new("many", "1 2 3 4")), "-w 3", "line 1 has 4 numbers, must have 3"),
        (Some(&File::new("dense", "4 5")), "", "--window-size: is missing, give that of 2 axes"),
        (Some(&File::new("both", "4")), "-i 4", "cannot be used with"),
    ] {
        let run = profiler(&format!("{} {flags}", file.map(File::flag).unwrap_or_default()));
        assert_eq!(run.status, Some(2), "{flags}: {}", run.stderr);
        assert!(run.stderr.contains(expected), "{}", run.stderr);
    }
}
