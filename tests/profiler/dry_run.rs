//! What `--dry-run` says of three problems of the catalogue, and that its numbers are right.

use burn_natten_kernels::catalogue;
use burn_natten_kernels::tiling::Tiling;

use crate::{json, stdout};

#[test]
fn video_on_hopper() {
    let flags = "--problem hunyuan --dry-run --target sm_90 --dtype bf16 --backprop";
    insta::assert_snapshot!(stdout(flags));
}

#[test]
fn image_on_hopper() {
    insta::assert_snapshot!(stdout("--problem flux --dry-run --target sm_90 --dtype bf16"));
}

#[test]
fn small_windows_on_a_cpu() {
    insta::assert_snapshot!(stdout("--problem nat-56 --dry-run --backprop"));
}

#[test]
fn the_readme_shows_what_is_printed() {
    let text = stdout("-i 56 56 -w 7 -n 2 -d 64 --backprop --dry-run");
    let readme = include_str!("../../README.md");
    assert!(readme.contains(text.trim_end()), "not in the README:\n{text}");
}

#[test]
fn tiles_are_those_of_the_library() {
    for entry in catalogue::all() {
        for target in ["cpu", "gpu", "sm_90"] {
            let flags = format!("--problem {} --dry-run --target {target}", entry.name);
            let plan = json(&flags);
            assert_eq!(plan["name"], entry.name);
            assert_eq!(plan["problem"]["pairs"], entry.problem.pairs());
            let chosen = &plan["chosen"];
            let extent = |key: &str| -> [usize; 3] {
                serde_json::from_value(chosen["tiles"][key].clone()).expect("a tile")
            };
            let tiling = Tiling { q_tile: extent("q_tile"), kv_tile: extent("kv_tile") };
            let count = tiling.count(&entry.problem);
            assert_eq!(chosen["tiles"]["visited"], count.visited, "{flags}");
            assert_eq!(chosen["tiles"]["mixed"], count.mixed(), "{flags}");
            assert_eq!(chosen["forward"]["flops"], entry.problem.forward_flops());
            assert_eq!(chosen["backward"]["flops"], entry.problem.backward_flops());
        }
    }
}

#[test]
fn a_target_is_taken_from_the_device_which_need_not_be_there() {
    for (flags, target) in [
        ("", "cpu"),
        ("--device flex", "cpu"),
        ("--device cuda:3", "sm_90"),
        ("--device metal", "gpu"),
        ("--device cuda --target gpu", "gpu"),
        ("--target sm_80", "sm_80"),
        ("--target sm120", "sm_120"),
    ] {
        let plan = json(&format!("-i 64 -w 5 --dry-run {flags}"));
        assert_eq!(plan["target"], target, "{flags}");
    }
}

#[test]
fn backprop_adds_the_backward_pass() {
    let flags = "-i 64 -w 5 --dry-run";
    assert!(!stdout(flags).contains("backward"));
    assert!(stdout(&format!("{flags} --backprop")).contains("backward, at best"));
}

#[test]
fn a_named_strategy_is_what_runs() {
    let plan = json("-i 64 -w 5 --dry-run --strategy reference");
    assert_eq!(plan["chosen"]["tier"], "Reference");
    assert_eq!(plan["alternatives"][0]["tier"], "Flex");
    assert_eq!(json("-i 64 -w 5 --dry-run --strategy auto")["chosen"]["tier"], "Flex");
    let plan = json("-i 64 -w 5 --dry-run --strategy portable --target gpu");
    assert_eq!(plan["chosen"]["tier"], "Portable");
}

#[test]
fn tiles_filter_the_schedules() {
    let all = json("-i 16 16 -w 5 --dry-run");
    assert_eq!(all["alternatives"].as_array().map(Vec::len), Some(1));
    for flags in ["--q-tile 1 4", "--kv-tile 1", "--q-tile 1 4 --kv-tile 1 1"] {
        let plan = json(&format!("-i 16 16 -w 5 --dry-run {flags}"));
        assert_eq!(plan["chosen"]["tier"], "Flex", "{flags}");
        // Reference has no tiles.
        assert_eq!(plan["alternatives"].as_array().map(Vec::len), Some(0), "{flags}");
    }
}
