//! Every flag of the problem reaches it, by its long and its short name.

use burn_natten_kernels::catalogue;
use serde_json::{Value, json as value};

use crate::{json, stdout};

/// The problem of these flags; `-i` is given.
fn problem(flags: &str) -> Value {
    json(&format!("-i 12 16 20 {flags} --dry-run"))["problem"].clone()
}

fn axes(problem: &Value, key: &str) -> Vec<Value> {
    let axes = problem["axes"].as_array().expect("axes");
    axes.iter().map(|axis| axis[key].clone()).collect()
}

#[test]
fn sizes() {
    for (flags, key, expected) in [
        ("", "batch", 1),
        ("-b 3", "batch", 3),
        ("--batch-size 4", "batch", 4),
        ("", "heads", 1),
        ("-n 6", "heads", 6),
        ("--heads 6", "heads_kv", 6),
        ("-n 6 --heads-kv 2", "heads_kv", 2),
        ("", "head_dim", 64),
        ("-d 24", "head_dim", 24),
        ("--head-dim 24", "head_dim_v", 24),
        ("-d 24 --dim-value 8", "head_dim_v", 8),
        ("", "additional", 0),
        ("--add-kv 7", "additional", 7),
    ] {
        assert_eq!(problem(&format!("-w 3 {flags}"))[key], expected, "{flags}");
    }
}

#[test]
fn a_position_bias() {
    assert_eq!(problem("-w 3")["bias"], false);
    assert_eq!(problem("-w 3 --bias")["bias"], true);
    assert_eq!(json("--problem nat-56 --bias --dry-run")["problem"]["bias"], true);
}

#[test]
fn lengths() {
    assert_eq!(axes(&problem("-w 3"), "queries"), [12, 16, 20]);
    let plan = json("--input-size 30 --window-size 4 --dry-run");
    assert_eq!(axes(&plan["problem"], "keys"), [1, 1, 30]);
}

#[test]
fn windows_one_value_for_all_axes_or_one_for_each() {
    for (flags, key, expected) in [
        ("-w 4", "kernel_size", value!([4, 4, 4])),
        ("--window-size 3 4 5", "kernel_size", value!([3, 4, 5])),
        ("-w 4", "stride", value!([1, 1, 1])),
        ("-w 4 -s 2", "stride", value!([2, 2, 2])),
        ("-w 4 --stride 1 2 3", "stride", value!([1, 2, 3])),
        ("-w 4", "dilation", value!([1, 1, 1])),
        ("-w 4 --dilation 3", "dilation", value!([3, 3, 3])),
        ("-w 4 --dilation 1 2 3", "dilation", value!([1, 2, 3])),
        ("-w 4", "is_causal", value!([false, false, false])),
        ("-w 4 -c 1", "is_causal", value!([true, true, true])),
        ("-w 4 --causal 0 0 1", "is_causal", value!([false, false, true])),
        ("-w 4 -c true false True", "is_causal", value!([true, false, true])),
    ] {
        assert_eq!(Value::Array(axes(&problem(flags), key)), expected, "{flags}");
    }
}

#[test]
fn no_window_is_dense_attention_over_all_tokens() {
    let dense = problem("");
    assert_eq!(axes(&dense, "kernel_size"), [1, 1, 12 * 16 * 20]);
    assert_eq!(axes(&dense, "is_causal"), [false, false, false]);
    assert_eq!(axes(&problem("-c 1"), "is_causal"), [false, false, true]);
}

#[test]
fn scale() {
    assert_eq!(problem("-w 3 -d 16")["scale"], 0.25);
    assert_eq!(problem("-w 3 --scale 0")["scale"], 0.0);
    assert_eq!(problem("-w 3 --scale -0.5")["scale"], -0.5);
}

#[test]
fn element_types_have_two_names() {
    for (flag, name, bytes) in [
        ("", "f32", 4),
        ("--dtype f32", "f32", 4),
        ("--dtype fp32", "f32", 4),
        ("--dtype f16", "f16", 2),
        ("--dtype fp16", "f16", 2),
        ("--dtype bf16", "bf16", 2),
        ("--dtype f64", "f64", 8),
        ("--dtype fp64", "f64", 8),
    ] {
        let plan = json(&format!("-i 10 -d 3 {flag} --dry-run"));
        assert_eq!(plan["dtype"], name);
        let lse = bytes.max(4);
        assert_eq!(plan["ideal"]["forward"]["bytes"], 10 * (4 * 3 * bytes + lse), "{flag}");
    }
}

#[test]
fn deterministic() {
    assert_eq!(json("-i 9 --dry-run")["deterministic"], false);
    assert_eq!(json("-i 9 --dry-run --deterministic")["deterministic"], true);
}

#[test]
fn allow_tf32() {
    let tier = |flags: &str| {
        let plan = json(&format!("--problem dense-4k --dry-run --target sm_80 {flags}"));
        (plan["allow_tf32"].clone(), plan["chosen"]["tier"].clone())
    };
    assert_eq!(tier(""), (false.into(), "Portable".into()));
    assert_eq!(tier("--allow-tf32"), (true.into(), "TensorCore".into()));
}

/// Gradients of scores that go through memory on Hopper, of a plane by default and of large boxes if that is asked for.
#[test]
fn memory() {
    let kept = |problem: &str, flags: &str| {
        let flags = format!("--problem {problem} --dtype bf16 --target sm_90 --backprop {flags}");
        let plan = json(&format!("{flags} --dry-run"));
        let keeps = plan["chosen"].to_string().contains("leaves slopes in memory");
        (plan["memory_preference"].clone(), keeps)
    };
    assert_eq!(kept("flux", ""), ("default".into(), true));
    assert_eq!(kept("flux", "--memory strict"), ("strict".into(), false));
    assert_eq!(kept("hunyuan", "--memory default"), ("default".into(), false));
    assert_eq!(kept("hunyuan", "--memory unrestricted"), ("unrestricted".into(), true));
}

#[test]
fn problems_of_the_catalogue_by_name() {
    let text = stdout("--list");
    for entry in catalogue::all().into_iter().chain(catalogue::small()) {
        assert!(text.contains(&format!("| {} ", entry.name)), "{}", entry.name);
    }
    let plan = json("--problem cosmos-causal --add-kv 5 --dry-run");
    assert_eq!(axes(&plan["problem"], "kernel_size"), [8, 16, 16]);
    assert_eq!(axes(&plan["problem"], "is_causal"), [false, false, true]);
    assert_eq!(
        (&plan["problem"]["heads"], &plan["problem"]["additional"]),
        (&value!(32), &value!(5))
    );
    let names = json("--list");
    assert_eq!(names[0]["name"], catalogue::all()[0].name);
}

#[test]
fn help_fits_a_screen() {
    for flag in ["-h", "--help"] {
        let text = stdout(flag);
        for part in ["Problem", "Computation", "Run", "--input-size", "--optimize", "--kv-tile"] {
            assert!(text.contains(part), "{flag}: {part}");
        }
    }
    let short = stdout("-h");
    assert!(short.lines().count() < 40, "{} lines", short.lines().count());
    assert!(short.lines().all(|line| line.len() <= 100));
    assert!(stdout("--help").contains("Examples:"));
    assert!(stdout("--version").starts_with("natten-profiler "));
    assert_eq!(stdout("-V"), stdout("--version"));
}
