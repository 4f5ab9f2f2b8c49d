//! The command line.

use std::path::PathBuf;
use std::time::Duration;

use burn::tensor::DType;
use burn_natten::profile::{Mode, Pass, Repeats};
use burn_natten::{Context, Strategy};
use burn_natten_kernels::catalogue::{self, Entry};
use clap::{Parser, ValueEnum};

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum Set {
    /// As models pose them.
    All,
    /// Shrunk for a CPU.
    Small,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum Precision {
    F32,
    F16,
    Bf16,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum When {
    /// After idling.
    Burst,
    /// In a loop of at least a second.
    Sustained,
}

/// Times the catalogue of problems on a device.
#[derive(Debug, Parser)]
#[command(name = "catalogue")]
pub struct Args {
    /// flex, cpu, cuda, rocm, wgpu, vulkan or metal, as far as built; cuda:1 is the second GPU
    #[arg(long, default_value = "flex")]
    pub device: String,
    /// Which problems [default: small on flex and cpu, all elsewhere]
    #[arg(long)]
    pub catalogue: Option<Set>,
    /// Only the problems of these names, with or without "-small"
    #[arg(long, value_delimiter = ',')]
    pub only: Vec<String>,
    /// Element types
    #[arg(long, value_delimiter = ',', default_value = "f32")]
    pub dtype: Vec<Precision>,
    /// forward, backward
    #[arg(long, value_delimiter = ',', default_value = "forward,backward")]
    pub passes: Vec<Pass>,
    /// auto, reference, portable, tensor-core, hopper, blackwell [default: auto, and reference on flex]
    #[arg(long, value_delimiter = ',')]
    pub strategy: Vec<Strategy>,
    /// States of the device [default: sustained on flex and cpu, both elsewhere]
    #[arg(long, value_delimiter = ',')]
    pub modes: Vec<When>,
    /// Samples of each time
    #[arg(long, default_value_t = 7)]
    pub samples: usize,
    /// Skips a pass that is estimated to take more seconds than this a call; `inf` estimates nothing
    #[arg(long, default_value_t = 20.0)]
    pub limit_seconds: f64,
    /// The same for the Reference strategy, which is there to compare
    #[arg(long, default_value_t = 1.0)]
    pub reference_limit_seconds: f64,
    /// Results that are bitwise equal from run to run
    #[arg(long)]
    pub deterministic: bool,
    /// Kernels as the model chooses them, without measuring
    #[arg(long)]
    pub modelled: bool,
    /// Burn's own attention operator too, on the problems that it has; the backward pass with the forward pass
    #[arg(long)]
    pub burn: bool,
    /// Allows paths that have never run on real hardware
    #[arg(long)]
    pub allow_experimental: bool,
    /// Writes OUT.csv and OUT.md
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Writes the catalogue to a file and times nothing
    #[arg(long)]
    pub write_json: Option<PathBuf>,
    /// What cargo bench passes.
    #[arg(long, hide = true)]
    pub bench: bool,
}

impl Args {
    /// Whether the device is a CPU, by its name.
    pub fn is_cpu(&self) -> bool {
        matches!(self.device.as_str(), "flex" | "cpu")
    }

    /// The problems asked for.
    pub fn entries(&self) -> Result<Vec<Entry>, String> {
        let set = self.catalogue.unwrap_or(if self.is_cpu() { Set::Small } else { Set::All });
        let all = match set {
            Set::All => catalogue::all(),
            Set::Small => catalogue::small(),
        };
        let is = |entry: &Entry, name: &str| {
            entry.name == name || entry.name.strip_suffix("-small") == Some(name)
        };
        if let Some(name) = self.only.iter().find(|name| !all.iter().any(|entry| is(entry, name))) {
            let names: Vec<_> = all.iter().map(|entry| entry.name).collect();
            return Err(format!("--only: has {name}, must be among {}", names.join(", ")));
        }
        let is_asked_for =
            |entry: &Entry| self.only.is_empty() || self.only.iter().any(|name| is(entry, name));
        Ok(all.into_iter().filter(is_asked_for).collect())
    }

    pub fn strategies(&self) -> Vec<Strategy> {
        let default: &[_] = match self.device.as_str() {
            "flex" => &[Strategy::Auto, Strategy::Reference],
            _ => &[Strategy::Auto],
        };
        or(&self.strategy, default).to_vec()
    }

    /// How each mode is timed.
    pub fn repeats(&self) -> Vec<(When, Repeats)> {
        let default: &[_] =
            if self.is_cpu() { &[When::Sustained] } else { &[When::Burst, When::Sustained] };
        let modes = or(&self.modes, default).iter();
        modes.map(|&when| (when, self.repeat(when.mode()))).collect()
    }

    fn repeat(&self, mode: Mode) -> Repeats {
        let samples = self.samples.max(1);
        if self.is_cpu() {
            // There is no clock to wait for, and a slow row is not to take all the time.
            let limit = Duration::from_secs(2);
            return Repeats { samples, warmup: 1, limit, ..Repeats::new(mode) };
        }
        Repeats { samples, ..Repeats::new(mode) }
    }

    /// Settings of the calls.
    pub fn context(&self) -> Context {
        Context::current()
            .with_deterministic(self.deterministic)
            .with_autotune(!self.modelled)
            .with_allow_experimental(self.allow_experimental, self.allow_experimental)
    }

    /// Seconds that a call of a strategy may take.
    pub fn limit(&self, strategy: Strategy) -> f64 {
        match strategy {
            Strategy::Reference => self.limit_seconds.min(self.reference_limit_seconds),
            _ => self.limit_seconds,
        }
    }
}

fn or<'a, T>(given: &'a [T], default: &'a [T]) -> &'a [T] {
    if given.is_empty() { default } else { given }
}

impl Precision {
    pub fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
            Self::Bf16 => DType::BF16,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
        }
    }
}

impl When {
    pub fn name(self) -> &'static str {
        match self {
            Self::Burst => "burst",
            Self::Sustained => "sustained",
        }
    }

    fn mode(self) -> Mode {
        match self {
            Self::Burst => Mode::Burst,
            Self::Sustained => Mode::Sustained,
        }
    }
}
