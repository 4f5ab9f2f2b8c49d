//! The flags.

use std::ffi::OsString;
use std::path::PathBuf;

use burn_natten::Strategy;
use burn_natten::plan::Target;
use burn_natten::profile::Pass;
use clap::error::ErrorKind;
use clap::{ArgAction, Parser};

use crate::failure::Failure;
use crate::sparse::Sparse;
use crate::values::{self, DeviceName, ElementType, Memory};

const EXAMPLES: &str = "\
Examples:
  natten-profiler -i 56 56 -w 7 -n 2 -d 64 --backprop     measure here, on the CPU
  natten-profiler --problem flux --device cuda --dtype bf16 --backprop
  natten-profiler --problem hunyuan --dry-run --target sm_90 --dtype bf16
  natten-profiler -i 64 64 -w 13 --optimize               which strategy is the fastest?";

/// Explain and measure neighborhood attention: what runs, what bounds it, how long it takes.
#[derive(Parser, Clone, Debug)]
#[command(name = "natten-profiler", version, after_long_help = EXAMPLES)]
#[command(max_term_width = 100, disable_help_flag = true, disable_version_flag = true)]
pub struct Args {
    /// Tokens along each axis, 1 to 3 axes
    #[arg(short, long, value_name = "N", num_args = 1..=3, value_parser = values::at_least::<1>)]
    #[arg(help_heading = "Problem (one value stands for all axes)")]
    pub input_size: Vec<usize>,

    /// Samples
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = values::at_least::<1>)]
    #[arg(help_heading = "Problem (one value stands for all axes)")]
    pub batch_size: usize,

    /// Query heads
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = values::at_least::<1>)]
    #[arg(help_heading = "Problem (one value stands for all axes)")]
    pub heads: usize,

    /// Key and value heads [default: as heads]
    #[arg(long, value_name = "N", value_parser = values::at_least::<1>)]
    #[arg(help_heading = "Problem (one value stands for all axes)")]
    pub heads_kv: Option<usize>,

    /// Length of query and key vectors
    #[arg(short = 'd', long, value_name = "N", default_value_t = 64)]
    #[arg(value_parser = values::at_least::<1>)]
    #[arg(help_heading = "Problem (one value stands for all axes)")]
    pub head_dim: usize,

    /// Length of value vectors [default: as head-dim]
    #[arg(long, value_name = "N", value_parser = values::at_least::<1>)]
    #[arg(help_heading = "Problem (one value stands for all axes)")]
    pub dim_value: Option<usize>,

    /// Keys in a window, at least 2 [default: dense]
    #[arg(short, long, value_name = "N", num_args = 1..=3, value_parser = values::whole)]
    #[arg(help_heading = "Problem (one value stands for all axes)")]
    pub window_size: Vec<usize>,

    /// Queries that share a window [default: 1]
    #[arg(short, long, value_name = "N", num_args = 1..=3, value_parser = values::whole)]
    #[arg(help_heading = "Problem (one value stands for all axes)")]
    pub stride: Vec<usize>,

    /// Distance between keys of a window [default: 1]
    #[arg(long, value_name = "N", num_args = 1..=3, value_parser = values::whole)]
    #[arg(help_heading = "Problem (one value stands for all axes)")]
    pub dilation: Vec<usize>,

    /// Hide keys behind the query: 0 or 1 [default: 0]
    #[arg(short, long, value_name = "BOOL", num_args = 1..=3, value_parser = values::truth)]
    #[arg(help_heading = "Problem (one value stands for all axes)")]
    pub causal: Vec<bool>,

    /// Additional keys and values for every query
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = values::whole)]
    #[arg(help_heading = "Problem (one value stands for all axes)")]
    pub add_kv: usize,

    /// A relative position bias on the windows
    #[arg(long, hide_short_help = true, help_heading = "Problem (one value stands for all axes)")]
    pub bias: bool,

    /// Factor on the scores [default: head-dim^-0.5]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    #[arg(help_heading = "Problem (one value stands for all axes)")]
    pub scale: Option<f64>,

    /// A problem of the catalogue in place of the above
    #[arg(long, value_name = "NAME", conflicts_with_all = SHAPE)]
    #[arg(help_heading = "Problem (one value stands for all axes)")]
    pub problem: Option<String>,

    /// Packed batch: a file with the size of one sequence, image or video a line, as 16 24
    #[arg(long, value_name = "FILE", conflicts_with_all = crate::ragged::WITHOUT, conflicts_with_all = TUNING)]
    #[arg(hide_short_help = true, help_heading = "Problem (one value stands for all axes)")]
    pub ragged: Option<PathBuf>,

    /// The work of the packed batch in uniform batches too, one for each of its sizes
    #[arg(long, requires = "ragged", conflicts_with_all = ["dry_run", "unfused"])]
    // clap asks for no flag that another one rules out.
    #[arg(conflicts_with_all = crate::ragged::WITHOUT, conflicts_with_all = TUNING)]
    #[arg(hide_short_help = true, help_heading = "Problem (one value stands for all axes)")]
    pub uniform: bool,

    /// Both halves apart, scores and sums, with the attention weights in memory
    #[arg(long, conflicts_with_all = crate::unfused::WITHOUT, conflicts_with_all = TUNING)]
    #[arg(hide_short_help = true, help_heading = "Problem (one value stands for all axes)")]
    pub unfused: bool,

    /// Sparse attention
    #[command(flatten)]
    pub sparse: Sparse,

    /// f32, f16, bf16 or f64
    #[arg(long, value_enum, value_name = "TYPE", default_value_t = ElementType::F32)]
    #[arg(hide_possible_values = true, help_heading = "Computation")]
    pub dtype: ElementType,

    /// The backward pass as well
    #[arg(long, help_heading = "Computation")]
    pub backprop: bool,

    /// auto, reference, portable, tensor-core, hopper, blackwell
    #[arg(long, value_name = "NAME", default_value_t = Strategy::Auto)]
    #[arg(help_heading = "Computation")]
    pub strategy: Strategy,

    /// Only schedules with such tiles of queries
    #[arg(long, value_name = "N", num_args = 1..=3, value_parser = values::at_least::<1>)]
    #[arg(help_heading = "Computation")]
    pub q_tile: Vec<usize>,

    /// Only schedules with such tiles of keys
    #[arg(long, value_name = "N", num_args = 1..=3, value_parser = values::at_least::<1>)]
    #[arg(help_heading = "Computation")]
    pub kv_tile: Vec<usize>,

    /// The same bits from run to run
    #[arg(long, help_heading = "Computation")]
    pub deterministic: bool,

    /// f32 inputs multiplied in TF32, where the device has tensor cores for it
    #[arg(long, help_heading = "Computation")]
    pub allow_tf32: bool,

    /// How much may be taken beside inputs and outputs
    #[arg(long, value_name = "NAME", value_enum, default_value_t = Memory::Default)]
    #[arg(hide_short_help = true, help_heading = "Computation")]
    pub memory: Memory,

    /// flex, cpu, cuda, cuda:N, rocm, rocm:N, wgpu, vulkan, metal
    #[arg(long, value_name = "NAME", default_value = "flex", value_parser = values::device)]
    #[arg(help_heading = "Run")]
    pub device: DeviceName,

    /// Tokens in shards, one on each of these devices: every split beside one device
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = values::device)]
    #[arg(conflicts_with_all = crate::sharded::WITHOUT, conflicts_with_all = TUNING)]
    #[arg(hide_short_help = true, help_heading = "Run")]
    pub devices: Vec<DeviceName>,

    /// Untimed calls at the start
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = values::at_least::<1>)]
    #[arg(help_heading = "Run")]
    pub warmup_steps: usize,

    /// Samples to take the median of
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = values::at_least::<1>)]
    #[arg(help_heading = "Run")]
    pub repeats: usize,

    /// Explain the plan; needs no device
    #[arg(long, conflicts_with = "optimize", help_heading = "Run")]
    pub dry_run: bool,

    /// Device to explain: cpu, gpu, sm_90 [default: --device]
    #[arg(long, value_name = "NAME", value_parser = values::target, requires = "dry_run")]
    #[arg(help_heading = "Run")]
    pub target: Option<Target>,

    /// Measure all schedules, the fastest first
    #[arg(long, help_heading = "Run")]
    pub optimize: bool,

    /// JSON in place of tables
    #[arg(long, help_heading = "Run")]
    pub json: bool,

    /// List the problems of the catalogue
    #[arg(long, help_heading = "Run")]
    pub list: bool,

    /// Print this; --help adds sparse attention and examples
    #[arg(short, long, action = ArgAction::Help, help_heading = "Run")]
    help: Option<bool>,

    /// Print the version
    #[arg(short = 'V', long, action = ArgAction::Version, help_heading = "Run")]
    version: Option<bool>,
}

impl Args {
    /// The passes that are asked for.
    pub fn passes(&self) -> &'static [Pass] {
        if self.backprop { &[Pass::Forward, Pass::Backward] } else { &[Pass::Forward] }
    }
}

/// Flags that choose among the schedules of one fused problem.
pub const TUNING: [&str; 6] =
    ["q_tile", "kv_tile", "optimize", "deterministic", "allow_tf32", "memory"];

/// Flags that a problem of the catalogue decides.
const SHAPE: [&str; 11] = [
    "input_size",
    "batch_size",
    "heads",
    "heads_kv",
    "head_dim",
    "dim_value",
    "window_size",
    "stride",
    "dilation",
    "causal",
    "scale",
];

/// What a command line asks for.
#[derive(Debug)]
pub enum Parsed {
    /// To work.
    Run(Box<Args>),
    /// To print the help or the version.
    Text(String),
}

/// Reads the flags; what is wrong with them fits on one line.
pub fn parse<T: Into<OsString> + Clone>(
    arguments: impl IntoIterator<Item = T>,
) -> Result<Parsed, Failure> {
    match Args::try_parse_from(arguments) {
        Ok(args) => Ok(Parsed::Run(Box::new(args))),
        Err(error) => match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
                Ok(Parsed::Text(error.to_string()))
            }
            _ => Err(Failure::Usage(one_line(&error.to_string()))),
        },
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
