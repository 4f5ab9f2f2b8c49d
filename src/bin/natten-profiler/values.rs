//! From the words behind a flag to values.

use burn::tensor::DType;
use burn_natten::MemoryPreference;
use burn_natten::plan::Target;
use clap::ValueEnum;

/// Element type of the tensors.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum ElementType {
    #[value(alias = "fp32")]
    F32,
    #[value(alias = "fp16")]
    F16,
    Bf16,
    #[value(alias = "fp64")]
    F64,
}

impl ElementType {
    pub fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
            Self::Bf16 => DType::BF16,
            Self::F64 => DType::F64,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::F64 => "f64",
        }
    }
}

/// How much memory an implementation may take.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    Strict,
    Default,
    Unrestricted,
}

impl Memory {
    pub fn preference(self) -> MemoryPreference {
        match self {
            Self::Strict => MemoryPreference::Strict,
            Self::Default => MemoryPreference::Default,
            Self::Unrestricted => MemoryPreference::Unrestricted,
        }
    }
}

/// A device of Burn's, named as the cargo feature that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceName {
    pub backend: Backend,
    /// Number of the device, where there may be several.
    pub index: usize,
}

/// A backend of Burn's.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    Flex,
    Cpu,
    Cuda,
    Rocm,
    Wgpu,
    Vulkan,
    Metal,
}

impl Backend {
    /// As in `--device`, which is the cargo feature as well.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flex => "flex",
            Self::Cpu => "cpu",
            Self::Cuda => "cuda",
            Self::Rocm => "rocm",
            Self::Wgpu => "wgpu",
            Self::Vulkan => "vulkan",
            Self::Metal => "metal",
        }
    }

    /// The kind of device that a plan is made for, without opening one.
    pub fn target(self) -> Target {
        match self {
            Self::Flex => Target::Cpu,
            Self::Cuda => Target::Cuda { sm: 90 },
            _ => Target::Gpu,
        }
    }
}

pub fn device(text: &str) -> Result<DeviceName, String> {
    let (name, index) = match text.split_once(':') {
        Some((name, index)) => (name, Some(index)),
        None => (text, None),
    };
    let backend = Backend::from_str(name, false)
        .map_err(|_| "must be one of flex, cpu, cuda, rocm, wgpu, vulkan, metal".to_string())?;
    let index = match index {
        None => 0,
        Some(_) if !matches!(backend, Backend::Cuda | Backend::Rocm) => {
            return Err("only cuda and rocm take a number".to_string());
        }
        Some(index) => index.parse().map_err(|_| format!("'{index}' is not a whole number"))?,
    };
    Ok(DeviceName { backend, index })
}

pub fn target(text: &str) -> Result<Target, String> {
    match text {
        "cpu" => Ok(Target::Cpu),
        "gpu" => Ok(Target::Gpu),
        _ => {
            let sm = text.strip_prefix("sm").map(|sm| sm.trim_start_matches('_').parse());
            match sm {
                Some(Ok(sm)) => Ok(Target::Cuda { sm }),
                _ => Err("must be cpu, gpu or a CUDA architecture such as sm_90".to_string()),
            }
        }
    }
}

pub fn whole(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "must be a whole number".to_string())
}

pub fn at_least<const MIN: usize>(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number >= MIN => Ok(number),
        _ => Err(format!("must be a whole number of at least {MIN}")),
    }
}

pub fn truth(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" => Ok(true),
        "0" | "false" => Ok(false),
        _ => Err("must be 0, 1, true or false".to_string()),
    }
}
