//! `classify`.

use burn::tensor::Device;
use burn_natten::models::dinat_s::DinatSConfig;
use burn_natten::models::isotropic::IsotropicConfig;
use burn_natten::models::nat::NatConfig;
use image::{Rgb, RgbImage};

use super::{Folder, golden, parsed, refused};
use crate::classify::report;
use crate::cli::Command;
use crate::preparation;
use crate::recipe::{ClassifierConfig, Recipe};

const SIDE: usize = 64;

/// The DiNAT whose weights the repository has from PyTorch, on maps smaller than its windows.
fn dinat() -> Recipe {
    let nat = NatConfig::new(8, vec![2, 2, 1], vec![2, 2, 4])
        .with_kernel_size(5)
        .with_dilations(Some(vec![vec![1, 4], vec![2, 1], vec![2]]))
        .with_num_classes(10);
    Recipe { model: ClassifierConfig::Nat(nat), image_size: SIDE, margin: 1.0 }
}

fn picture(folder: &Folder) -> String {
    let path = folder.file("picture.png");
    let pixel = |x: u32, y: u32| Rgb([(3 * x) as u8, (255 - 2 * y) as u8, (x * y / 8) as u8]);
    RgbImage::from_fn(80, SIDE as u32, pixel).save(&path).expect("is writable");
    path
}

fn lines(arguments: &[&str]) -> Vec<String> {
    let Command::Classify(args) = parsed(arguments).command else { panic!("is classify") };
    report(&args).expect("is fine")
}

#[test]
fn the_likeliest_classes_are_those_of_the_logits() {
    let folder = Folder::new("top");
    let (recipe, picture) = (dinat(), picture(&folder));
    recipe.write(&folder.0.join("model.json")).expect("is writable");
    let names: Vec<String> = (0..10).map(|class| format!("class {class}")).collect();
    let names = folder.write("names.txt", names.join("\n"));
    let (model, weights) = (folder.file("model.json"), golden("dinat_k5_padded.pth"));
    let arguments = ["classify", "--model", &model, "--weights", &weights, "--picture", &picture];
    let got = lines(&[&arguments[..], &["--classes", &names]].concat());

    let ClassifierConfig::Nat(config) = &recipe.model else { panic!("is a NAT") };
    let device = Device::flex();
    let (model, _) = config.init_from(&weights, &device).expect("fits");
    let opened = image::open(&picture).expect("was written");
    // As the shorter side is right, nothing is resized.
    let values = preparation::normalized(&opened.crop_imm(8, 0, SIDE as u32, SIDE as u32));
    let logits = model.forward(preparation::batch(values, SIDE, &device));
    let logits: Vec<f32> = logits.into_data().try_to_vec().expect("is f32");
    let sum: f32 = logits.iter().map(|logit| logit.exp()).sum();
    let mut order: Vec<usize> = (0..10).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    let expected = order[..5]
        .iter()
        .map(|class| format!("{:6.2} %  class {class}", 100.0 * logits[*class].exp() / sum));
    assert_eq!(got, expected.collect::<Vec<_>>());
    let numbers = lines(&[&arguments[..], &["--top", "2"]].concat());
    assert_eq!(numbers, got[..2].iter().map(|line| line.replace("class ", "")).collect::<Vec<_>>());
}

#[test]
fn attention_of_any_layer_and_head_is_drawn_for_all_models() {
    let folder = Folder::new("attention");
    let picture = picture(&folder);
    let dinat_s = DinatSConfig::new(8, vec![1, 2], vec![2, 4]).with_kernel_size(3);
    let isotropic = IsotropicConfig::new(16, 2, 4).with_kernel_size(3).with_dilation(2);
    let (isotropic, dinat_s) = (isotropic.with_num_classes(7), dinat_s.with_num_classes(7));
    let device = Device::flex();
    let cases = [
        (dinat().model, "2.0", 3),
        (ClassifierConfig::DinatS(dinat_s), "1.1", 2),
        (ClassifierConfig::Isotropic(isotropic), "0.1", 1),
    ];
    for (config, layer, levels) in cases {
        let weights = folder.file("weights.safetensors");
        let model = config.init(&device);
        model.save(weights.as_ref()).expect("is writable");
        let recipe = Recipe { model: config, image_size: SIDE, margin: 1.1 };
        recipe.write(&folder.0.join("model.json")).expect("is writable");
        let (model, drawn) = (folder.file("model.json"), folder.file("drawn.png"));
        let arguments = [
            &["classify", "--model", &model, "--weights", &weights, "--picture", &picture][..],
            &["--attention", &drawn, "--at", "0.9,0.1"],
        ]
        .concat();
        let size = |more: &[&str]| {
            lines(&[&arguments[..], more].concat());
            image::open(&drawn).expect("was drawn").to_rgb8().dimensions()
        };
        let expected = |columns: u32, rows: u32| (columns * 236 + 28, rows * 252 + 28);
        assert_eq!(size(&[]), expected(2, levels));
        assert_eq!(size(&["--layer", layer, "--head", "1", "--head", "0"]), expected(4, 1));
    }
}

#[test]
fn bad_files_are_refused() {
    let folder = Folder::new("bad");
    let picture = picture(&folder);
    dinat().write(&folder.0.join("model.json")).expect("is writable");
    let (model, weights) = (folder.file("model.json"), golden("dinat_k5_padded.pth"));
    let bytes = std::fs::read(&weights).expect("is carried");
    let classify = |model: &str, weights: &str, picture: &str, more: &[&str]| {
        let all = ["classify", "--model", model, "--weights", weights, "--picture", picture];
        refused(&[&all[..], more].concat())
    };
    let drawn = folder.file("drawn.png");
    let (three, text) =
        (folder.write("three", "a\nb\nc\n"), folder.write("text.png", "no picture"));
    let half = folder.write("half.pth", &bytes[..bytes.len() / 2]);
    let (empty, noise) =
        (folder.write("empty.pth", ""), folder.write("noise.pth", &bytes[777..999]));
    let json = folder.write("bad.json", "{\"model\": {\"nat\": ");
    let recipe = std::fs::read_to_string(&model).expect("is written");
    let odd = recipe.replace("\"num_heads\": [", "\"num_heads\": [7, ");
    assert_ne!(odd, recipe);
    let odd = folder.write("odd.json", odd);
    let hdit = golden("hdit_plain.safetensors");
    for (got, expected, is_usage) in [
        (classify(&model, &half, &picture, &[]), "half.pth: cannot be read, ", false),
        (classify(&model, &empty, &picture, &[]), "empty.pth: cannot be read, ", false),
        (classify(&model, &noise, &picture, &[]), "noise.pth: cannot be read, ", false),
        (classify(&model, "no.pth", &picture, &[]), "no.pth: cannot be read, ", false),
        (classify(&model, &hdit, &picture, &[]), "does not fit the model, ", false),
        (
            classify("nat_mini", &weights, &picture, &[]),
            " has shape [4, 3, 3, 3], must have [",
            false,
        ),
        (
            classify(&model, &weights, &picture, &["--num-classes", "12"]),
            "head.weight has shape [10, 32], must have [12, 32]",
            false,
        ),
        (classify(&model, &weights, "no.png", &[]), "no.png: is no picture, ", false),
        (classify(&model, &weights, &text, &[]), "text.png: is no picture, ", false),
        (classify(&json, &weights, &picture, &[]), "bad.json: is no model of fine-tune, ", false),
        (
            classify(&odd, &weights, &picture, &[]),
            "odd.json: is no model of fine-tune, num_heads: has ",
            false,
        ),
        (classify("resnet", &weights, &picture, &[]), "--model: is resnet, must be ", true),
        (
            classify(&model, &weights, &picture, &["--classes", &three]),
            "three: has 3 names, must have 10 as the model",
            true,
        ),
        (
            classify(&model, &weights, &picture, &["--part", "model_ema"]),
            "has no part model_ema, has ",
            false,
        ),
        (
            classify(&model, &weights, &picture, &["--attention", &drawn, "--layer", "3.0"]),
            "--layer: level is 3, must be below 3",
            true,
        ),
        (
            classify(&model, &weights, &picture, &["--attention", &drawn, "--layer", "2.1"]),
            "--layer: block is 1, must be below 1 in level 2",
            true,
        ),
        (
            classify(&model, &weights, &picture, &["--attention", &drawn, "--head", "2"]),
            "--head: is 2, must be below 2 in layer 0.1",
            true,
        ),
    ] {
        assert!(got.0.contains(expected) && got.1 == is_usage, "{got:?}");
    }
}
