//! One of the models that classify, whichever it is.

use std::path::Path;

use burn::module::Module;
use burn::tensor::Tensor;
use burn_natten::models::dinat_s::DinatS;
use burn_natten::models::isotropic::Isotropic;
use burn_natten::models::nat::{Nat, NatBlock};
use burn_natten::models::{LoadOptions, LoadReport, Weights};

use crate::Failure;

/// A model that classifies pictures.
#[derive(Module, Debug)]
pub enum Classifier {
    /// NAT or DiNAT.
    Nat(Nat),
    /// DiNAT_s.
    DinatS(DinatS),
    /// Isotropic NAT or DiNAT.
    Isotropic(Isotropic),
}

impl Classifier {
    /// Logits, `[batch, classes]`, of pictures, `[batch, 3, height, width]`.
    pub fn forward(&self, pictures: Tensor<4>) -> Tensor<2> {
        match self {
            Self::Nat(model) => model.forward(pictures),
            Self::DinatS(model) => model.forward(pictures),
            Self::Isotropic(model) => model.forward(pictures),
        }
    }

    /// Takes weights from a file.
    pub fn load(self, path: &Path, options: &LoadOptions) -> Result<(Self, LoadReport), Failure> {
        let result = match self {
            Self::Nat(model) => wrap(Self::Nat, model.load_weights(path, options)),
            Self::DinatS(model) => wrap(Self::DinatS, model.load_weights(path, options)),
            Self::Isotropic(model) => wrap(Self::Isotropic, model.load_weights(path, options)),
        };
        result.map_err(|error| Failure::Run(error.to_string()))
    }

    /// Writes the weights to a safetensors file.
    pub fn save(&self, path: &Path) -> Result<(), Failure> {
        let result = match self {
            Self::Nat(model) => model.save_weights(path),
            Self::DinatS(model) => model.save_weights(path),
            Self::Isotropic(model) => model.save_weights(path),
        };
        result.map_err(|error| Failure::Run(error.to_string()))
    }

    /// The blocks of each level; an isotropic model is one level.
    pub fn blocks(&self) -> Vec<&[NatBlock]> {
        match self {
            Self::Nat(model) => model.levels.iter().map(|level| &level.blocks[..]).collect(),
            Self::DinatS(model) => model.layers.iter().map(|level| &level.blocks[..]).collect(),
            Self::Isotropic(model) => vec![&model.layers],
        }
    }

    /// What each block of these levels sees of pictures, `[batch, height, width, channels]`, in
    /// the order of the blocks.
    pub fn inputs(&self, pictures: Tensor<4>) -> Vec<Vec<Tensor<4>>> {
        let mut state = match self {
            Self::Nat(model) => model.patch_embed.forward(pictures),
            Self::DinatS(model) => model.patch_embed.forward(pictures),
            Self::Isotropic(model) => model.patch_embed.forward(pictures),
        };
        let mut levels = Vec::new();
        for (level, blocks) in self.blocks().into_iter().enumerate() {
            let mut inputs = Vec::with_capacity(blocks.len());
            for block in blocks {
                inputs.push(state.clone());
                state = block.forward(state);
            }
            levels.push(inputs);
            state = self.downsample(level, state);
        }
        levels
    }

    fn downsample(&self, level: usize, state: Tensor<4>) -> Tensor<4> {
        match self {
            Self::Nat(model) => match &model.levels[level].downsample {
                Some(downsample) => downsample.forward(state),
                None => state,
            },
            Self::DinatS(model) => match &model.layers[level].downsample {
                Some(downsample) => downsample.forward(state),
                None => state,
            },
            Self::Isotropic(_) => state,
        }
    }
}

fn wrap<M, E>(
    variant: fn(M) -> Classifier,
    loaded: Result<(M, LoadReport), E>,
) -> Result<(Classifier, LoadReport), E> {
    loaded.map(|(model, report)| (variant(model), report))
}
