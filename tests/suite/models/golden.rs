//! What the authors' PyTorch models have computed, with random weights.
//!
//! The repository carries two of them; `BURN_NATTEN_TEST_GOLDEN` names a folder with all nine.

use std::path::{Path, PathBuf};

use burn::tensor::{DType, Device, Tensor, TensorData};
use burn_natten::models::dinat_s::DinatSConfig;
use burn_natten::models::hdit::HditConfig;
use burn_natten::models::nat::NatConfig;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// All models there are.
const NAMES: [&str; 9] = [
    "nat_k3",
    "nat_k5_options",
    "nat_k7_padded",
    "dinat_k3_layer_scale",
    "dinat_k5_padded",
    "dinat_k7",
    "dinat_s_k5",
    "hdit_plain",
    "hdit_small",
];

/// A tensor among the values.
#[derive(Clone, Debug, Deserialize)]
pub struct Slice {
    offset: usize,
    pub shape: Vec<usize>,
    /// How far the original in f32 is from the original in f64, relative to the largest value.
    pub f32_error: Option<f64>,
}

/// The file of a model.
#[derive(Deserialize)]
pub struct Golden {
    pub name: String,
    pub config: Value,
    pub parameters: usize,
    pub input: Slice,
    #[serde(alias = "output")]
    pub logits: Slice,
    pub denoised: Option<Slice>,
    pub sigma: Option<Slice>,
    pub aug_cond: Option<Slice>,
    pub class_cond: Option<Vec<i64>>,
    pub mapping_cond: Option<Slice>,
    pub loss_weights: Slice,
    #[serde(rename = "f32_error_of_the_original")]
    pub errors: Errors,
    #[serde(default)]
    pub features: std::collections::BTreeMap<String, Slice>,
    pub gradients: std::collections::BTreeMap<String, Slice>,
    #[serde(skip)]
    folder: PathBuf,
    #[serde(skip)]
    values: Vec<f32>,
}

/// How far the original in f32 is from the original in f64.
#[derive(Deserialize)]
pub struct Errors {
    #[serde(alias = "output")]
    pub logits: f64,
}

impl Golden {
    fn read(folder: &Path, name: &str) -> Self {
        let text = std::fs::read(folder.join(format!("{name}.json"))).expect("a golden model");
        let bytes = std::fs::read(folder.join(format!("{name}.bin"))).expect("its values");
        let values = bytes
            .chunks_exact(4)
            .map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four bytes")));
        let golden: Self = serde_json::from_slice(&text).expect("is as described");
        Self { folder: folder.to_owned(), values: values.collect(), ..golden }
    }

    /// The weights, in each format that is there.
    pub fn weights(&self) -> Vec<PathBuf> {
        let files =
            ["pth", "safetensors"].map(|end| self.folder.join(&self.name).with_extension(end));
        let found: Vec<_> = files.into_iter().filter(|file| file.exists()).collect();
        assert!(!found.is_empty(), "{} has weights", self.name);
        found
    }

    pub fn values(&self, slice: &Slice) -> Vec<f64> {
        let count: usize = slice.shape.iter().product();
        self.values[slice.offset..][..count].iter().copied().map(f64::from).collect()
    }

    pub fn tensor<const D: usize>(
        &self,
        slice: &Slice,
        dtype: DType,
        device: &Device,
    ) -> Tensor<D> {
        let data = TensorData::new(self.values(slice), slice.shape.clone());
        Tensor::from_data(data.convert_dtype(dtype), (device, dtype))
    }

    pub fn is_hdit(&self) -> bool {
        self.name.starts_with("hdit")
    }

    pub fn is_dinat_s(&self) -> bool {
        self.name.starts_with("dinat_s")
    }

    pub fn nat(&self) -> NatConfig {
        self.parsed(json!({ "in_chans": 3, "qkv_bias": true, "drop_path_rate": 0.0 }))
    }

    pub fn dinat_s(&self) -> DinatSConfig {
        let defaults =
            json!({ "in_chans": 3, "qkv_bias": true, "patch_norm": true, "drop_path_rate": 0.0 });
        self.parsed(defaults)
    }

    pub fn hdit(&self) -> HditConfig {
        let mut config = self.config.clone();
        for level in config["levels"].as_array_mut().expect("levels") {
            level["dropout"] = json!(0.0);
        }
        config["mapping"]["dropout"] = json!(0.0);
        serde_json::from_value(config).expect("the configuration of the original")
    }

    /// The original's configuration, whose names are ours; defaults are left out in it.
    fn parsed<T: for<'a> Deserialize<'a>>(&self, defaults: Value) -> T {
        let object =
            |value: &Value| -> Map<String, Value> { value.as_object().expect("an object").clone() };
        let mut config = object(&defaults);
        config.extend(object(&self.config));
        serde_json::from_value(config.into()).expect("the configuration of the original")
    }
}

/// What the repository carries.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/models")
}

/// The models that are there.
pub fn all() -> Vec<Golden> {
    match std::env::var_os("BURN_NATTEN_TEST_GOLDEN") {
        Some(golden) => {
            let folder = Path::new(&golden).join("models");
            NAMES.into_iter().map(|name| Golden::read(&folder, name)).collect()
        }
        None => ["dinat_k5_padded", "hdit_plain"].map(|name| Golden::read(&folder(), name)).into(),
    }
}

/// One that the repository carries.
pub fn carried(name: &str) -> Golden {
    Golden::read(&folder(), name)
}
