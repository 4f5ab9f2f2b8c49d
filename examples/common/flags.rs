//! What flags mean, and what is said of wrong ones.

use std::ffi::OsString;

use clap::error::ErrorKind;
use clap::{Parser, ValueEnum};

use super::Failure;

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
pub enum Parsed<T> {
    /// To run.
    Run(Box<T>),
    /// To print the help.
    Text(String),
}

/// Reads the flags; what is wrong with them fits on one line.
pub fn parse<T: Parser>(
    arguments: impl IntoIterator<Item = impl Into<OsString> + Clone>,
) -> Result<Parsed<T>, Failure> {
    match T::try_parse_from(arguments) {
        Ok(args) => Ok(Parsed::Run(Box::new(args))),
        Err(error) if is_help(error.kind()) => Ok(Parsed::Text(error.to_string())),
        Err(error) => Err(Failure::Usage(one_line(&error.to_string()))),
    }
}

fn is_help(kind: ErrorKind) -> bool {
    use ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand};
    [DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand].contains(&kind)
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

/// A whole number in a range.
pub fn whole<const MIN: usize, const MAX: usize>(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if (MIN..=MAX).contains(&number) => Ok(number),
        _ if MAX == usize::MAX => Err(format!("must be a whole number of at least {MIN}")),
        _ => Err(format!("must be a whole number from {MIN} to {MAX}")),
    }
}

/// A learning rate.
pub fn learning_rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate <= 1.0 => Ok(rate),
        _ => Err("must be a number above 0 and at most 1".to_string()),
    }
}
