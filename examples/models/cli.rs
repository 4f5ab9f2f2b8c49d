//! The flags.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::common::flags::{Backend, Precision, learning_rate, whole};

/// Run the models of the papers with weights from files.
#[derive(Parser, Debug)]
#[command(name = "models")]
pub struct Cli {
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// What to do with a model.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Name what NAT, DiNAT or DiNAT_s sees in a picture, and draw what it attends to
    Classify(Classify),
    /// Train NAT, DiNAT or DiNAT_s further, on a folder of pictures
    FineTune(FineTune),
    /// Let an HDiT make pictures
    Sample(Sample),
}

/// Flags of `classify`.
#[derive(Args, Clone, Debug)]
pub struct Classify {
    /// The model
    #[command(flatten)]
    pub model: Model,

    /// The picture, PNG or JPEG
    #[arg(long, value_name = "FILE")]
    pub picture: PathBuf,

    /// Names of the classes, one on each line [default: numbers]
    #[arg(long, value_name = "FILE")]
    pub classes: Option<PathBuf>,

    /// Number of classes of the model [default: 1000, or as fine-tune has written]
    #[arg(long, value_name = "N", value_parser = whole::<1, { usize::MAX }>)]
    pub num_classes: Option<usize>,

    /// How many of the likeliest classes to print
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = whole::<1, { usize::MAX }>)]
    pub top: usize,

    /// Draw what a point of the picture attends to into this file, PNG
    #[arg(long, value_name = "FILE")]
    pub attention: Option<PathBuf>,

    /// A layer to draw, as LEVEL.BLOCK from 0.0; may be given several times [default: the last of
    /// each level]
    #[arg(long, value_name = "L.B", value_parser = layer, requires = "attention")]
    pub layer: Vec<[usize; 2]>,

    /// A head to draw besides the mean of all, from 0; may be given several times
    #[arg(long, value_name = "N", requires = "attention")]
    pub head: Vec<usize>,

    /// The point, as parts of width and height from the left and from the top
    #[arg(long, value_name = "X,Y", default_value = "0.5,0.5", value_parser = point)]
    #[arg(requires = "attention")]
    pub at: [f64; 2],

    /// Where and how to compute
    #[command(flatten)]
    pub machine: Machine,
}

/// Flags of `fine-tune`.
#[derive(Args, Clone, Debug)]
pub struct FineTune {
    /// The model to begin with
    #[command(flatten)]
    pub model: Model,

    /// The pictures, DIR/<class>/*.png or *.jpg
    #[arg(long, value_name = "DIR")]
    pub images: PathBuf,

    /// Pictures to validate with, in the same classes [default: a tenth of --images]
    #[arg(long, value_name = "DIR")]
    pub validation: Option<PathBuf>,

    /// Keep the head of the weights, which must have as many classes as --images
    #[arg(long)]
    pub keep_head: bool,

    /// Passes over the pictures
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = whole::<1, { usize::MAX }>)]
    pub epochs: usize,

    /// Pictures in a step
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = whole::<1, { usize::MAX }>)]
    pub batch_size: usize,

    /// Highest learning rate, above 0 and at most 1
    #[arg(long, value_name = "RATE", default_value_t = 1e-4, value_parser = learning_rate)]
    pub learning_rate: f64,

    /// Probability that the last block skips a branch, at least 0 and below 1 [default: as published]
    #[arg(long, value_name = "P", value_parser = below_one)]
    pub drop_path: Option<f64>,

    /// How much of the averaged weights a step keeps, at least 0 and below 1
    #[arg(long, value_name = "PART", default_value_t = 0.999, value_parser = below_one)]
    pub average: f64,

    /// Threads that read pictures
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = whole::<1, 64>)]
    pub workers: usize,

    /// Seed of the head, of the order of the pictures and of what is done to them
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Folder for the model and the checkpoints
    #[arg(long, value_name = "DIR", default_value = "artifacts/fine_tune")]
    pub output: PathBuf,

    /// Continue from the newest checkpoint in the output folder
    #[arg(long)]
    pub resume: bool,

    /// Where to compute; all but flex need the cargo feature of that name
    #[arg(long, value_enum, default_value_t = Backend::Flex)]
    pub device: Backend,

    /// Type of activations; weights stay in f32 [default: bf16 where a GPU has it, else f32]
    #[arg(long, value_enum)]
    pub dtype: Option<Precision>,
}

/// Flags of `sample`.
#[derive(Args, Clone, Debug)]
pub struct Sample {
    /// The weights, .pth or .safetensors
    #[arg(long, value_name = "FILE")]
    pub weights: PathBuf,

    /// k-diffusion's configuration, JSON [default: the one inside of a .safetensors file]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Part of the file that holds the weights [default: model_ema if there is one]
    #[arg(long, value_name = "KEY")]
    pub part: Option<String>,

    /// Number of pictures
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = whole::<1, 100000>)]
    pub count: usize,

    /// Pictures at a time
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = whole::<1, { usize::MAX }>)]
    pub batch_size: usize,

    /// A class to make pictures of, from 0; may be given several times [default: all in turn]
    #[arg(long, value_name = "N")]
    pub class: Vec<usize>,

    /// How far to go from the picture of no class to that of the class; 1 is the model's own
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = finite)]
    pub guidance: f64,

    /// Noise levels
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = whole::<2, 10000>)]
    pub steps: usize,

    /// How a step is made
    #[arg(long, value_enum, default_value_t = Sampler::Dpmpp2m)]
    pub sampler: Sampler,

    /// Seed of the noise; the same seed gives the same pictures
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Folder for the pictures
    #[arg(long, value_name = "DIR", default_value = "artifacts/sample")]
    pub output: PathBuf,

    /// Where and how to compute
    #[command(flatten)]
    pub machine: Machine,
}

/// A model, and its weights.
#[derive(Args, Clone, Debug)]
pub struct Model {
    /// A published size, such as dinat_tiny, or the model.json that fine-tune has written
    #[arg(long, value_name = "NAME|FILE")]
    pub model: String,

    /// The weights, .pth or .safetensors
    #[arg(long, value_name = "FILE")]
    pub weights: PathBuf,

    /// Part of the file that holds the weights, such as model_ema
    #[arg(long, value_name = "KEY")]
    pub part: Option<String>,

    /// Side in pixels that pictures are brought to [default: 224, or as the model was trained]
    #[arg(long, value_name = "N", value_parser = whole::<16, 4096>)]
    pub image_size: Option<usize>,
}

/// Where and how to compute.
#[derive(Args, Clone, Copy, Debug)]
pub struct Machine {
    /// Where to compute; all but flex need the cargo feature of that name
    #[arg(long, value_enum, default_value_t = Backend::Flex)]
    pub device: Backend,

    /// Type of weights and activations
    #[arg(long, value_enum, default_value_t = Precision::F32)]
    pub dtype: Precision,
}

/// How a step of sampling is made.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sampler {
    /// DPM-Solver++ (2M), which calls the model once a step
    #[value(name = "dpmpp-2m")]
    Dpmpp2m,
    /// Heun's method, which calls it twice
    Heun,
}

fn layer(text: &str) -> Result<[usize; 2], String> {
    let numbers = text.split_once('.').map(|(level, block)| (level.parse(), block.parse()));
    match numbers {
        Some((Ok(level), Ok(block))) => Ok([level, block]),
        _ => Err("must be the numbers of a level and of a block with a point between".to_string()),
    }
}

fn point(text: &str) -> Result<[f64; 2], String> {
    let part = |text: &str| text.trim().parse().ok().filter(|part| (0.0..=1.0).contains(part));
    let parts = text.split_once(',').map(|(x, y)| (part(x), part(y)));
    match parts {
        Some((Some(x), Some(y))) => Ok([x, y]),
        _ => Err("must be two numbers from 0 to 1 with a comma between".to_string()),
    }
}

fn below_one(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(part) if (0.0..1.0).contains(&part) => Ok(part),
        _ => Err("must be a number of at least 0 and below 1".to_string()),
    }
}

fn finite(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() => Ok(number),
        _ => Err("must be a number".to_string()),
    }
}
