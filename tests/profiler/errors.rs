//! What is wrong is said on one line of standard error, which names the flag and the value.

use crate::profiler;

#[test]
fn refusals_name_flag_and_value() {
    #[allow(unused_variables, reason = "a build with every backend lacks none")]
    let lacks = |feature: &str| format!("add --features {feature}");
    #[allow(unused_mut)]
    let mut cases: Vec<(&str, Vec<String>)> = Vec::new();
    let mut case = |flags, parts: &[&str]| {
        cases.push((flags, parts.iter().map(ToString::to_string).collect()));
    };
    case("", &["--input-size: is missing", "--problem"]);
    case("-i 0", &["'0'", "--input-size", "at least 1"]);
    case("-i 1 2 3 4", &["'4'"]);
    case("-i x", &["'x'", "--input-size"]);
    case("-i 8 -b 0", &["--batch-size", "at least 1"]);
    case("-i 8 -n 0", &["--heads", "at least 1"]);
    case("-i 8 -n 3 --heads-kv 2", &["--heads", "3", "multiple of the 2"]);
    case("-i 8 -d 0", &["--head-dim", "at least 1"]);
    case("-i 8 --dim-value 0", &["--dim-value", "at least 1"]);
    case("-i 8 8 -w 9", &["--window-size", "axis 0 is 9", "at most 8"]);
    case("-i 8 -w 1", &["--window-size", "is 1", "at least 2"]);
    case("-i 8 8 -w 3 3 3", &["--window-size", "3 values", "1 or 2"]);
    case("-i 8 8 8 -w 3 -s 1 1", &["--stride", "2 values", "1 or 3"]);
    case("-i 8 -w 3 -s 4", &["--stride", "is 4", "at most 3"]);
    case("-i 8 -w 3 --dilation 3", &["--dilation", "is 3", "at most 2"]);
    case("-i 8 -s 2", &["--stride", "--window-size"]);
    case("-i 8 --dilation 2", &["--dilation", "--window-size"]);
    case("-i 8 --bias", &["--bias", "--window-size"]);
    case("--problem dense-4k --bias", &["--bias", "'dense-4k'"]);
    case("-i 8 8 -c 1 0", &["--causal", "1 value"]);
    case("-i 8 -c 2", &["'2'", "--causal", "true or false"]);
    case("-i 8 --scale inf", &["--scale", "inf", "finite"]);
    case("-i 8 --add-kv -1", &["-1"]);
    case("--problem flax", &["--problem", "'flax'", "--list"]);
    case("--problem flux -n 2", &["--problem", "--heads"]);
    case("-i 8 --dtype f8", &["'f8'", "--dtype", "bf16"]);
    case("-i 8 --strategy fast", &["'fast'", "--strategy", "portable"]);
    case("-i 8 --strategy blackwell", &["--strategy", "Blackwell", "cannot run"]);
    case("-i 8 -w 3 --q-tile 5", &["--q-tile 5", "Flex has --q-tile 4 with --kv-tile 1"]);
    case("-i 8 -w 3 --kv-tile 2", &["--kv-tile 2", "Flex has --q-tile 4 with --kv-tile 1"]);
    case("-i 8 -w 3 --strategy reference --q-tile 4", &["no schedule; Reference has no tiles"]);
    case("-i 8 --q-tile 0", &["--q-tile", "at least 1"]);
    case("-i 8 --kv-tile 0", &["--kv-tile", "at least 1"]);
    case("-i 8 --device tpu", &["'tpu'", "--device", "flex, cpu, cuda"]);
    case("-i 8 --device flex:1", &["flex:1", "only cuda and rocm"]);
    case("-i 8 --device cuda:x", &["'x'", "whole number"]);
    case("-i 8 --warmup-steps 0", &["--warmup-steps", "at least 1"]);
    case("-i 8 --repeats 0", &["--repeats", "at least 1"]);
    case("-i 8 --dry-run --target tpu", &["'tpu'", "--target", "sm_90"]);
    case("-i 8 --target cpu", &["--dry-run"]);
    case("-i 8 --dry-run --optimize", &["--dry-run", "--optimize"]);
    case("-i 8 --dry-run --json --nonsense", &["--nonsense"]);
    case("stray", &["stray"]);
    #[cfg(not(feature = "cuda"))]
    case("-i 8 --device cuda", &["--device cuda", &lacks("cuda")]);
    #[cfg(not(feature = "rocm"))]
    case("-i 8 --device rocm:1 --optimize", &["--device rocm", &lacks("rocm")]);
    #[cfg(not(feature = "wgpu"))]
    case("-i 8 --device wgpu", &["--device wgpu", &lacks("wgpu")]);
    #[cfg(not(feature = "vulkan"))]
    case("-i 8 --device vulkan", &["--device vulkan", &lacks("vulkan")]);
    #[cfg(not(feature = "metal"))]
    case("-i 8 --device metal", &["--device metal", &lacks("metal")]);
    #[cfg(not(feature = "cpu"))]
    case("-i 8 --device cpu", &["--device cpu", &lacks("cpu")]);

    for (flags, parts) in cases {
        let run = profiler(flags);
        assert_eq!(run.status, Some(2), "{flags}: {}", run.stderr);
        assert_eq!(run.stdout, "", "{flags}");
        let lines: Vec<_> =
            run.stderr.lines().filter(|line| !line.starts_with("warning: not built")).collect();
        let [line] = lines[..] else { panic!("{flags}: {}", run.stderr) };
        assert!(line.starts_with("error: "), "{flags}: {line}");
        for part in parts {
            assert!(line.contains(&part), "{flags}: '{part}' is not in: {line}");
        }
    }
}
