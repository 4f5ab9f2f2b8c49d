//! The flags.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::error::ErrorKind;
use clap::{Parser, ValueEnum};

use crate::Failure;

/// Train a vision transformer of neighborhood attention to classify pictures.
#[derive(Parser, Clone, Debug)]
#[command(name = "vision_transformer")]
pub struct Args {
    /// Where to compute; all but flex need the cargo feature of that name
    #[arg(long, value_enum, default_value_t = Backend::Flex)]
    pub device: Backend,

    /// Type of weights and activations
    #[arg(long, value_enum, default_value_t = Precision::F32)]
    pub dtype: Precision,

    /// Passes over the training pictures
    #[arg(long, default_value_t = 22, value_parser = whole::<1, { usize::MAX }>)]
    pub epochs: usize,

    /// Side of the window that a pixel attends to, at least 2
    #[arg(long, default_value_t = 3, value_parser = whole::<2, { usize::MAX }>)]
    pub kernel_size: usize,

    /// Distance between the keys of a window, in every second block [default: 2 where it fits]
    #[arg(long, value_parser = whole::<1, { usize::MAX }>)]
    pub dilation: Option<usize>,

    /// Pictures in a training step
    #[arg(long, default_value_t = 16, value_parser = whole::<1, { usize::MAX }>)]
    pub batch_size: usize,

    /// Highest learning rate, above 0 and at most 1
    #[arg(long, default_value_t = 2e-3, value_parser = learning_rate)]
    pub learning_rate: f64,

    /// Seed of the weights, of the order of the pictures and of the split of --images
    #[arg(long, default_value_t = 1)]
    pub seed: u64,

    /// Folder for the model, the picture and the checkpoints
    #[arg(long, value_name = "DIR", default_value = "artifacts/vision_transformer")]
    pub output: PathBuf,

    /// Continue from the newest checkpoint in the output folder
    #[arg(long)]
    pub resume: bool,

    /// The digits, a gzipped CSV file [default: the one beside the sources]
    #[arg(long, value_name = "PATH", conflicts_with = "images")]
    pub data: Option<PathBuf>,

    /// Train on your own pictures, DIR/<class>/*.png or *.jpg; a fifth is kept for the test
    #[arg(long, value_name = "DIR")]
    pub images: Option<PathBuf>,

    /// Side in pixels that the pictures of --images are resized to, 8 to 512
    #[arg(long, default_value_t = 32, value_parser = whole::<8, 512>)]
    pub image_size: usize,
}

/// A Burn backend.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Pure Rust on the CPU
    Flex,
    /// CubeCL on the CPU
    Cpu,
    /// WebGPU
    Wgpu,
    /// CUDA
    Cuda,
}

/// A float type.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// 32 bits
    F32,
    /// 16 bits, IEEE
    F16,
    /// 16 bits, bfloat
    Bf16,
}

/// What a command line asks for.
#[derive(Debug)]
pub enum Parsed {
    /// To train.
    Run(Box<Args>),
    /// To print the help.
    Text(String),
}

/// Reads the flags; what is wrong with them fits on one line.
pub fn parse<T: Into<OsString> + Clone>(
    arguments: impl IntoIterator<Item = T>,
) -> Result<Parsed, Failure> {
    match Args::try_parse_from(arguments) {
        Ok(args) => Ok(Parsed::Run(Box::new(args))),
        Err(error) if error.kind() == ErrorKind::DisplayHelp => Ok(Parsed::Text(error.to_string())),
        Err(error) => Err(Failure::Usage(one_line(&error.to_string()))),
    }
}

/// clap's message without its prefix, and without the advice that it ends with.
fn one_line(message: &str) -> String {
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let is_advice =
        |line: &&str| ["Usage", "tip:", "For more"].iter().any(|start| line.starts_with(start));
    let lines = message.lines().map(str::trim).take_while(|line| !is_advice(line));
    let words: Vec<_> = lines.filter(|line| !line.is_empty()).collect();
    words.join(" ")
}

fn whole<const MIN: usize, const MAX: usize>(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if (MIN..=MAX).contains(&number) => Ok(number),
        _ if MAX == usize::MAX => Err(format!("must be a whole number of at least {MIN}")),
        _ => Err(format!("must be a whole number from {MIN} to {MAX}")),
    }
}

fn learning_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate <= 1.0 => Ok(rate),
        _ => Err("must be a number above 0 and at most 1".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(flags: &[&str]) -> String {
        let arguments = ["vision_transformer"].iter().chain(flags);
        match parse(arguments) {
            Err(Failure::Usage(text)) => text,
            other => panic!("{flags:?} gave {other:?}"),
        }
    }

    #[test]
    fn no_flags_are_needed() {
        let Ok(Parsed::Run(args)) = parse(["vision_transformer"]) else {
            panic!("the defaults are refused");
        };
        assert_eq!((args.device, args.dtype, args.resume), (Backend::Flex, Precision::F32, false));
    }

    #[test]
    fn refusals_are_one_line_that_names_flag_and_value() {
        for (flags, parts) in [
            (&["--device", "tpu"][..], &["--device", "tpu", "flex, cpu, wgpu, cuda"][..]),
            (&["--epochs", "0"], &["--epochs", "0", "at least 1"]),
            (&["--kernel-size", "1"], &["--kernel-size", "1"]),
            (&["--learning-rate", "2"], &["--learning-rate", "2", "at most 1"]),
            (&["--image-size", "4"], &["--image-size", "4", "from 8 to 512"]),
            (&["--seed", "x"], &["--seed", "x"]),
            (&["--images", "a", "--data", "b"], &["--images", "--data"]),
            (&["--nonsense"], &["--nonsense"]),
            (&["stray"], &["stray"]),
        ] {
            let text = refused(flags);
            assert!(!text.contains('\n') && !text.contains("--help"), "{text}");
            assert!(parts.iter().all(|part| text.contains(part)), "{flags:?}: {text}");
        }
    }

    #[test]
    fn help_is_no_error() {
        let Ok(Parsed::Text(text)) = parse(["vision_transformer", "--help"]) else {
            panic!("--help is refused");
        };
        assert!(text.contains("--images"));
    }
}
