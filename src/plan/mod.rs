//! What would run, and what it would cost, with no device.
//!
//! [`explain`] takes a [`Problem`] and a [`Target`] and says which implementation an operator would
//! choose there, which others could be asked for, how each cuts the problem into tiles and how long
//! each takes at the very least. The command-line tool `natten-profiler` prints it.

mod sizes;
mod sparse;
mod tiers;

use std::fmt;

use burn::tensor::{DType, Device};
use burn_natten_kernels::Problem;
use burn_natten_kernels::cost::{Cost, DeviceModel};
pub use burn_natten_kernels::tiling::{TileCount, Tiling};

pub use self::sizes::Sizes;
pub use self::sparse::{SparsePlan, SparseStep};
pub(crate) use self::tiers::FLEX_QUERIES;
use crate::backend::Plan;
pub use crate::problem::Windows;
use crate::{AttentionError, Capabilities, Context, Strategy, TensorCores, Tier};

/// A kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Target {
    /// Burn's Flex backend.
    Cpu,
    /// A CUDA device.
    Cuda {
        /// Compute capability, times ten: 90 is Hopper, 100 and 103 are Blackwell.
        sm: u32,
    },
    /// Any other device that CubeCL has a runtime for.
    Gpu,
}

impl Target {
    /// The kind of a device; `None` if this build has no operators for its backend.
    ///
    /// ```rust
    /// use burn::tensor::Device;
    /// use burn_natten::plan::Target;
    ///
    /// assert_eq!(Target::of(&Device::flex()), Some(Target::Cpu));
    /// ```
    pub fn of(device: &Device) -> Option<Self> {
        let capabilities = Capabilities::of(device)?;
        if capabilities.is_flex {
            return Some(Self::Cpu);
        }
        Some(match compute_capability(device) {
            Some(sm) => Self::Cuda { sm },
            None => Self::Gpu,
        })
    }

    /// What the selection of an implementation knows of such a device.
    pub fn capabilities(self) -> Capabilities {
        match self {
            Self::Cpu => Capabilities::flex(),
            // As if the feature `cuda` were on and NVRTC installed.
            Self::Cuda { sm } => Capabilities::cube()
                .with_wide_indices(true)
                .with_tensor_cores(TensorCores::cuda(sm))
                .with_hopper(sm == 90)
                .with_blackwell(sm == 100 || sm == 103),
            // Of other runtimes some have 64-bit indices; a plan must not count on it.
            Self::Gpu => Capabilities::cube(),
        }
    }

    /// The device whose rates times are computed with.
    pub fn device_model(self) -> DeviceModel {
        match self {
            Self::Cpu => DeviceModel::TWO_CORES,
            Self::Cuda { sm: 100..=109 } => DeviceModel::B200,
            Self::Cuda { .. } => DeviceModel::H200,
            Self::Gpu => DeviceModel::SOME_GPU,
        }
    }
}

/// Of a CUDA device, times ten.
#[cfg(feature = "cube")]
fn compute_capability(device: &Device) -> Option<u32> {
    let identity = device.identity()?;
    identity.fingerprint.strip_prefix("ptx_sm")?.parse().ok()
}

#[cfg(not(feature = "cube"))]
fn compute_capability(_device: &Device) -> Option<u32> {
    None
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => write!(f, "cpu"),
            Self::Cuda { sm } => write!(f, "sm_{sm}"),
            Self::Gpu => write!(f, "gpu"),
        }
    }
}

/// One way to compute a problem.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Candidate {
    /// The implementation.
    pub tier: Tier,
    /// The strategy that asks for it.
    pub strategy: Strategy,
    /// The settings that ask for it, where its tier has several.
    pub context: Context,
    /// How it works through the problem, in a few words.
    pub schedule: String,
    /// The tiles of its forward pass; `None` where it has none.
    pub tiling: Option<Tiling>,
    /// Their number, for one sample and head.
    pub count: Option<TileCount>,
    /// The forward pass.
    pub forward: Cost,
    /// The backward pass.
    pub backward: Cost,
    /// The kernels of the backward pass in the order of their launches, where the tier plans them as
    /// it plans its forward pass.
    pub backward_kernels: Vec<BackwardKernel>,
    /// Bytes of device memory that the backward pass takes besides inputs and outputs; `None` where the
    /// plan does not say.
    pub backward_workspace: Option<u64>,
}

/// A kernel of a backward pass.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct BackwardKernel {
    /// The gradients that it writes, such as `dk, dv`.
    pub writes: String,
    /// How it works through the problem, in a few words.
    pub schedule: String,
    /// Its tiles.
    pub tiling: Tiling,
    /// Their number, for one sample and head. Where the gradients are those of keys,
    /// [`TileCount::q_tiles`] is the number of tiles of keys.
    pub count: TileCount,
    /// Seconds that it is expected to take.
    pub seconds: f64,
}

/// What would run for a problem, and what else could.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Explanation {
    /// What is computed.
    pub problem: Problem,
    /// What the strategy that was asked for comes to.
    pub chosen: Candidate,
    /// What can be asked for instead, in the order of what is preferred.
    pub alternatives: Vec<Candidate>,
    /// The device that times were computed for.
    pub device: DeviceModel,
}

/// Says how `problem` would be computed on a device of the kind `target`.
///
/// [`Context::with_tiling`] asks for one of the candidates of a tier that has several. A native tier's
/// backward pass is several kernels, which [`Candidate::backward_kernels`] lists.
///
/// The times of the candidates are those of [`Target::device_model`]. Native tiers estimate theirs;
/// those of the others are bounds: no kernel is faster than its operations and its tensors allow,
/// and most are slower.
///
/// ```rust
/// use burn::tensor::DType;
/// use burn_natten::plan::{Sizes, Target, Windows, explain};
/// use burn_natten::{Context, Strategy, Tier};
///
/// # fn main() -> Result<(), burn_natten::AttentionError> {
/// let sizes = Sizes { heads: 24, heads_kv: 24, ..Sizes::new(128) };
/// let windows = Windows {
///     kernel_size: &[80, 80],
///     stride: &[16, 16],
///     dilation: &[1, 1],
///     is_causal: &[false, false],
/// };
/// let problem = sizes.neighborhood(&[256, 256], windows, None)?;
/// let target = Target::Gpu;
/// let plan = explain(&problem, DType::BF16, target, Strategy::Auto, Context::new())?;
/// assert_eq!(plan.chosen.tier, Tier::Portable);
/// assert_eq!(plan.alternatives[0].tier, Tier::Reference);
/// assert!(plan.chosen.forward.seconds < plan.alternatives[0].forward.seconds);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`AttentionError::UnsupportedDType`] for anything but F32, F16, BF16 and F64,
/// [`AttentionError::Strategy`] if a strategy that is asked for by name cannot run there.
pub fn explain(
    problem: &Problem,
    dtype: DType,
    target: Target,
    strategy: Strategy,
    context: Context,
) -> Result<Explanation, AttentionError> {
    if !matches!(dtype, DType::F64 | DType::F32 | DType::F16 | DType::BF16) {
        return Err(AttentionError::UnsupportedDType { argument: "query", got: dtype, note: "" });
    }
    let capabilities = target.capabilities();
    let plan = |strategy| Plan::on(capabilities, *problem, dtype, strategy, context);
    let (chosen, _) = plan(strategy)?;
    let mut plans = vec![chosen];
    for other in Tier::ALL.map(Tier::strategy) {
        let tier = |plan: &Plan| plan.forward.first();
        match plan(other) {
            Ok((other, _)) if plans.iter().all(|known| tier(known) != tier(&other)) => {
                plans.push(other);
            }
            _ => {}
        }
    }
    let device = target.device_model();
    let mut candidates = plans.iter().flat_map(|plan| tiers::candidates(plan, target));
    let Some(chosen) = candidates.next() else {
        let reason = "it has no schedule for this problem".to_string();
        return Err(AttentionError::Strategy { strategy, reason });
    };
    let alternatives = candidates.collect();
    Ok(Explanation { problem: *problem, chosen, alternatives, device })
}

#[cfg(test)]
mod tests;
