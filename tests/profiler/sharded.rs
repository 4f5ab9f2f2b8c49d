//! Tokens in shards on several devices.

use crate::{json, profiler, stdout};

#[test]
fn every_split_is_measured_beside_one_device() {
    for (flags, splits) in [
        ("-i 13 -w 3 -n 2 -d 8", &["halo along axis 0", "heads, tokens along axis 0"][..]),
        ("-i 4 6 -w 2 3 -n 3 -d 8", &["halo along axis 0", "halo along axis 1"]),
        ("-i 12 -n 2 -d 8 --causal 1", &["gather", "ring", "heads"]),
    ] {
        let flags = format!("{flags} --devices flex,flex --backprop --repeats 1 --warmup-steps 1");
        let found = json(&flags);
        let measured = found["measurements"].as_array().expect("passes");
        let names: Vec<_> = measured.iter().filter_map(|pass| pass["split"].as_str()).collect();
        let expected = ["one device"].into_iter().chain(splits.iter().copied());
        assert_eq!(names, expected.flat_map(|name| [name; 2]).collect::<Vec<_>>(), "{flags}");
        assert!(measured.iter().all(|pass| pass["median"].as_f64() > Some(0.0)), "{found}");
        assert_eq!(measured[0]["speed_up"], 1.0);
    }
    let table = stdout("-i 9 -w 3 --devices flex,flex,flex --repeats 1 --warmup-steps 1");
    assert!(table.contains("speed-up") && table.contains("halo along axis 0"), "{table}");
}

#[test]
fn splits_are_estimated_without_a_device() {
    let found = json("--problem hunyuan --dtype bf16 --devices cuda:0,cuda:1 --dry-run");
    let estimates = found["estimates"].as_array().expect("splits");
    assert_eq!((estimates.len(), found["members"].as_u64()), (6, Some(2)));
    let bytes = |split: &str| {
        let found = estimates.iter().find(|estimate| estimate["split"] == split);
        found.and_then(|estimate| estimate["bytes"].as_u64())
    };
    // Eleven and twelve columns of keys and values.
    assert_eq!(bytes("halo along axis 2"), Some(23 * 30 * 48 * 2 * 24 * 128 * 2));
    let table = stdout("--problem flux-s16 --dtype bf16 --devices cuda:0,cuda:1 --dry-run");
    assert!(table.contains("transfer") && table.contains("an exchange"), "{table}");
}

#[test]
fn what_is_wrong_is_said() {
    for (flags, expected) in [
        ("-i 20 --devices flex,tpu", "'tpu'"),
        ("-i 20 -w 3 --devices flex --device flex", "cannot be used with"),
        ("-i 20 -w 3 --devices flex,flex --bias", "cannot be used with"),
        ("-i 20 --devices flex,flex --dry-run", "--dry-run: with --devices needs a --window-size"),
        ("-i 20 -w 3 --devices flex,flex --strategy hopper", "--strategy:"),
    ] {
        let run = profiler(flags);
        assert_eq!(run.status, Some(2), "{flags}: {}", run.stderr);
        assert!(run.stderr.contains(expected), "{}", run.stderr);
    }
}
