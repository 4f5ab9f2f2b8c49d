//! The flags.

use std::path::PathBuf;

use burn_natten::nn::{NativeSparseAttentionConfig, PoolingConfig};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::Failure;
use crate::attention::{AttentionConfig, DenseAttentionConfig};
use crate::common::flags::{Backend, Precision, learning_rate, whole};
use crate::model::LanguageModelConfig;

/// A language model of bytes, with native sparse attention or with dense attention.
#[derive(Parser, Debug)]
#[command(name = "language_model")]
pub struct Cli {
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// What to do with a model.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Train a model on a text
    Train(Train),
    /// Let a trained model write
    Write(Write),
    /// Train with both attentions on sequences of several lengths: loss, time and memory
    Compare(Compare),
}

/// Flags of `train`.
#[derive(Args, Clone, Debug)]
pub struct Train {
    /// The text
    #[command(flatten)]
    pub source: Source,

    /// How tokens attend to those before them
    #[arg(long, value_enum, default_value_t = Kind::Sparse)]
    pub attention: Kind,

    /// The model
    #[command(flatten)]
    pub model: Model,

    /// Bytes of a sequence
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = whole::<2, { usize::MAX }>)]
    pub length: usize,

    /// Sequences in a step
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = whole::<1, { usize::MAX }>)]
    pub batch_size: usize,

    /// Passes over the text
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = whole::<1, { usize::MAX }>)]
    pub epochs: usize,

    /// How to train
    #[command(flatten)]
    pub training: Training,

    /// Folder for the model and the checkpoints
    #[arg(long, value_name = "DIR", default_value = "artifacts/language_model")]
    pub output: PathBuf,

    /// Continue from the newest checkpoint in the output folder
    #[arg(long)]
    pub resume: bool,
}

/// Flags of `write`.
#[derive(Args, Clone, Debug)]
pub struct Write {
    /// Folder that train has written to
    #[arg(long, value_name = "DIR", default_value = "artifacts/language_model")]
    pub model: PathBuf,

    /// What the text begins with
    #[arg(long, value_name = "TEXT", default_value = "\n")]
    pub prompt: String,

    /// Bytes to write
    #[arg(long, value_name = "N", default_value_t = 400, value_parser = whole::<1, { usize::MAX }>)]
    pub count: usize,

    /// How freely to choose: 0 takes the likeliest byte, 1 draws as the model expects
    #[arg(long, value_name = "T", default_value_t = 0.7, value_parser = temperature)]
    pub temperature: f64,

    /// Seed of the draws
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Where to compute; all but flex need the cargo feature of that name
    #[arg(long, value_enum, default_value_t = Backend::Flex)]
    pub device: Backend,
}

/// Flags of `compare`.
#[derive(Args, Clone, Debug)]
pub struct Compare {
    /// The text
    #[command(flatten)]
    pub source: Source,

    /// The model
    #[command(flatten)]
    pub model: Model,

    /// Bytes of a sequence; several, and each is trained with
    #[arg(long, value_name = "N", num_args = 1.., value_parser = whole::<2, { usize::MAX }>)]
    #[arg(default_values_t = [512, 1024, 2048, 4096])]
    pub length: Vec<usize>,

    /// Bytes of a step, in as many sequences as that makes
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = whole::<2, { usize::MAX }>)]
    pub bytes: usize,

    /// Steps of each training
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = whole::<2, { usize::MAX }>)]
    pub steps: usize,

    /// How to train
    #[command(flatten)]
    pub training: Training,

    /// Folder for the numbers and the plot
    #[arg(long, value_name = "DIR", default_value = "artifacts/language_model_compare")]
    pub output: PathBuf,
}

/// A text to train on; without a flag, the documentation of this crate.
#[derive(Args, Clone, Debug)]
pub struct Source {
    /// A file, the last tenth of which is for validation [default: the documentation of this crate]
    #[arg(long, value_name = "FILE")]
    pub text: Option<PathBuf>,

    /// So many bytes made up: in each sequence random letters, and the same letters again
    #[arg(long, value_name = "BYTES", conflicts_with = "text")]
    #[arg(value_parser = whole::<1, { 1 << 30 }>)]
    pub copies: Option<usize>,
}

/// How to train, whatever the attention.
#[derive(Args, Clone, Copy, Debug)]
pub struct Training {
    /// Highest learning rate, above 0 and at most 1
    #[arg(long, value_name = "RATE", default_value_t = 2e-3, value_parser = learning_rate)]
    pub learning_rate: f64,

    /// Seed of the weights, of the order of the sequences and of --copies
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Where to compute; all but flex need the cargo feature of that name
    #[arg(long, value_enum, default_value_t = Backend::Flex)]
    pub device: Backend,

    /// Type of activations, f32 or bf16; weights stay in f32
    #[arg(long, value_enum, default_value_t = Precision::F32)]
    pub dtype: Precision,
}

/// Sizes of the model.
#[derive(Args, Clone, Copy, Debug)]
pub struct Model {
    /// Blocks of attention and a multilayer perceptron
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = whole::<1, 1024>)]
    pub layers: usize,

    /// Heads of queries
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = whole::<1, 1024>)]
    pub heads: usize,

    /// Heads of keys and values, which divide the heads of queries
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = whole::<1, 1024>)]
    pub heads_kv: usize,

    /// Channels of a head, an even number
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = whole::<2, 256>)]
    pub head_dim: usize,

    /// Sparse attention: tokens of a compressed block
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub cmp_block: usize,

    /// Sparse attention: tokens from one compressed block to the next
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub cmp_stride: usize,

    /// Sparse attention: tokens of a block that can be selected
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub slc_block: usize,

    /// Sparse attention: blocks that are selected
    #[arg(long, value_name = "N", default_value_t = 6)]
    pub num_selected: usize,

    /// Sparse attention: queries that share a list of blocks
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub query_tile: usize,

    /// Sparse attention: tokens of the window
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub window: usize,
}

/// How tokens attend to those before them.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Native sparse attention: compressed blocks, selected blocks and a window
    Sparse,
    /// All of them
    Dense,
}

impl Kind {
    /// Its name, as the flag has it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sparse => "sparse",
            Self::Dense => "dense",
        }
    }
}

impl Model {
    /// The configuration for sequences of at most `context` bytes.
    pub fn config(&self, kind: Kind, context: usize) -> Result<LanguageModelConfig, Failure> {
        let Self { layers, heads, heads_kv, head_dim, .. } = *self;
        if !heads.is_multiple_of(heads_kv) {
            let text =
                format!("--heads: is {heads}, must be a multiple of {heads_kv} (--heads-kv)");
            return Err(Failure::Usage(text));
        }
        if !head_dim.is_multiple_of(2) {
            let text =
                format!("--head-dim: is {head_dim}, must be even, as positions are rotations");
            return Err(Failure::Usage(text));
        }
        let dim = heads * head_dim;
        let attention = match kind {
            Kind::Dense => {
                AttentionConfig::Dense(DenseAttentionConfig::new(dim, heads, heads_kv, head_dim))
            }
            Kind::Sparse => AttentionConfig::Sparse(
                NativeSparseAttentionConfig::new(dim, heads, heads_kv)
                    .with_cmp_block(self.cmp_block)
                    .with_cmp_stride(self.cmp_stride)
                    .with_slc_block(self.slc_block)
                    .with_num_selected(self.num_selected)
                    .with_query_tile(self.query_tile)
                    .with_window(self.window)
                    .with_pooling(PoolingConfig::Linear),
            ),
        };
        self.check()?;
        Ok(LanguageModelConfig::new(attention, layers, dim, head_dim, context))
    }

    /// What the library says about the sizes, by the names of the flags.
    fn check(&self) -> Result<(), Failure> {
        let options = burn_natten::NativeSparseAttentionOptions::new()
            .with_cmp_block(self.cmp_block)
            .with_cmp_stride(self.cmp_stride)
            .with_slc_block(self.slc_block)
            .with_num_selected(self.num_selected)
            .with_query_tile(self.query_tile)
            .with_window(self.window);
        let Err(error) = burn_natten::NativeSparseCache::try_new(options) else { return Ok(()) };
        let text = error.to_string();
        let (name, rest) = text.split_once(':').unwrap_or(("", &text));
        Err(Failure::Usage(format!("--{}:{rest}", name.replace('_', "-"))))
    }
}

fn temperature(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if (0.0..=10.0).contains(&number) => Ok(number),
        _ => Err("must be a number from 0 to 10".to_string()),
    }
}
