//! Measurements on tiny problems: the numbers belong together.

use serde_json::Value;

use crate::{json, profiler};

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

/// What holds of every measurement of a problem with these operations and bytes.
fn check(measurement: &Value, flops: f64, bytes: f64) {
    let median = number(&measurement["median"]);
    assert!(median > 0.0);
    assert!((number(&measurement["flops"]) * median / flops - 1.0).abs() < 1e-9);
    assert!((number(&measurement["bytes"]) * median / bytes - 1.0).abs() < 1e-9);
    let [low, high] = [0, 1].map(|index| number(&measurement["quartiles"][index]));
    assert!(low <= median && median <= high);
    // Inputs and outputs at the least.
    assert!(number(&measurement["memory"]) >= bytes);
    assert!(number(&measurement["share"]) > 0.0);
}

#[test]
fn a_run_measures_both_passes() {
    let flags = "-i 10 12 -w 3 -n 2 -d 8 --warmup-steps 1 --repeats 2 --backprop";
    let result = json(flags);
    assert!(result["device"].as_str().is_some_and(|device| device.starts_with("flex, ")));
    assert!(number(&result["peaks"]["copy"]) > 0.0 && number(&result["peaks"]["matmul"]) > 0.0);
    let measured = result["measurements"].as_array().expect("measurements");
    assert_eq!(measured.len(), 2);
    let flops = 2.0 * (10 * 12 * 9 * 2 * 16) as f64;
    let bytes = (10 * 12 * 2 * (4 * 8 + 1) * 4) as f64;
    for (measurement, pass, factor) in
        [(&measured[0], "forward", [1.0, 1.0]), (&measured[1], "backward", [2.5, 2.0])]
    {
        assert_eq!(measurement["tier"], "Flex");
        assert_eq!(measurement["pass"], pass);
        assert_eq!(measurement["samples"].as_array().map(Vec::len), Some(2));
        check(measurement, flops * factor[0], bytes * factor[1]);
    }
}

#[test]
fn a_table_for_people_and_nothing_else_on_standard_output() {
    let run = profiler("-i 9 -w 3 -d 8 --strategy reference --repeats 1");
    assert_eq!(run.status, Some(0), "{}", run.stderr);
    let lines: Vec<_> = run.stdout.lines().collect();
    assert!(lines[0].starts_with("problem  9 tokens, window 3, "), "{}", run.stdout);
    assert!(lines[1].starts_with("device   flex, "), "{}", run.stdout);
    assert!(lines[2].starts_with("peaks    measured now: matmul in f32 "), "{}", run.stdout);
    for column in
        ["kernel", "pass", "calls", "median", "quartiles", "FLOP/s", "B/s", "share", "memory"]
    {
        assert!(lines[4].contains(column), "{}", run.stdout);
    }
    assert!(lines[6].starts_with("| Reference, "), "{}", run.stdout);
    assert_eq!(lines.len(), 7, "{}", run.stdout);
}

#[test]
fn optimize_tries_all_and_says_how_to_get_the_best() {
    let flags = "-i 8 8 -w 3 -n 2 -d 8 --repeats 1 --warmup-steps 1 --optimize";
    let result = json(flags);
    let trials = result["trials"].as_array().expect("trials");
    let mut tiers: Vec<_> = trials.iter().map(|trial| trial["plan"]["tier"].clone()).collect();
    let seconds: Vec<_> = trials.iter().map(|trial| number(&trial["seconds"])).collect();
    assert!(seconds.is_sorted(), "{seconds:?}");
    tiers.sort_by_key(Value::to_string);
    assert_eq!(tiers, ["Flex", "Reference"]);
    for trial in trials {
        assert_eq!(trial["error"], Value::Null);
        // What is said to pass gives that tier.
        let flags = trial["flags"].as_str().expect("flags");
        let plan = json(&format!("-i 8 8 -w 3 -n 2 -d 8 --dry-run {flags}"));
        assert_eq!(plan["chosen"]["tier"], trial["plan"]["tier"], "{flags}");
    }
}
