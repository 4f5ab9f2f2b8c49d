//! `sample`.

use std::fs;
use std::path::Path;

use burn::tensor::Device;
use burn_natten::models::Weights;
use burn_natten::models::hdit::{
    HditAttentionConfig, HditConfig, HditLevelConfig, HditMappingConfig,
};
use serde_json::{Value, json};

use super::{Folder, flags, golden, refused, shaken};
use crate::run;

/// The configuration of the weights that the repository has from k-diffusion.
fn plain() -> Value {
    json!({
        "model": {
            "type": "image_transformer_v2", "input_channels": 1, "input_size": [24, 40],
            "patch_size": [2, 2], "depths": [1, 1], "widths": [16, 32], "d_ffs": [32, 32],
            "self_attns": [
                { "type": "neighborhood", "d_head": 8, "kernel_size": 3 },
                { "type": "global", "d_head": 16 }
            ],
            "mapping_depth": 1, "mapping_width": 16, "mapping_d_ff": 32,
            "sigma_data": 1.0, "sigma_min": 0.02, "sigma_max": 20
        }
    })
}

fn pictures(folder: &Path) -> Vec<Vec<u8>> {
    let mut files: Vec<_> = fs::read_dir(folder)
        .expect("was written")
        .map(|entry| entry.expect("is readable").path())
        .collect();
    files.sort();
    files.into_iter().map(|file| fs::read(file).expect("is readable")).collect()
}

fn sample(folder: &Folder, output: &str, more: &[&str]) -> Vec<Vec<u8>> {
    let output = folder.file(output);
    run(flags(&[&["sample", "--output", &output][..], more].concat())).expect("is fine");
    pictures(output.as_ref())
}

#[test]
fn a_seed_gives_the_same_pictures() {
    let folder = Folder::new("seed");
    let config = folder.write("config.json", plain().to_string());
    let weights = golden("hdit_plain.safetensors");
    let flags = ["--weights", &weights, "--config", &config, "--steps", "4"];
    let sample = |output: &str, more: &[&str]| sample(&folder, output, &[&flags, more].concat());
    let first = sample("first", &["--count", "3"]);
    let picture = image::load_from_memory(&first[0]).expect("is a PNG");
    assert_eq!((first.len(), picture.width(), picture.height()), (3, 40, 24));
    let gray = picture.to_luma8().into_raw();
    let distinct: std::collections::BTreeSet<_> = gray.into_iter().collect();
    assert!(distinct.len() > 10 && first[0] != first[1]);
    // Whatever pictures there are beside it.
    assert!(first == sample("again", &["--count", "3", "--batch-size", "2"]));
    assert!(first != sample("other", &["--count", "3", "--seed", "2"]));
    assert!(first != sample("heun", &["--count", "3", "--sampler", "heun"]));
}

/// A model with classes and random weights, its configuration inside of the file as k-diffusion
/// writes it.
fn with_classes(folder: &Folder) -> String {
    let near = HditAttentionConfig::Neighborhood { d_head: 8, kernel_size: 3 };
    let model = HditConfig::new(
        vec![HditLevelConfig::new(1, 16, 16, near)],
        HditMappingConfig::new(1, 16, 16),
    )
    .with_num_classes(4);
    let device = Device::flex();
    device.seed(3);
    let file = folder.file("classes.safetensors");
    shaken(model.init(&device)).save_weights(&file).expect("is writable");
    let config = json!({
        "model": {
            "type": "image_transformer_v2", "input_channels": 3, "input_size": [16, 16],
            "patch_size": [4, 4], "depths": [1], "widths": [16], "d_ffs": [16],
            "self_attns": [{ "type": "neighborhood", "d_head": 8, "kernel_size": 3 }],
            "mapping_depth": 1, "mapping_width": 16, "mapping_d_ff": 16,
            "sigma_min": 0.02, "sigma_max": 20
        },
        "dataset": { "num_classes": 3 }
    });
    let bytes = fs::read(&file).expect("was written");
    let (length, rest) = bytes.split_at(8);
    let length = u64::from_le_bytes(length.try_into().expect("eight bytes")) as usize;
    let (header, numbers) = rest.split_at(length);
    let mut header: Value = serde_json::from_slice(header).expect("is JSON");
    header["__metadata__"]["config"] = json!(config.to_string());
    let header = header.to_string();
    let length = (header.len() as u64).to_le_bytes();
    folder.write("classes.safetensors", [&length[..], header.as_bytes(), numbers].concat())
}

#[test]
fn classes_and_guidance_change_the_pictures() {
    let folder = Folder::new("classes");
    let weights = with_classes(&folder);
    let flags = ["--weights", &weights, "--steps", "4", "--count", "4"];
    let sample = |output: &str, more: &[&str]| sample(&folder, output, &[&flags, more].concat());
    let turns = sample("turns", &[]);
    let second = sample("second", &["--class", "1"]);
    // Pictures 1 and 4 are of class 1 in turn, and of the same noise.
    let same: Vec<_> = (0..4).filter(|index| turns[*index] == second[*index]).collect();
    assert_eq!(same, [1]);
    assert!(second == sample("one", &["--class", "1", "--guidance", "1"]));
    assert!(second != sample("far", &["--class", "1", "--guidance", "3"]));
    let (text, is_usage) = refused(&["sample", "--weights", &weights, "--class", "3"]);
    assert!(is_usage && text == "--class: is 3, must be below 3", "{text}");
}

#[test]
fn a_model_without_classes_takes_none() {
    let folder = Folder::new("none");
    let config = folder.write("config.json", plain().to_string());
    let weights = golden("hdit_plain.safetensors");
    for (flag, value) in [("--class", "0"), ("--guidance", "2")] {
        let (text, is_usage) =
            refused(&["sample", "--weights", &weights, "--config", &config, flag, value]);
        let expected = format!("{flag}: is given, but the model has no classes");
        assert!(is_usage && text == expected, "{text}");
    }
}

#[test]
fn bad_files_are_refused() {
    let folder = Folder::new("bad-sample");
    let config = folder.write("config.json", plain().to_string());
    let weights = golden("hdit_plain.safetensors");
    let bytes = fs::read(&weights).expect("is carried");
    let half = folder.write("half.safetensors", &bytes[..bytes.len() / 2]);
    let nat = golden("dinat_k5_padded.pth");
    let text = folder.write("text.json", "no JSON");
    let mut wide = plain();
    wide["model"]["widths"] = json!([32, 32]);
    let wide = folder.write("wide.json", wide.to_string());
    let sample = |weights: &str, config: &str| {
        refused(&["sample", "--weights", weights, "--config", config])
    };
    for (got, expected, is_usage) in [
        (sample(&half, &config), "half.safetensors: cannot be read, ", false),
        (sample("no.pth", &config), "no.pth: cannot be read, ", false),
        (sample(&nat, &config), "does not fit the model, ", false),
        (sample(&weights, &wide), "has shape ", false),
        (sample(&weights, &text), "text.json: is no configuration, ", false),
        (sample(&weights, "no.json"), "no.json: is no configuration, ", false),
        (refused(&["sample", "--weights", &weights]), "--config: is missing, and ", true),
    ] {
        assert!(got.0.contains(expected) && got.1 == is_usage, "{got:?}");
    }
}
