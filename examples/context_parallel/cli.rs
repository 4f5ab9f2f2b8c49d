//! The flags.

use clap::{Parser, ValueEnum};

use crate::Failure;
use crate::common::flags::{Precision, whole};

/// Attention over a video on several devices.
#[derive(Parser, Clone, Debug)]
#[command(name = "context_parallel")]
pub struct Args {
    /// A member for each: flex, cpu, cuda:0, cuda:1 and so on; all but flex need the cargo feature of that name. One may be named twice
    #[arg(long, value_delimiter = ',', default_value = "flex,flex")]
    pub devices: Vec<String>,

    /// Frames, rows and columns of tokens
    #[arg(long, value_delimiter = ',', default_value = "6,12,20", value_parser = whole::<1, { usize::MAX }>)]
    pub space: Vec<usize>,

    /// The window along each of them
    #[arg(long, value_delimiter = ',', default_value = "4,6,6", value_parser = whole::<1, { usize::MAX }>)]
    pub window: Vec<usize>,

    /// Heads
    #[arg(long, default_value_t = 4, value_parser = whole::<1, { usize::MAX }>)]
    pub heads: usize,

    /// Length of a vector
    #[arg(long, default_value_t = 32, value_parser = whole::<1, { usize::MAX }>)]
    pub head_dim: usize,

    /// HunyuanVideo's sizes, in bf16: 30 x 48 x 80 tokens, windows of 18 x 24 x 24, 24 heads of 128
    #[arg(long, conflicts_with_all = ["space", "window", "heads", "head_dim", "dtype"])]
    pub hunyuan: bool,

    /// Type of the tensors
    #[arg(long, value_enum, default_value_t = Precision::F32)]
    pub dtype: Precision,

    /// What members send each other
    #[arg(long, value_enum, default_value_t = Choice::Auto)]
    pub split: Choice,

    /// The axis along which the video is cut, unless the split is auto
    #[arg(long, default_value_t = 2, value_parser = whole::<0, 2>)]
    pub axis: usize,

    /// How often each pass is timed
    #[arg(long, default_value_t = 5, value_parser = whole::<1, { usize::MAX }>)]
    pub repeats: usize,
}

/// A split.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// What is expected to be the fastest on H200, along whatever axis
    Auto,
    /// Tokens for heads
    Heads,
    /// Keys and values that windows of others reach
    Halo,
}

impl Args {
    /// The flags with what `--hunyuan` stands for.
    pub fn resolved(&self) -> Self {
        if !self.hunyuan {
            return self.clone();
        }
        Self {
            space: vec![30, 48, 80],
            window: vec![18, 24, 24],
            heads: 24,
            head_dim: 128,
            dtype: Precision::Bf16,
            ..self.clone()
        }
    }
}

/// A number for each axis.
pub fn three(flag: &str, numbers: &[usize]) -> Result<[usize; 3], Failure> {
    <[usize; 3]>::try_from(numbers).map_err(|_| {
        Failure::Usage(format!("--{flag}: has {} numbers, must have 3", numbers.len()))
    })
}
