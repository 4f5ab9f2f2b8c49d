//! Packed batches.

use std::path::PathBuf;

use serde_json::Value;

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
fn the_same_work_is_timed_in_uniform_batches() {
    for (name, sizes, flags, batches) in [
        (
            "one_uniform",
            "20\n7\n20",
            "--causal 1 -n 4 --heads-kv 2 --dim-value 16",
            [[7, 7], [20, 2]],
        ),
        ("line_uniform", "20\n7\n20", "-w 5 --stride 2 --dilation 2", [[7, 7], [20, 2]]),
        // A window is no larger than its space.
        ("plane_uniform", "5 6\n1 9\n5 6", "-w 3 --causal 0 1", [[9, 8], [30, 2]]),
        ("space_uniform", "2 3 4\n3 3 3\n2 3 4", "-w 3 -n 2", [[24, 3], [27, 3]]),
    ] {
        let file = File::new(name, sizes);
        let flags = format!("{} {flags} -d 8 --backprop --repeats 1 --warmup-steps 1", file.flag());
        let found = json(&format!("{flags} --uniform"));
        let [uniform, packed] = ["uniform", "measurements"].map(|key| found[key].as_array());
        let (uniform, packed) = (uniform.expect("passes"), packed.expect("passes"));
        let names: Vec<_> = uniform.iter().filter_map(|pass| pass["pass"].as_str()).collect();
        assert_eq!(names, ["forward", "forward and backward"], "{name}");
        for (uniform, packed) in uniform.iter().zip(packed) {
            let sizes = uniform["sizes"].as_array().expect("sizes");
            let of = |size: &Value, key: &str| size[key].as_f64().expect("a number");
            let found: Vec<_> = sizes
                .iter()
                .map(|size| {
                    let axes = size["size"].as_array().expect("axes").iter();
                    let tokens: u64 = axes.map(|length| length.as_u64().unwrap_or(0)).product();
                    [tokens, size["batch"].as_u64().expect("a count")]
                })
                .collect();
            assert_eq!(found, batches, "{name}");
            // One sequence has a size of its own, and two share the other.
            let mut sequences: Vec<_> = sizes.iter().map(|size| of(size, "sequences")).collect();
            sequences.sort_by(f64::total_cmp);
            assert_eq!(sequences, [1.0, 2.0], "{name}");
            let share = |size| of(size, "median") * of(size, "sequences") / of(size, "batch");
            let (expected, median) = (sizes.iter().map(share).sum::<f64>(), of(uniform, "median"));
            // Durations are whole nanoseconds.
            assert!((median - expected).abs() < 1e-8, "{name}: {median}, not {expected}");
            let ratio = median / of(packed, "median");
            assert!((of(uniform, "ratio") - ratio).abs() < 1e-9, "{name}");
        }
        if name == "line_uniform" {
            let table = stdout(&format!("{flags} --uniform"));
            assert!(table.contains("| forward and backward, uniform |"), "{table}");
            assert!(!stdout(&flags).contains("uniform"));
        }
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
        (
            Some(&File::new("counted", "4")),
            "--uniform --dry-run",
            "'--uniform' cannot be used with",
        ),
        (None, "-i 4 --uniform", "cannot be used with '--uniform'"),
        (None, "--uniform", "--ragged <FILE>"),
    ] {
        let run = profiler(&format!("{} {flags}", file.map(File::flag).unwrap_or_default()));
        assert_eq!(run.status, Some(2), "{flags}: {}", run.stderr);
        assert!(run.stderr.contains(expected), "{}", run.stderr);
    }
}
