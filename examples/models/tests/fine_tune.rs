//! `fine-tune`.

use std::collections::BTreeMap;
use std::fs;

use burn::tensor::Device;
use burn_natten::models::nat::NatConfig;
use image::{Rgb, RgbImage};
use serde_json::Value;

use super::{Folder, flags, refused};
use crate::recipe::{ClassifierConfig, Recipe};
use crate::run;

/// A folder with pictures of two classes, stripes and their like upright, and a model for them.
fn prepared(name: &str) -> Folder {
    let folder = Folder::new(name);
    for class in ["across", "upright"] {
        fs::create_dir_all(folder.0.join("photos").join(class)).expect("is writable");
        for index in 0..8u32 {
            let pixel = |x: u32, y: u32| {
                let place = if class == "across" { y } else { x };
                let shade = if (place + index) % 8 < 4 { 220 - 9 * index } else { 20 + 5 * index };
                Rgb([shade as u8; 3])
            };
            let path = folder.0.join(format!("photos/{class}/{index}.png"));
            RgbImage::from_fn(24, 20, pixel).save(path).expect("is writable");
        }
    }
    let nat = NatConfig::new(8, vec![1, 1], vec![2, 2]).with_kernel_size(3).with_num_classes(5);
    let nat = nat.with_drop_path_rate(0.2);
    Device::flex().seed(5);
    let recipe = Recipe { model: ClassifierConfig::Nat(nat), image_size: 16, margin: 1.0 };
    let model = recipe.model.init(&Device::flex());
    model.save(&folder.0.join("start.safetensors")).expect("is writable");
    recipe.write(&folder.0.join("start.json")).expect("is writable");
    folder
}

/// Flags of a training in `folder` that writes to `output`.
fn arguments(folder: &Folder, output: &str, more: &[&str]) -> Vec<String> {
    let [model, weights] = ["start.json", "start.safetensors"].map(|name| folder.file(name));
    let (images, output) = (folder.file("photos"), folder.file(output));
    let all = [
        &["fine-tune", "--model", &model, "--weights", &weights, "--images", &images][..],
        &["--output", &output, "--batch-size", "5", "--learning-rate", "0.01", "--average", "0.5"],
        more,
    ];
    all.concat().into_iter().map(String::from).collect()
}

fn train(folder: &Folder, output: &str, more: &[&str]) {
    let arguments = arguments(folder, output, more);
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    run(flags(&arguments)).expect("is fine");
}

/// The loss of each epoch, as burn-train logs it.
fn losses(folder: &Folder, output: &str, epochs: usize) -> Vec<f64> {
    let loss = |epoch: usize| {
        let log = folder.0.join(output).join(format!("training/train/epoch-{epoch}/Loss.log"));
        let log = fs::read_to_string(&log).unwrap_or_else(|error| panic!("{log:?}: {error}"));
        let values: Vec<f64> = log
            .lines()
            .map(|line| {
                line.split(',').next().and_then(|value| value.parse().ok()).expect("a number")
            })
            .collect();
        values.iter().sum::<f64>() / values.len() as f64
    };
    (1..=epochs).map(loss).collect()
}

/// The weights that a training has saved, by key.
fn tensors(folder: &Folder, output: &str) -> BTreeMap<String, Vec<f32>> {
    let file = fs::read(folder.0.join(output).join("model.safetensors")).expect("was written");
    let (length, rest) = file.split_at(8);
    let length = u64::from_le_bytes(length.try_into().expect("eight bytes")) as usize;
    let header: BTreeMap<String, Value> = serde_json::from_slice(&rest[..length]).expect("is JSON");
    let values = |entry: &Value| -> Option<Vec<f32>> {
        let [start, end] = [0, 1].map(|at| entry["data_offsets"][at].as_u64());
        let bytes = &rest[length..][start? as usize..end? as usize];
        let number = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        Some(bytes.chunks_exact(4).map(number).collect())
    };
    header.iter().filter_map(|(key, entry)| Some((key.clone(), values(entry)?))).collect()
}

#[test]
fn the_loss_falls_and_classify_takes_the_result() {
    let folder = prepared("falls");
    train(&folder, "out", &["--epochs", "12"]);
    let losses = losses(&folder, "out", 12);
    let (first, last) = (losses[0], losses[11]);
    assert!(last < 0.8 * first, "{losses:?}");

    let [model, weights, classes] = ["model.json", "model.safetensors", "classes.txt"]
        .map(|name| folder.file(&format!("out/{name}")));
    let picture = folder.file("photos/upright/3.png");
    let classify = ["classify", "--model", &model, "--weights", &weights, "--picture", &picture];
    run(flags(&[&classify[..], &["--classes", &classes]].concat())).expect("is fine");
    assert_eq!(fs::read_to_string(&classes).expect("was written"), "across\nupright\n");
}

#[test]
fn a_training_that_is_continued_gives_the_same_numbers() {
    let folder = prepared("resumed");
    let more = ["--epochs", "3", "--drop-path", "0.3", "--workers", "3"];
    train(&folder, "out", &more);
    let result = || tensors(&folder, "out");
    let expected = result();

    // As if it had been stopped in the third epoch.
    for part in ["model", "optim", "scheduler"] {
        let file = folder.0.join(format!("out/training/checkpoint/{part}-3.bpk"));
        if file.is_file() {
            fs::remove_file(file).expect("is there");
        } else {
            fs::remove_file(folder.0.join(format!("out/training/checkpoint/{part}-3")))
                .expect("is there");
        }
    }
    fs::remove_file(folder.0.join("out/model.safetensors")).expect("was written");
    if Device::default() != Device::flex() {
        // A build with other devices continues on none but the default one.
        return;
    }
    train(&folder, "out", &[&more[..], &["--resume"]].concat());
    assert!(result() == expected);

    // And with another seed other ones.
    train(&folder, "other", &[&more[..], &["--seed", "2"]].concat());
    assert!(tensors(&folder, "other") != expected);

    let changed = arguments(&folder, "out", &["--epochs", "4", "--resume"]);
    let changed: Vec<_> = changed.iter().map(String::as_str).collect();
    let (text, is_usage) = refused(&changed);
    let expected = "--resume: epochs is 4, must be 3 as in the earlier run";
    assert!(is_usage && text == expected, "{text}");
}

#[test]
fn half_activations_train_as_well() {
    let folder = prepared("half");
    train(&folder, "out", &["--epochs", "6", "--dtype", "bf16"]);
    let losses = losses(&folder, "out", 6);
    assert!(losses.iter().all(|loss| loss.is_finite()) && losses[5] < losses[0], "{losses:?}");
}

#[test]
fn bad_folders_and_files_are_refused() {
    let folder = prepared("bad");
    let check = |more: &[&str], expected: &str, is_usage: bool| {
        let arguments = arguments(&folder, "out", more);
        // The last one of a flag counts for none: they must not be given twice.
        let mut kept: Vec<&str> = Vec::new();
        let mut all = arguments.iter().map(String::as_str).peekable();
        while let Some(argument) = all.next() {
            match kept.iter().position(|earlier| *earlier == argument && argument.starts_with("--"))
            {
                Some(place) => kept[place + 1] = all.next().expect("has a value"),
                None => kept.push(argument),
            }
        }
        let got = refused(&kept);
        assert!(got.0.contains(expected) && got.1 == is_usage, "{got:?}");
        assert!(!folder.0.join("out/model.safetensors").exists());
    };
    let across = folder.file("photos/across");
    check(&["--images", &across], "has 0 folders of classes, must have at least 2", true);
    check(&["--images", "no/such"], "--images no/such: cannot be read, ", true);
    check(&["--validation", &across], "--validation ", true);
    check(&["--weights", "no.pth"], "no.pth: cannot be read, ", false);
    check(
        &["--model", "nat_mini"],
        "start.safetensors: patch_embed.proj.0.weight has shape ",
        false,
    );
    check(&["--dtype", "f16"], "--dtype: is f16, must be f32 or bf16", true);
    check(&["--keep-head"], "head.weight has shape [5, 16], must have [2, 16]", false);
    check(&["--resume"], "is no run to continue", true);
    fs::write(folder.0.join("photos/upright/3.png"), "no picture").expect("is writable");
    check(&["--epochs", "2"], "upright/3.png: is no picture, ", false);
}
