//! Both halves of attention apart.

use crate::{json, profiler, stdout};

#[test]
fn all_ranks_are_measured() {
    for flags in [
        "-i 20 -w 5 --dilation 2 -n 4 --heads-kv 2 -d 8 --dim-value 16",
        "-i 5 6 -w 3 --stride 2 -n 2 -d 8",
        "-i 2 3 4 -w 2 3 3 --causal 1 0 0 -n 1 -d 4",
    ] {
        let flags = format!("{flags} --unfused --backprop --repeats 1 --warmup-steps 1");
        let found = json(&flags);
        let passes = found["measurements"].as_array().expect("passes");
        let names: Vec<_> = passes.iter().filter_map(|pass| pass["operator"].as_str()).collect();
        assert_eq!(names, [["qk"; 4], ["av"; 4]].concat(), "{flags}");
        assert!(passes.iter().all(|pass| pass["bytes"].as_f64() > Some(0.0)), "{found}");
    }
    let table = stdout("-i 9 -w 3 --unfused --repeats 1 --warmup-steps 1");
    assert!(table.contains("share of copy"), "{table}");
}

#[test]
fn what_is_wrong_is_said() {
    for (flags, expected) in [
        ("-i 20 --unfused", "--unfused: needs a --window-size"),
        ("-i 20 -w 3 --unfused --dry-run", "cannot be used with"),
        ("-i 20 -w 3 --unfused --bias", "cannot be used with"),
        ("-i 20 -w 30 --unfused", "--window-size: axis 0 is 30"),
        ("-i 20 -w 3 --unfused --strategy hopper", "--strategy:"),
    ] {
        let run = profiler(flags);
        assert_eq!(run.status, Some(2), "{flags}: {}", run.stderr);
        assert!(run.stderr.contains(expected), "{}", run.stderr);
    }
}
