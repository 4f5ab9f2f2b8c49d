//! Block-sparse and native sparse attention.

use serde_json::Value;

use crate::{json, profiler, stdout};

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

#[test]
fn the_steps_of_native_sparse_attention_have_the_work_that_is_counted_by_hand() {
    let flags = "-i 200 -n 4 --heads-kv 2 -d 8 --native-sparse --num-selected 3 -w 20 --dry-run";
    let plan = json(flags);
    let steps = plan["steps"].as_array().expect("steps");
    let names: Vec<&str> = steps.iter().filter_map(|step| step["name"].as_str()).collect();
    assert_eq!(
        names,
        ["compress", "compressed", "scores and lists", "selected", "window", "gates"]
    );
    let pairs = |step: usize| number(&steps[step]["pairs"]) as usize / 4;
    let blocks = |query: usize| if query < 31 { 0 } else { (query - 31) / 16 + 1 };
    let compressed: usize = (0..200).map(blocks).sum();
    // Three blocks of 64 tokens hold everything but the block in front of the last one.
    let selected: usize =
        (0..200).map(|query| if query < 192 { query + 1 } else { query - 63 }).sum();
    let window: usize = (0..200).map(|query| (query + 1).min(20)).sum();
    assert_eq!([1, 2, 3, 4].map(pairs), [compressed, compressed, selected, window]);
    for step in [1, 3, 4] {
        assert_eq!(steps[step]["tier"], "Flex");
        let flops = 4 * pairs(step) * 2 * 16;
        assert_eq!(number(&steps[step]["forward"]["flops"]) as usize, flops);
        assert_eq!(number(&steps[step]["backward"]["flops"]) as usize, flops / 2 * 5);
    }
    // No gradient flows through a choice.
    assert_eq!(number(&steps[2]["backward"]["flops"]), 0.0);
}

#[test]
fn tiers_are_those_of_the_target() {
    let tiers = |flags: &str| -> Vec<String> {
        let plan = json(&format!("-i 4096 -n 8 -d 64 --dry-run {flags}"));
        let steps = plan["steps"].as_array().expect("steps").iter();
        steps.map(|step| step["tier"].as_str().expect("a tier").to_string()).collect()
    };
    let hopper = tiers("--native-sparse --target sm_90 --dtype bf16");
    assert_eq!(hopper[1..5], ["Hopper", "Portable", "Hopper", "Hopper"]);
    assert_eq!(tiers("--block-sparse 4 --target gpu"), ["Portable"]);
    assert_eq!(tiers("--block-sparse 4"), ["Flex"]);
    assert_eq!(tiers("--block-sparse 4 --strategy reference"), ["Reference"]);
    let text = stdout("-i 4096 -n 8 -d 64 --native-sparse --cmp-top 4 --dry-run --backprop");
    assert!(text.contains("in 4 super-blocks") && text.contains("backward, at best"), "{text}");
}

#[test]
fn both_are_measured() {
    for flags in [
        "-i 70 -n 2 -d 8 --native-sparse --cmp-block 8 --cmp-stride 4 --slc-block 8 --num-selected 3 -w 9",
        "-i 70 -n 2 --heads-kv 1 -d 8 --native-sparse --cmp-block 8 --cmp-stride 4 --slc-block 8 --num-selected 4 -w 9 --agree 90",
        "-i 40 -n 4 --heads-kv 2 -d 8 --block-sparse 2 --query-block 8 --key-block 16 --causal 1",
        "-i 9 10 -n 2 -d 8 --block-sparse 3 --query-block 2 3 --key-block 4",
        "-i 4 5 6 -n 2 -d 8 --block-sparse 2 --query-block 2 --key-block 3",
    ] {
        let result = json(&format!("{flags} --backprop --warmup-steps 1 --repeats 2"));
        let measured = result["measurements"].as_array().expect("measurements");
        // The steps but for the gates come behind the whole, of which one has no backward pass, and is left out where lists are given.
        let steps = match (flags.contains("native"), flags.contains("agree")) {
            (true, false) => 9,
            (true, true) => 8,
            _ => 0,
        };
        assert_eq!(measured.len(), 2 + steps, "{flags}");
        assert_eq!(measured[1]["pass"], "forward and backward");
        for measurement in measured {
            assert!(number(&measurement["median"]) > 0.0 && number(&measurement["flops"]) > 0.0);
            assert!(number(&measurement["memory"]) > 0.0);
        }
    }
    let table = stdout("-i 64 -d 8 --block-sparse 1 --repeats 1");
    assert!(
        table.starts_with("problem  64 tokens, 1 of 1 blocks of 64 keys for 64 queries"),
        "{table}"
    );
}

#[test]
fn a_token_behind_those_in_a_cache_is_measured() {
    let flags = "-i 70 -b 2 -n 4 --heads-kv 2 -d 8 --native-sparse --cmp-block 8 --cmp-stride 4 --slc-block 8 --num-selected 3 -w 9 \
                 --decode --warmup-steps 1 --repeats 2";
    let result = json(flags);
    let [measured] = &result["measurements"].as_array().expect("measurements")[..] else {
        panic!("{result}");
    };
    assert_eq!(measured["pass"], "a token, forward");
    // 16 compressed blocks, 3 blocks of 8 tokens, and a window of 9.
    let flops = 2 * 2 * 4 * 16 * (16 + 24 + 9);
    let counted = number(&measured["flops"]) * number(&measured["median"]);
    assert!((counted - f64::from(flops)).abs() < 2.0, "{counted}");
    let problem = result["problem"].as_str().expect("a problem");
    assert!(problem.contains("70 tokens, one more in native sparse attention"), "{problem}");
}

#[test]
fn refusals_name_the_flag_and_the_value() {
    for (flags, parts) in [
        (
            "-i 64 --block-sparse 9",
            &["--block-sparse: is 9, must be at most 1 (blocks of keys)"][..],
        ),
        ("-i 64 --block-sparse 1 --query-block 2 2", &["--query-block: has 2 values"]),
        ("--block-sparse 1", &["--input-size: is missing"]),
        ("-i 64 --block-sparse 1 -w 3", &["--block-sparse", "--window-size"]),
        ("-i 64 --block-sparse 1 --native-sparse", &["--block-sparse", "--native-sparse"]),
        ("-i 8 8 --native-sparse", &["--input-size: has 2 values, must have 1"]),
        ("-i 64 --native-sparse --cmp-stride 5", &["--cmp-block: is 32, must be a multiple of 5"]),
        ("-i 64 --native-sparse --optimize", &["--native-sparse", "--optimize"]),
        ("-i 64 --cmp-block 8", &["--native-sparse"]),
        ("-i 64 --agree 50", &["--native-sparse"]),
        ("-i 64 --native-sparse --agree 101", &["101", "0..=100"]),
        ("-i 64 --decode", &["--native-sparse"]),
        ("-i 64 --native-sparse --decode --backprop", &["--decode", "--backprop"]),
        ("-i 64 --native-sparse --decode --dry-run", &["--decode", "--dry-run"]),
        ("-i 64 -n 3 --heads-kv 2 --native-sparse", &["--heads: "]),
    ] {
        let run = profiler(flags);
        assert_eq!(run.status, Some(2), "{flags}: {}", run.stderr);
        assert!(parts.iter().all(|part| run.stderr.contains(part)), "{flags}: {}", run.stderr);
    }
}
