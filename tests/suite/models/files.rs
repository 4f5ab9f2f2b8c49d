//! Weights from files and into files: formats, names, options, and files that are bad.

use burn::tensor::{DType, Device, Tensor};
use burn_natten::models::hdit::HditConfig;
use burn_natten::models::nat::{Nat, NatConfig};
use burn_natten::models::{LoadOptions, LoadReport, Weights, WeightsError};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::checkpoint::{
    Entries, Entry, Temporary, nested, read_safetensors, renamed, write_safetensors,
};
use super::golden;

fn small() -> NatConfig {
    NatConfig::new(8, vec![1, 2], vec![2, 2])
        .with_kernel_size(3)
        .with_num_classes(10)
        .with_layer_scale(Some(0.5))
}

/// The weights of a new model, as they are saved.
fn saved(config: &NatConfig, name: &str) -> (Nat, Entries) {
    let model = config.init(&Device::flex());
    let file = Temporary::new(name);
    model.save_weights(&file.0).expect("the temporary folder is writable");
    let (entries, _) = read_safetensors(&file.0);
    (model, entries)
}

fn output(model: &Nat) -> Vec<f32> {
    let device = Device::flex();
    let count = 2 * 3 * 24 * 32;
    let values: Vec<f32> = (0..count).map(|i| ((i * 37 % 101) as f32) / 50.0 - 1.0).collect();
    let images = Tensor::<1>::from_floats(values.as_slice(), &device).reshape([2, 3, 24, 32]);
    model.forward(images).into_data().try_to_vec().expect("is f32")
}

fn load(config: &NatConfig, entries: &Entries) -> Result<(Nat, LoadReport), WeightsError> {
    load_with(config, entries, &LoadOptions::new())
}

fn load_with(
    config: &NatConfig,
    entries: &Entries,
    options: &LoadOptions,
) -> Result<(Nat, LoadReport), WeightsError> {
    static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let file = Temporary::with(&format!("{count}.safetensors"), &write_safetensors(entries));
    let result = config.init(&Device::flex()).load_weights(&file.0, options);
    // The name differs from run to run.
    result.map_err(|error| match error {
        WeightsError::Keys { missing, unused, .. } => {
            WeightsError::Keys { path: "file".into(), missing, unused }
        }
        WeightsError::Shape { key, got, expected, .. } => {
            WeightsError::Shape { path: "file".into(), key, got, expected }
        }
        WeightsError::DType { key, got, .. } => {
            WeightsError::DType { path: "file".into(), key, got }
        }
        WeightsError::Without { key, .. } => WeightsError::Without { path: "file".into(), key },
        WeightsError::TopLevelKey { key, found, .. } => {
            WeightsError::TopLevelKey { path: "file".into(), key, found }
        }
        other => other,
    })
}

#[test]
fn saved_weights_are_those_of_the_original_file() {
    let golden = golden::carried("hdit_plain");
    let original = golden.weights().remove(0);
    let (model, report) = golden.hdit().init_from(&original, &Device::flex()).expect("fits");
    let file = Temporary::new("hdit.safetensors");
    model.save_weights(&file.0).expect("the temporary folder is writable");
    // In place of what is there.
    model.save_weights(&file.0).expect("the temporary folder is writable");
    let (entries, metadata) = read_safetensors(&file.0);
    let (expected, _) = read_safetensors(&original);
    assert!(entries == expected);
    assert_eq!(metadata["format"], "pt");
    assert!(report.loaded.iter().eq(expected.keys()));
    assert_eq!((report.missing, report.unused, report.left_out), (vec![], vec![], vec![]));
}

#[test]
fn a_saved_model_gives_equal_outputs_after_loading() {
    let (model, entries) = saved(&small(), "nat.safetensors");
    let shapes = model.weight_shapes().into_iter();
    assert!(entries.iter().map(|(key, entry)| (key.clone(), entry.shape.clone())).eq({
        let sorted: std::collections::BTreeMap<_, _> = shapes.collect();
        sorted
    }));
    let (loaded, report) = load(&small(), &entries).expect("fits");
    assert_eq!(report.loaded.len(), entries.len());
    assert_eq!(output(&loaded), output(&model));
}

#[test]
fn loaded_weights_can_be_trained_and_buffers_cannot() {
    let golden = golden::carried("hdit_plain");
    let device = Device::flex().autodiff();
    let (model, _) =
        golden.hdit().init_from(golden.weights().remove(0), &device).expect("the weights fit");
    assert!(model.patch_in.proj.weight.val().is_require_grad());
    assert!(!model.time_emb.weight.val().is_require_grad());
    assert!(!model.mid_level[0].self_attn.pos_emb.freqs.val().is_require_grad());
}

#[test]
fn names_of_transformers_are_known() {
    let (model, entries) = saved(&small(), "transformers.safetensors");
    for prefix in ["nat.", "dinat.", ""] {
        let (model_of_file, report) =
            load(&small(), &transformers(&entries, prefix)).expect("fits");
        assert_eq!(report.loaded.len(), entries.len());
        assert_eq!(output(&model_of_file), output(&model));
    }
    let mut incomplete = transformers(&entries, "nat.");
    incomplete.remove("nat.encoder.levels.0.layers.0.attention.self.key.bias");
    let error = load(&small(), &incomplete).expect_err("a part of the bias is missing");
    assert_eq!(
        error.to_string(),
        "file: does not fit the model, 1 missing (levels.0.blocks.0.attn.qkv.bias) and 2 unused \
         (levels.0.blocks.0.attn.query.bias, levels.0.blocks.0.attn.value.bias)"
    );
}

/// Its header promises more numbers than there are.
#[test]
fn headers_that_lie_are_errors() {
    let (_, entries) = saved(&small(), "lies.safetensors");
    for shape in [vec![usize::MAX / 2, 8], vec![usize::MAX], vec![], vec![0]] {
        let mut file = transformers(&entries, "nat.");
        for part in ["query", "key", "value"] {
            let key = format!("nat.encoder.levels.0.layers.0.attention.self.{part}.weight");
            let lie = file.get_mut(&key).expect("is there");
            (lie.shape, lie.bytes) = (shape.clone(), vec![]);
        }
        assert!(load(&small(), &file).is_err(), "{shape:?}");
    }
}

/// The names of NatForImageClassification and DinatForImageClassification of `transformers` 4.40.
fn transformers(entries: &Entries, prefix: &str) -> Entries {
    let mut found = Entries::new();
    for (key, entry) in entries {
        let parts: Vec<_> = key.split('.').collect();
        let rows = |range: std::ops::Range<usize>, shape: Vec<usize>| {
            let row = entry.bytes.len() / entry.shape[0];
            let bytes = entry.bytes[range.start * row..range.end * row].to_vec();
            Entry { shape, bytes, ..entry.clone() }
        };
        let mut put = |name: String, entry: Entry| found.insert(format!("{prefix}{name}"), entry);
        match parts[..] {
            ["head", last] => {
                found.insert(format!("classifier.{last}"), entry.clone());
            }
            ["norm", last] => drop(put(format!("layernorm.{last}"), entry.clone())),
            ["patch_embed", "proj", index, last] => {
                let name = format!("embeddings.patch_embeddings.projection.{index}.{last}");
                put(name, entry.clone());
            }
            ["patch_embed", "norm", last] => {
                put(format!("embeddings.norm.{last}"), entry.clone());
            }
            ["levels", level, "downsample", ..] => {
                let name = format!("encoder.levels.{level}.downsample.{}", parts[3..].join("."));
                put(name, entry.clone());
            }
            ["levels", level, "blocks", block, ref rest @ ..] => {
                let layer = format!("encoder.levels.{level}.layers.{block}");
                match *rest {
                    ["attn", "qkv", last] => {
                        let third = entry.shape[0] / 3;
                        let mut shape = entry.shape.clone();
                        shape[0] = third;
                        for (index, part) in ["query", "key", "value"].into_iter().enumerate() {
                            let rows = rows(index * third..(index + 1) * third, shape.clone());
                            put(format!("{layer}.attention.self.{part}.{last}"), rows);
                        }
                    }
                    ["gamma1"] => {
                        let other = &entries[&key.replace("gamma1", "gamma2")];
                        let bytes = [&entry.bytes[..], &other.bytes].concat();
                        let shape = vec![2, entry.shape[0]];
                        let both = Entry { shape, bytes, ..entry.clone() };
                        put(format!("{layer}.layer_scale_parameters"), both);
                    }
                    ["gamma2"] => {}
                    _ => {
                        let name = match rest.join(".") {
                            name if name.starts_with("norm1") => {
                                name.replace("norm1", "layernorm_before")
                            }
                            name if name.starts_with("norm2") => {
                                name.replace("norm2", "layernorm_after")
                            }
                            name if name == "attn.rpb" => "attention.self.rpb".to_owned(),
                            name if name.starts_with("attn.proj") => {
                                name.replace("attn.proj", "attention.output.dense")
                            }
                            name if name.starts_with("mlp.fc1") => {
                                name.replace("mlp.fc1", "intermediate.dense")
                            }
                            name => name.replace("mlp.fc2", "output.dense"),
                        };
                        put(format!("{layer}.{name}"), entry.clone());
                    }
                }
            }
            _ => panic!("{key}: has no name"),
        }
    }
    found
}

/// A module's `model`, as Lightning saves it.
const LIGHTNING: &str = "state_dict.model.";

#[test]
fn weights_are_found_in_the_parts_of_a_file() {
    let (model, entries) = saved(&small(), "parts.safetensors");
    let wrapped = "model._orig_mod.module.";
    for part in [
        "state_dict.",
        "model.",
        "model_state_dict.module.",
        "module.",
        "_orig_mod.",
        wrapped,
        LIGHTNING,
    ] {
        let mut file = renamed(&entries, |key| format!("{part}{key}"));
        if part != "module." && part != "_orig_mod." {
            let step = Entry { dtype: "I64".into(), shape: vec![], bytes: vec![0; 8] };
            file.insert("optimizer.step".into(), step);
        }
        let (loaded, _) = load(&small(), &file).expect("fits");
        assert_eq!(output(&loaded), output(&model), "{part}");
    }

    let (averaged, other) = saved(&small(), "averaged.safetensors");
    let mut file = renamed(&entries, |key| format!("model.{key}"));
    file.extend(renamed(&other, |key| format!("model_ema.{key}")));
    let options = LoadOptions::new().with_top_level_key("model_ema");
    let (loaded, _) = load_with(&small(), &file, &options).expect("fits");
    assert_eq!(output(&loaded), output(&averaged));
    let options = LoadOptions::new().with_top_level_key("ema");
    let error = load_with(&small(), &file, &options).expect_err("there is no such part");
    assert_eq!(error.to_string(), "file: has no part ema, has model, model_ema");
}

#[test]
fn weights_are_found_in_the_parts_of_a_pytorch_file() {
    let golden = golden::carried("dinat_k5_padded");
    let flat = golden.weights().remove(0);
    let bytes = std::fs::read(&flat).expect("is carried");
    for part in ["state_dict", "model"] {
        let file = Temporary::with(&format!("{part}.pth"), &nested(&bytes, part));
        let device = Device::flex();
        let (inner, _) = golden.nat().init_from(&file.0, &device).expect("fits");
        let (model, _) = golden.nat().init_from(&flat, &device).expect("fits");
        assert_eq!(output(&inner), output(&model));
    }
}

#[test]
fn other_float_types_are_converted() {
    let (model, entries) = saved(&small(), "types.safetensors");
    let convert = |dtype: DType, name: &str| -> Entries {
        let convert = |entry: &Entry| {
            let shape = entry.shape.clone();
            let data =
                burn::tensor::TensorData::from_bytes_vec(entry.bytes.clone(), shape, DType::F32);
            let bytes = data.convert_dtype(dtype).as_bytes().to_vec();
            Entry { dtype: name.into(), bytes, ..entry.clone() }
        };
        entries.iter().map(|(key, entry)| (key.clone(), convert(entry))).collect()
    };
    let (loaded, _) = load(&small(), &convert(DType::F64, "F64")).expect("fits");
    assert_eq!(output(&loaded), output(&model));
    for (dtype, name) in [(DType::F16, "F16"), (DType::BF16, "BF16")] {
        let (loaded, _) = load(&small(), &convert(dtype, name)).expect("fits");
        assert_eq!(loaded.norm.gamma.val().dtype(), DType::F32);
        let both = output(&loaded).into_iter().zip(output(&model));
        assert!(both.into_iter().all(|(a, b)| (a - b).abs() < 0.02), "{name}");
    }
    let error = load(&small(), &convert(DType::I32, "I32")).expect_err("are no floats");
    assert!(error.to_string().ends_with(" has dtype I32, must be a float"), "{error}");
}

#[test]
fn what_does_not_fit_is_named() {
    let (_, entries) = saved(&small(), "misfits.safetensors");
    let mut other = entries.clone();
    other.remove("levels.0.blocks.0.gamma1");
    let bias = other.remove("head.bias").expect("there is a head");
    other.insert("head.offset".into(), bias);
    let error = load(&small(), &other).expect_err("two are missing");
    let text = "file: does not fit the model, 2 missing (head.bias, levels.0.blocks.0.gamma1) and \
                1 unused (head.offset)";
    assert_eq!(error.to_string(), text);

    let options = LoadOptions::new().with_partial(true);
    let (_, report) = load_with(&small(), &other, &options).expect("may be partial");
    assert_eq!(report.missing, ["head.bias", "levels.0.blocks.0.gamma1"]);
    assert_eq!(report.unused, ["head.offset"]);

    let classes = small().with_num_classes(3);
    let error = load_with(&classes, &entries, &options).expect_err("has other classes");
    assert_eq!(error.to_string(), "file: head.weight has shape [10, 16], must have [3, 16]");
    let options = LoadOptions::new().without("head");
    let (model, report) = load_with(&classes, &entries, &options).expect("all but the head fit");
    assert_eq!(report.left_out, ["head.bias", "head.weight"]);
    assert_eq!(report.loaded.len(), entries.len() - 2);
    assert_eq!(output(&model).len(), 6);

    // As a word that nothing begins with would leave nothing out.
    let options = LoadOptions::new().without("head").without("heads");
    let error = load_with(&classes, &entries, &options).expect_err("there are no heads");
    assert_eq!(error.to_string(), "without: is heads, must be a key of the model or of file");

    // Another model altogether is an error, however much may be missing.
    let stranger = renamed(&entries, |key| format!("stranger.{key}"));
    let options = LoadOptions::new().with_partial(true);
    let error = load_with(&small(), &stranger, &options).expect_err("nothing fits");
    let text = error.to_string();
    let expected = format!("file: does not fit the model, {} missing (", entries.len());
    assert!(text.starts_with(&expected), "{text}");
}

#[test]
fn bad_files_are_errors_of_one_line() {
    let config = small();
    let check = |name: &str, bytes: &[u8], expected: &str| {
        let file = Temporary::with(name, bytes);
        let text = refusal(config.init_from(&file.0, &Device::flex()).err(), &file);
        assert!(text.contains(expected), "{text}");
    };
    check("empty.pth", b"", "cannot be read");
    check("text.pth", b"These are no weights, but a text.", "not a PyTorch checkpoint");
    check("json.safetensors", b"{\"weights\": [1, 2, 3]}", "cannot be read");
    check("header.safetensors", &[&100u64.to_le_bytes()[..], b"{}"].concat(), "cannot be read");
    check("none.safetensors", &write_safetensors(&Entries::new()), "it holds no tensors");
    check("pickle.pth", b"\x80\x02}q\x00.", "it holds no tensors");

    let text = config.init_from("no/such/file.pth", &Device::flex()).expect_err("is not there");
    assert!(text.to_string().starts_with("no/such/file.pth: cannot be read, "), "{text}");
    let folder = std::env::temp_dir();
    assert!(config.init_from(folder, &Device::flex()).is_err());

    let nowhere = config.init(&Device::flex()).save_weights("no/such/folder/file.safetensors");
    let text = nowhere.expect_err("there is no such folder").to_string();
    assert!(text.starts_with("no/such/folder/file.safetensors: cannot be written, "), "{text}");
}

#[test]
fn truncated_files_are_errors() {
    for golden in ["dinat_k5_padded", "hdit_plain"].map(golden::carried) {
        let bytes = std::fs::read(golden.weights().remove(0)).expect("is carried");
        let steps = bytes.len() / 60;
        let file = Temporary::new(&format!("{}.truncated", golden.name));
        let lengths = (0..200).chain((200..bytes.len()).step_by(steps)).chain([bytes.len() - 1]);
        for length in lengths {
            std::fs::write(&file.0, &bytes[..length]).expect("the temporary folder is writable");
            let error = if golden.is_hdit() {
                golden.hdit().init_from(&file.0, &Device::flex()).err()
            } else {
                golden.nat().init_from(&file.0, &Device::flex()).err()
            };
            refusal(error, &file);
        }
    }
}

/// Damage that leaves the length as it is may go unnoticed in a number, but never panics.
#[test]
fn damaged_files_do_not_panic() {
    let mut random = StdRng::seed_from_u64(7);
    let config: HditConfig = golden::carried("hdit_plain").hdit();
    for golden in ["dinat_k5_padded", "hdit_plain"].map(golden::carried) {
        let bytes = std::fs::read(golden.weights().remove(0)).expect("is carried");
        let file = Temporary::new(&format!("{}.damaged", golden.name));
        for _ in 0..200 {
            let mut bytes = bytes.clone();
            for _ in 0..random.random_range(1..20) {
                // Mostly in what describes the tensors, which comes first.
                let within = if random.random_bool(0.8) { 8000 } else { bytes.len() };
                bytes[random.random_range(0..within)] = random.random();
            }
            std::fs::write(&file.0, &bytes).expect("the temporary folder is writable");
            let error = if golden.is_hdit() {
                config.init_from(&file.0, &Device::flex()).err()
            } else {
                golden.nat().init_from(&file.0, &Device::flex()).err()
            };
            if error.is_some() {
                refusal(error, &file);
            }
        }
    }
}

/// The text of an error, which is one line that names the file.
fn refusal(error: Option<WeightsError>, file: &Temporary) -> String {
    let text = error.expect("the file is bad").to_string();
    assert!(text.starts_with(&format!("{}: ", file.0.display())), "{text}");
    assert!(!text.contains('\n') && text.len() < 600, "{text}");
    text
}
