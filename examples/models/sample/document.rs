//! k-diffusion's configurations of `image_transformer_v2`.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use burn_natten::models::hdit::{
    HditAttentionConfig, HditConfig, HditLevelConfig, HditMappingConfig,
};
use serde::Deserialize;

use crate::Failure;

/// A model, and how it is sampled.
#[derive(Clone, Debug)]
pub struct Document {
    /// The model.
    pub model: HditConfig,
    /// Height and width of its pictures.
    pub size: [usize; 2],
    /// Number of classes without the one for "no class"; 0 if there are none.
    pub classes: usize,
    /// The lowest and the highest noise level.
    pub sigmas: [f64; 2],
}

/// The file, whose other entries do not matter here. What is absent is what k-diffusion takes.
#[derive(Deserialize)]
struct Entries {
    model: Model,
    #[serde(default)]
    dataset: Dataset,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type")]
    kind: String,
    input_channels: usize,
    input_size: [usize; 2],
    patch_size: [usize; 2],
    depths: Vec<usize>,
    widths: Vec<usize>,
    d_ffs: Option<Vec<usize>>,
    self_attns: Option<Vec<SelfAttention>>,
    #[serde(default = "mapping_width")]
    mapping_width: usize,
    #[serde(default = "mapping_depth")]
    mapping_depth: usize,
    mapping_d_ff: Option<usize>,
    #[serde(default)]
    mapping_cond_dim: usize,
    #[serde(default)]
    has_variance: bool,
    #[serde(default = "one")]
    sigma_data: f64,
    sigma_min: f64,
    sigma_max: f64,
}

#[derive(Deserialize)]
struct SelfAttention {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default = "d_head")]
    d_head: usize,
    #[serde(default = "kernel_size")]
    kernel_size: usize,
}

#[derive(Default, Deserialize)]
struct Dataset {
    #[serde(default)]
    num_classes: usize,
}

fn mapping_width() -> usize {
    256
}

fn mapping_depth() -> usize {
    2
}

fn one() -> f64 {
    1.0
}

fn d_head() -> usize {
    64
}

fn kernel_size() -> usize {
    7
}

/// The largest header of a safetensors file.
const LARGEST_HEADER: u64 = 100 << 20;

impl Document {
    /// Reads the configuration of a file, or else the one that k-diffusion puts into the safetensors
    /// files that it makes for inference.
    pub fn find(config: Option<&Path>, weights: &Path) -> Result<Self, Failure> {
        let fail = |path: &Path, reason: String| {
            Failure::Run(format!("{}: is no configuration, {reason}", path.display()))
        };
        match config {
            Some(path) => {
                let text =
                    std::fs::read_to_string(path).map_err(|error| fail(path, error.to_string()))?;
                Self::parse(&text).map_err(|reason| fail(path, reason))
            }
            None => match inside(weights) {
                Some(text) => Self::parse(&text).map_err(|reason| fail(weights, reason)),
                None => {
                    let weights = weights.display();
                    let text = format!("--config: is missing, and {weights} has none inside");
                    Err(Failure::Usage(text))
                }
            },
        }
    }

    /// Reads a configuration; the error is what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Entries { model, dataset } =
            serde_json::from_str(text).map_err(|error| error.to_string())?;
        model.check()?;
        let levels = model.levels()?;
        let mapping_d_ff = model.mapping_d_ff.filter(|d_ff| *d_ff > 0);
        let mapping = HditMappingConfig::new(
            model.mapping_depth,
            model.mapping_width,
            mapping_d_ff.unwrap_or(3 * model.mapping_width),
        );
        let classes = dataset.num_classes;
        let config = HditConfig::new(levels, mapping)
            .with_channels(model.input_channels)
            .with_patch_size(model.patch_size)
            .with_num_classes(if classes > 0 { classes + 1 } else { 0 })
            .with_sigma_data(model.sigma_data);
        let sigmas = [model.sigma_min, model.sigma_max];
        Ok(Self { model: config, size: model.input_size, classes, sigmas })
    }
}

impl Model {
    fn check(&self) -> Result<(), String> {
        require(self.kind == "image_transformer_v2", || {
            format!("model.type: is {}, must be image_transformer_v2", self.kind)
        })?;
        require(!self.has_variance, || "has_variance: is true, must be false".into())?;
        let channels = self.input_channels;
        require([1, 3].contains(&channels), || {
            format!("input_channels: is {channels}, must be 1 or 3 for a picture")
        })?;
        require(self.mapping_cond_dim == 0, || {
            format!("mapping_cond_dim: is {}, must be 0", self.mapping_cond_dim)
        })?;
        let width = self.mapping_width;
        require(width >= 2 && width.is_multiple_of(2), || {
            format!("mapping_width: is {width}, must be a positive even number")
        })?;
        let [lowest, highest] = [self.sigma_min, self.sigma_max];
        require(lowest > 0.0 && highest > lowest && highest.is_finite(), || {
            format!("sigma_min, sigma_max: are {lowest} and {highest}, must be positive and rise")
        })?;
        require(self.sigma_data > 0.0 && self.sigma_data.is_finite(), || {
            format!("sigma_data: is {}, must be positive", self.sigma_data)
        })
    }

    fn levels(&self) -> Result<Vec<HditLevelConfig>, String> {
        let count = self.depths.len();
        require((1..=16).contains(&count), || {
            format!("depths: has {count} levels, must have 1 to 16")
        })?;
        let d_ffs = match self.d_ffs.as_deref() {
            None | Some([]) => self.widths.iter().map(|width| 3 * width).collect(),
            Some(d_ffs) => d_ffs.to_vec(),
        };
        let attentions = self.attentions()?;
        for (name, got) in [
            ("widths", self.widths.len()),
            ("d_ffs", d_ffs.len()),
            ("self_attns", attentions.len()),
        ] {
            require(got == count, || {
                format!("{name}: has {got} levels, must have {count} as depths")
            })?;
        }
        let level = |index: usize| {
            let (width, attention) = (self.widths[index], attentions[index]);
            let d_head = attention.d_head();
            require(d_head >= 8 && d_head.is_multiple_of(8), || {
                format!("self_attns[{index}].d_head: is {d_head}, must be a positive multiple of 8")
            })?;
            require(width >= 1 && width.is_multiple_of(d_head), || {
                format!(
                    "widths[{index}]: is {width}, must be a positive multiple of {d_head} (d_head)"
                )
            })?;
            require(d_ffs[index] >= 1, || format!("d_ffs[{index}]: is 0, must be at least 1"))?;
            self.fits(index, attention.kernel_size())?;
            Ok(HditLevelConfig::new(self.depths[index], width, d_ffs[index], attention))
        };
        (0..count).map(level).collect()
    }

    /// Whether the pictures can be cut into the tokens of a level, and hold its windows.
    fn fits(&self, level: usize, kernel_size: Option<usize>) -> Result<(), String> {
        for (size, patch) in self.input_size.into_iter().zip(self.patch_size) {
            let token = patch << level;
            require(token >= 1 && size >= token && size.is_multiple_of(token), || {
                format!(
                    "input_size: has {size}, must be a positive multiple of {token} in level {level}"
                )
            })?;
            if let Some(kernel_size) = kernel_size {
                let most = size / token;
                require((2..=most).contains(&kernel_size), || {
                    format!(
                        "self_attns[{level}].kernel_size: is {kernel_size}, must be 2 to {most}"
                    )
                })?;
            }
        }
        Ok(())
    }

    fn attentions(&self) -> Result<Vec<HditAttentionConfig>, String> {
        let (d_head, kernel_size) = (d_head(), kernel_size());
        let Some(given) = self.self_attns.as_ref().filter(|given| !given.is_empty()) else {
            let mut levels =
                vec![HditAttentionConfig::Neighborhood { d_head, kernel_size }; self.widths.len()];
            if let Some(innermost) = levels.last_mut() {
                *innermost = HditAttentionConfig::Global { d_head };
            }
            return Ok(levels);
        };
        let attention = |(index, given): (usize, &SelfAttention)| {
            let SelfAttention { d_head, kernel_size, .. } = *given;
            match given.kind.as_str() {
                "global" => Ok(HditAttentionConfig::Global { d_head }),
                "neighborhood" => Ok(HditAttentionConfig::Neighborhood { d_head, kernel_size }),
                kind => Err(format!(
                    "self_attns[{index}].type: is {kind}, must be global or neighborhood"
                )),
            }
        };
        given.iter().enumerate().map(attention).collect()
    }
}

fn require(holds: bool, text: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(text()) }
}

/// The entry `config` of a safetensors file's metadata.
fn inside(weights: &Path) -> Option<String> {
    let mut file = File::open(weights).ok()?;
    let mut length = [0; 8];
    file.read_exact(&mut length).ok()?;
    let length = u64::from_le_bytes(length);
    if length > LARGEST_HEADER {
        return None;
    }
    let mut header = Vec::new();
    file.take(length).read_to_end(&mut header).ok()?;
    let header: serde_json::Value = serde_json::from_slice(&header).ok()?;
    Some(header.pointer("/__metadata__/config")?.as_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn flowers() -> Value {
        json!({
            "model": {
                "type": "image_transformer_v2", "input_channels": 3, "input_size": [256, 256],
                "patch_size": [4, 4], "depths": [2, 2, 4], "widths": [128, 256, 512],
                "sigma_data": 0.5, "sigma_min": 1e-2, "sigma_max": 160
            },
            "dataset": { "type": "imagefolder" }
        })
    }

    #[test]
    fn what_is_absent_is_what_k_diffusion_takes() {
        let document = Document::parse(&flowers().to_string()).expect("is fine");
        assert_eq!((document.size, document.classes), ([256, 256], 0));
        assert_eq!(document.sigmas, [0.01, 160.0]);
        let HditConfig { levels, mapping, sigma_data, num_classes, .. } = document.model;
        assert_eq!((mapping.depth, mapping.width, mapping.d_ff), (2, 256, 768));
        assert_eq!((sigma_data, num_classes), (0.5, 0));
        let near = HditAttentionConfig::Neighborhood { d_head: 64, kernel_size: 7 };
        let expected = [(128, 384, near), (256, 768, near)];
        for (level, (width, d_ff, attention)) in levels.iter().zip(expected) {
            assert_eq!((level.width, level.d_ff, level.attention), (width, d_ff, attention));
        }
        assert_eq!(levels[2].attention, HditAttentionConfig::Global { d_head: 64 });
        let mut with_classes = flowers();
        with_classes["dataset"]["num_classes"] = json!(10);
        let document = Document::parse(&with_classes.to_string()).expect("is fine");
        assert_eq!((document.classes, document.model.num_classes), (10, 11));
    }

    #[test]
    fn refusals_name_the_entry() {
        let shifted =
            json!([{ "type": "shifted-window" }, { "type": "global" }, { "type": "global" }]);
        for (name, value, expected) in [
            ("type", json!("image_v1"), "model.type: is image_v1, must be image_transformer_v2"),
            ("input_channels", json!(4), "input_channels: is 4, must be 1 or 3 for a picture"),
            (
                "input_size",
                json!([256, 200]),
                "input_size: has 200, must be a positive multiple of 16 in level 2",
            ),
            ("input_size", json!([16, 16]), "self_attns[0].kernel_size: is 7, must be 2 to 4"),
            ("widths", json!([128, 256]), "widths: has 2 levels, must have 3 as depths"),
            (
                "widths",
                json!([100, 256, 512]),
                "widths[0]: is 100, must be a positive multiple of 64 (d_head)",
            ),
            (
                "self_attns",
                shifted,
                "self_attns[0].type: is shifted-window, must be global or neighborhood",
            ),
            ("has_variance", json!(true), "has_variance: is true, must be false"),
            (
                "sigma_max",
                json!(0.001),
                "sigma_min, sigma_max: are 0.01 and 0.001, must be positive and rise",
            ),
        ] {
            let mut document = flowers();
            document["model"][name] = value;
            assert_eq!(Document::parse(&document.to_string()).expect_err(name), expected);
        }
        assert!(Document::parse("{").is_err() && Document::parse("{}").is_err());
    }
}
