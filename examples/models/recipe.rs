//! Which model, and which pictures it wants.

use std::path::Path;

use burn::tensor::Device;
use burn_natten::models::ConfigError;
use burn_natten::models::dinat_s::DinatSConfig;
use burn_natten::models::isotropic::IsotropicConfig;
use burn_natten::models::nat::NatConfig;
use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::classifier::Classifier;

/// Pictures are first resized to so many times the side that is then cut out of their middle; timm
/// evaluates so, with which the models were trained.
const MARGIN: f64 = 1.0 / 0.875;

/// A model, and the pictures that it was trained on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Recipe {
    /// The model.
    pub model: ClassifierConfig,
    /// Height and width of its pictures.
    pub image_size: usize,
    /// How much larger the shorter side is before the middle is cut out.
    pub margin: f64,
}

/// Configuration of a [`Classifier`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClassifierConfig {
    /// NAT or DiNAT.
    Nat(NatConfig),
    /// DiNAT_s.
    DinatS(DinatSConfig),
    /// Isotropic NAT or DiNAT.
    Isotropic(IsotropicConfig),
}

impl Recipe {
    /// The recipe of a published size, or of a file that fine-tune has written.
    pub fn find(name: &str) -> Result<Self, Failure> {
        if name.ends_with(".json") {
            return Self::read(Path::new(name));
        }
        let mut published = published();
        let Some(place) = published.iter().position(|(known, _)| *known == name) else {
            let names: Vec<_> = published.iter().map(|(name, _)| *name).collect();
            let names = names.join(", ");
            let text =
                format!("--model: is {name}, must be a file that ends in .json or one of {names}");
            return Err(Failure::Usage(text));
        };
        let (name, model) = published.swap_remove(place);
        // Those of the large size were trained on pictures that nothing is cut off from.
        let (image_size, margin) = if name.contains("384") { (384, 1.0) } else { (224, MARGIN) };
        Ok(Self { model, image_size, margin })
    }

    fn read(path: &Path) -> Result<Self, Failure> {
        let fail = |reason: String| {
            Failure::Run(format!("{}: is no model of fine-tune, {reason}", path.display()))
        };
        let bytes = std::fs::read(path).map_err(|error| fail(error.to_string()))?;
        let recipe: Self =
            serde_json::from_slice(&bytes).map_err(|error| fail(error.to_string()))?;
        if recipe.image_size == 0 || !(1.0..=4.0).contains(&recipe.margin) {
            return Err(fail("image_size must be at least 1 and margin from 1 to 4".to_string()));
        }
        recipe.model.check().map_err(|error| fail(error.to_string()))?;
        Ok(recipe)
    }

    /// Writes what [`find`](Self::find) reads.
    pub fn write(&self, path: &Path) -> Result<(), Failure> {
        let text = serde_json::to_string_pretty(self)
            .map_err(|error| Failure::cannot_write(path, &error))?;
        std::fs::write(path, text + "\n").map_err(|error| Failure::cannot_write(path, &error))
    }
}

/// All sizes by name.
fn published() -> Vec<(&'static str, ClassifierConfig)> {
    let nat = NatConfig::published().map(|(name, config)| (name, ClassifierConfig::Nat(config)));
    let dinat_s =
        DinatSConfig::published().map(|(name, config)| (name, ClassifierConfig::DinatS(config)));
    let isotropic = IsotropicConfig::published()
        .map(|(name, config)| (name, ClassifierConfig::Isotropic(config)));
    nat.into_iter().chain(dinat_s).chain(isotropic).collect()
}

impl ClassifierConfig {
    /// Whether there is such a model.
    fn check(&self) -> Result<(), ConfigError> {
        match self {
            Self::Nat(config) => config.check(),
            Self::DinatS(config) => config.check(),
            Self::Isotropic(config) => config.check(),
        }
    }

    /// A new model.
    pub fn init(&self, device: &Device) -> Classifier {
        match self {
            Self::Nat(config) => Classifier::Nat(config.init(device)),
            Self::DinatS(config) => Classifier::DinatS(config.init(device)),
            Self::Isotropic(config) => Classifier::Isotropic(config.init(device)),
        }
    }

    /// Number of classes.
    pub fn num_classes(&mut self) -> &mut usize {
        match self {
            Self::Nat(config) => &mut config.num_classes,
            Self::DinatS(config) => &mut config.num_classes,
            Self::Isotropic(config) => &mut config.num_classes,
        }
    }

    /// Probability that the last block skips a branch.
    pub fn drop_path_rate(&mut self) -> &mut f64 {
        match self {
            Self::Nat(config) => &mut config.drop_path_rate,
            Self::DinatS(config) => &mut config.drop_path_rate,
            Self::Isotropic(config) => &mut config.drop_path_rate,
        }
    }
}
