//! The program from its flags to its files, with small models.

mod model;

use std::fs;

use burn::tensor::Device;

use crate::alone::Folder;
use crate::{Failure, run};

/// A small model, for either attention.
fn small<'a>() -> impl Iterator<Item = &'a str> {
    let sizes: &'a str =
        "--layers 1 --heads 2 --heads-kv 1 --head-dim 8 --cmp-block 4 --cmp-stride 2";
    let rest: &'a str = "--slc-block 4 --num-selected 4 --learning-rate 0.01";
    sizes.split(' ').chain(rest.split(' '))
}

/// The arguments of a small training on copies, written to `output`.
fn training(folder: &Folder, output: &str, more: &[&str]) -> Vec<String> {
    let output = folder.file(output);
    let rest = ["--length", "24", "--batch-size", "16", "--output", &output];
    let all = ["language_model", "train"].into_iter().chain(small()).chain(rest);
    all.chain(more.iter().copied()).map(String::from).collect()
}

/// Bits a byte of each epoch, as burn-train logs them.
fn bits(folder: &Folder, output: &str, epochs: usize) -> Vec<f64> {
    let of = |epoch: usize| {
        let log = format!("{output}/training/valid/epoch-{epoch}/Bits_per_byte.log");
        let log = fs::read_to_string(folder.0.join(&log)).unwrap_or_else(|e| panic!("{log}: {e}"));
        let value = |line: &str| line.split(',').next().and_then(|value| value.parse::<f64>().ok());
        let values: Vec<f64> = log.lines().map(|line| value(line).expect("a number")).collect();
        values.iter().sum::<f64>() / values.len() as f64
    };
    (1..=epochs).map(of).collect()
}

/// The text of a failure, which has to be one line, and whether it is one of the flags.
fn refused(arguments: &[&str]) -> (String, bool) {
    let failure = run([&["language_model"], arguments].concat()).expect_err("is to be refused");
    let text = failure.to_string();
    assert!(!text.contains('\n') && text.len() < 400, "{text}");
    (text, matches!(failure, Failure::Usage(_)))
}

/// Letters by chance, four times in a row: nothing in a byte says what the next one is, but the byte three before does, if it is not new.
/// Nor is it in the window.
fn echoes(bytes: usize) -> Vec<u8> {
    let mut state = 1u32;
    let mut letters = || {
        [(); 4].map(|()| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            b'a' + (state >> 28) as u8
        })
    };
    (0..bytes / 16).flat_map(|_| letters().repeat(4)).collect()
}

#[test]
fn both_attentions_learn_what_a_byte_alone_does_not_tell() {
    let folder = Folder::new("learn");
    let text = folder.file("echoes.txt");
    fs::write(&text, echoes(16000)).expect("is writable");
    for attention in ["sparse", "dense"] {
        let more = ["--text", &text, "--attention", attention, "--epochs", "4", "--window", "3"];
        run(training(&folder, attention, &more)).expect("is fine");
        let bits = bits(&folder, attention, 4);
        // Of sixteen letters, each as likely: 4 bits, and 1 with all that can be known.
        assert!(bits[3] < 3.0, "{attention}: {bits:?}");
    }
}

#[test]
fn a_training_that_is_continued_gives_the_same_numbers() {
    if Device::default() != Device::flex() {
        // A build with other devices continues on none but the default one.
        return;
    }
    let folder = Folder::new("resumed");
    let more = ["--copies", "3000", "--epochs", "3"];
    run(training(&folder, "out", &more)).expect("is fine");
    let result = || fs::read(folder.0.join("out/model.bpk")).expect("was written");
    let expected = result();

    // As if it had been stopped in the third epoch.
    for entry in fs::read_dir(folder.0.join("out/training/checkpoint")).expect("is there") {
        let path = entry.expect("is readable").path();
        if path.file_name().is_some_and(|name| name.to_string_lossy().contains("-3")) {
            fs::remove_file(path).expect("is there");
        }
    }
    fs::remove_file(folder.0.join("out/model.bpk")).expect("was written");
    let again = training(&folder, "out", &[&more[..], &["--resume"]].concat());
    run(again).expect("is fine");
    assert!(result() == expected);

    // And with another seed other ones.
    run(training(&folder, "other", &[&more[..], &["--seed", "2"]].concat())).expect("is fine");
    assert!(fs::read(folder.0.join("other/model.bpk")).expect("was written") != expected);

    let changed = training(&folder, "out", &["--copies", "3000", "--epochs", "4", "--resume"]);
    let changed: Vec<_> = changed[1..].iter().map(String::as_str).collect();
    let (text, is_usage) = refused(&changed);
    assert!(is_usage && text == "--resume: epochs is 4, must be 3 as in the earlier run", "{text}");
}

#[test]
fn a_model_writes_and_both_are_compared() {
    let folder = Folder::new("writes");
    let text = folder.file("text.txt");
    fs::write(&text, "the cat sat on the mat. ".repeat(100)).expect("is writable");
    let more = ["--text", &text, "--epochs", "1", "--dtype", "bf16"];
    run(training(&folder, "out", &more)).expect("is fine");
    let out = folder.file("out");
    let write = |more: &[&'static str]| {
        let all = [&["language_model", "write", "--model", &out][..], more].concat();
        run(all).map_err(|failure| failure.to_string())
    };
    write(&["--prompt", "the c", "--count", "20"]).expect("fits");
    let error = write(&["--prompt", "the c", "--count", "21"]).expect_err("does not fit");
    let expected =
        "--count: is 21, must be at most 20: the model reads 24 bytes, and --prompt has 5";
    assert_eq!(error, expected);
    write(&["--prompt", "", "--count", "1"]).expect_err("begins with nothing");

    let output = folder.file("compared");
    let sizes = ["--length", "16", "32", "--bytes", "64", "--steps", "3"];
    let compare = ["language_model", "compare", "--text", &text, "--output", &output];
    run(compare.into_iter().chain(small()).chain(sizes)).expect("is fine");
    let numbers = fs::read_to_string(folder.0.join("compared/compare.csv")).expect("was written");
    let lines: Vec<&str> = numbers.lines().collect();
    assert_eq!(lines[0], "length,attention,bits,step_ms,memory_mib");
    assert!(lines.len() == 5 && lines[4].starts_with("32,dense,"), "{numbers}");
    assert!(image::open(folder.0.join("compared/compare.png")).is_ok());
}

#[test]
fn flags_are_checked() {
    for (arguments, parts) in [
        (&["train", "--length", "1"][..], &["--length", "1", "at least 2"][..]),
        (&["train", "--learning-rate", "2"], &["--learning-rate", "2", "at most 1"]),
        (&["train", "--text", "a", "--copies", "9"], &["--text", "--copies"]),
        (&["train", "--heads", "3"], &["--heads: is 3, must be a multiple of 2 (--heads-kv)"]),
        (&["train", "--head-dim", "7"], &["--head-dim: is 7, must be even"]),
        (&["train", "--cmp-stride", "5"], &["--cmp-block: is 16, must be a multiple of 5"]),
        (&["train", "--num-selected", "2"], &["--num-selected: is 2, must be at least 3"]),
        (&["train", "--dtype", "f16"], &["--dtype: is f16, must be f32 or bf16"]),
        (&["write", "--temperature", "11"], &["--temperature", "11", "from 0 to 10"]),
        (
            &["compare", "--length", "16384"],
            &["--length: is 16384, must be at most 8192 (--bytes)"],
        ),
        (&["nonsense"], &["nonsense"]),
    ] {
        let (text, is_usage) = refused(arguments);
        assert!(is_usage && parts.iter().all(|part| text.contains(part)), "{text}");
    }
    for (arguments, part) in [
        (["train", "--text", "no/such"], "no/such: cannot be read, "),
        (["write", "--model", "no/such"], "no/such/model.json: is no model of train, "),
    ] {
        let (text, is_usage) = refused(&arguments);
        assert!(!is_usage && text.starts_with(part), "{text}");
    }
    for help in [&["--help"][..], &["train", "--help"], &["compare", "--help"], &[]] {
        run([&["language_model"], help].concat()).expect("help is no error");
    }
}
