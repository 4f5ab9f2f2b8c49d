//! From a problem, a device and what the user asked for to a plan.

use std::borrow::Cow;

use burn::backend::DispatchDevice;
use burn::tensor::{DType, Device};
use burn_natten_kernels::Problem;
use burn_natten_kernels::native::sm90;
use burn_natten_kernels::tensor_core;
pub use burn_natten_kernels::tensor_core::Capability as TensorCores;

use super::log_once;
use crate::{AttentionError, Context, Strategy};

/// An implementation of the operators.
///
/// [`select`] says which one runs; the guide compares their [determinism](crate::guide::determinism),
/// [memory](crate::guide::memory) and [precision](crate::guide::precision).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tier {
    /// Burn's tensor operations.
    Reference,
    /// SIMD kernels on the buffers of Burn's Flex backend.
    Flex,
    /// CubeCL kernels for any runtime.
    Portable,
    /// CubeCL kernels on the matrix units that CubeCL gives access to.
    TensorCore,
    /// Native CUDA kernels for Hopper GPUs.
    Hopper,
}

/// What the selection knows of a device.
///
/// Read from a device with [`Capabilities::of`], or written down to ask what would run elsewhere:
///
/// ```rust
/// use burn::tensor::DType;
/// use burn_natten::plan::Sizes;
/// use burn_natten::{Capabilities, Context, Strategy, TensorCores, Tier, select};
///
/// # fn main() -> Result<(), burn_natten::AttentionError> {
/// let some_gpu = Capabilities {
///     is_flex: false,
///     is_cube: true,
///     has_wide_indices: false,
///     tensor_cores: None,
///     has_hopper: false,
/// };
/// let problem = Sizes::new(64).dense(1024, 1024, true, None)?;
/// let context = Context::new();
/// let tier = select(&problem, Strategy::Auto, DType::BF16, some_gpu, context)?;
/// assert_eq!(tier, Tier::Portable);
/// let ampere = Capabilities { tensor_cores: TensorCores::cuda(80), ..some_gpu };
/// let tier = select(&problem, Strategy::Auto, DType::BF16, ampere, context)?;
/// assert_eq!(tier, Tier::TensorCore);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Whether Burn's Flex backend runs there.
    pub is_flex: bool,
    /// Whether a CubeCL runtime runs there.
    pub is_cube: bool,
    /// Whether kernels can index more than 2^31 elements.
    pub has_wide_indices: bool,
    /// The matrix units for f16, bf16 and TF32 that CubeCL gives the kernels there, if any.
    pub tensor_cores: Option<TensorCores>,
    /// Whether native Hopper kernels can be compiled and run: compute capability 9.0, the feature
    /// `cuda`, and NVRTC where the loader finds it.
    pub has_hopper: bool,
}

impl Capabilities {
    /// Reads the capabilities of a device; `None` if this build has no operators for its backend.
    ///
    /// ```rust
    /// use burn::tensor::Device;
    /// use burn_natten::Capabilities;
    ///
    /// let flex = Capabilities::of(&Device::flex()).expect("the feature `flex` is on");
    /// assert!(flex.is_flex && !flex.is_cube);
    /// ```
    pub fn of(device: &Device) -> Option<Self> {
        match device.clone().without_autodiff().as_dispatch() {
            #[cfg(feature = "flex")]
            DispatchDevice::Flex(_) => Some(Self {
                is_flex: true,
                is_cube: false,
                has_wide_indices: true,
                tensor_cores: None,
                has_hopper: false,
            }),
            #[cfg(feature = "cube")]
            DispatchDevice::Cube(device) => {
                let client = device.client();
                Some(Self {
                    is_flex: false,
                    is_cube: true,
                    has_wide_indices: burn_natten_kernels::portable::has_wide_indices(&client),
                    tensor_cores: TensorCores::of(&client),
                    #[cfg(feature = "cuda")]
                    has_hopper: sm90::is_available(&client),
                    #[cfg(not(feature = "cuda"))]
                    has_hopper: false,
                })
            }
            #[allow(unreachable_patterns)]
            _ => None,
        }
    }
}

/// A problem and how it is going to be computed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plan {
    pub(crate) problem: Problem,
    pub(crate) tier: Tier,
    pub(crate) context: Context,
}

impl Plan {
    /// Whether there is no query, or no key for any query. Kernels are never handed such a problem.
    pub(crate) fn is_empty(&self) -> bool {
        let problem = &self.problem;
        problem.batch == 0 || problem.queries() == 0 || problem.keys() + problem.additional == 0
    }
}

/// Picks the tier that computes a problem in `dtype` on a device with these capabilities.
///
/// [`Strategy::Auto`] degrades where a faster tier cannot run, logging once; any other strategy
/// runs as asked.
///
/// # Errors
///
/// [`AttentionError::Strategy`] if a strategy that was asked for by name cannot run.
///
/// # Example
///
/// ```rust
/// use burn::tensor::{DType, Device};
/// use burn_natten::plan::Sizes;
/// use burn_natten::{Capabilities, Context, Strategy, Tier, select};
///
/// # fn main() -> Result<(), burn_natten::AttentionError> {
/// let flex = Capabilities::of(&Device::flex()).expect("the feature `flex` is on");
/// let problem = Sizes::new(64).dense(1024, 1024, true, None)?;
/// let select = |strategy| select(&problem, strategy, DType::F32, flex, Context::new());
/// assert_eq!(select(Strategy::Auto)?, Tier::Flex);
/// assert_eq!(select(Strategy::Reference)?, Tier::Reference);
/// let error = select(Strategy::Hopper).expect_err("no GPU");
/// assert!(error.to_string().starts_with("strategy: Hopper cannot run here"));
/// # Ok(())
/// # }
/// ```
pub fn select(
    problem: &Problem,
    strategy: Strategy,
    dtype: DType,
    device: Capabilities,
    context: Context,
) -> Result<Tier, AttentionError> {
    let refused = |reason: Cow<'static, str>| {
        Err(AttentionError::Strategy { strategy, reason: reason.into_owned() })
    };
    match strategy {
        Strategy::Reference => Ok(Tier::Reference),
        Strategy::Auto => Ok(fastest(problem, dtype, device, context)),
        Strategy::Portable if device.is_flex => Ok(Tier::Flex),
        Strategy::Portable => {
            portable_obstacle(problem, dtype, device).map_or(Ok(Tier::Portable), refused)
        }
        Strategy::TensorCore => tensor_core_obstacle(problem, dtype, device, context)
            .map_or(Ok(Tier::TensorCore), refused),
        Strategy::Hopper => {
            hopper_obstacle(problem, dtype, device).map_or(Ok(Tier::Hopper), refused)
        }
        Strategy::Blackwell => refused("this version has no kernels for it".into()),
    }
}

/// The fastest tier that can run.
fn fastest(problem: &Problem, dtype: DType, device: Capabilities, context: Context) -> Tier {
    if device.is_flex {
        return Tier::Flex;
    }
    // What this kind of device lacks for any problem, or its matrix units for the type, is no reason to
    // complain.
    let hopper = hopper_obstacle(problem, dtype, device);
    let Some(reason) = hopper else { return Tier::Hopper };
    let mut complaint = (device.has_hopper && is_half(dtype)).then_some(reason);
    let Some(reason) = tensor_core_obstacle(problem, dtype, device, context) else {
        if let Some(reason) = complaint {
            log_once(format!("using the TensorCore kernels, because {reason}"));
        }
        return Tier::TensorCore;
    };
    let is_tf32 = dtype == DType::F32 && context.allow_tf32();
    if device.tensor_cores.is_some() && (is_half(dtype) || is_tf32) {
        complaint = complaint.or(Some(reason));
    }
    match portable_obstacle(problem, dtype, device) {
        None => {
            if let Some(reason) = complaint {
                log_once(format!("using the Portable kernels, because {reason}"));
            }
            Tier::Portable
        }
        Some(reason) => {
            if device.is_cube {
                log_once(format!("using tensor operations, because {reason}"));
            }
            Tier::Reference
        }
    }
}

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// Why the Portable tier cannot run.
fn portable_obstacle(
    problem: &Problem,
    dtype: DType,
    device: Capabilities,
) -> Option<Cow<'static, str>> {
    if !device.is_cube {
        Some("it needs a Flex or a CubeCL device".into())
    } else if dtype == DType::F64 {
        Some("its kernels have no f64".into())
    } else if problem.has_origin() {
        Some("queries stand elsewhere than keys of the same number".into())
    } else if problem.needs_wide_indices() && !device.has_wide_indices {
        Some("a tensor has more than 2^31 elements and the device no 64-bit indices".into())
    } else {
        None
    }
}

/// Why a pass of the TensorCore tier does not run unless it is allowed.
const NEVER_RUN: &str = "its kernels of cooperative matrices have never run on such a device \
                         (Context::with_allow_experimental allows them)";

/// Why the TensorCore tier, which runs forward passes on a device with these matrix units, does not run backward passes
/// there.
#[cfg_attr(not(feature = "cube"), allow(dead_code))]
pub(crate) fn tensor_core_backward_obstacle(
    tensor_cores: TensorCores,
    context: Context,
) -> Option<&'static str> {
    (!tensor_cores.has_run() && !context.allow_experimental().1).then_some(NEVER_RUN)
}

/// Why the TensorCore tier cannot run.
fn tensor_core_obstacle(
    problem: &Problem,
    dtype: DType,
    device: Capabilities,
    context: Context,
) -> Option<Cow<'static, str>> {
    let Some(tensor_cores) = device.tensor_cores else {
        let needs = "it needs matrix units that CubeCL gives access to and planes of 32 units";
        return Some(needs.into());
    };
    if dtype == DType::F32 && !context.allow_tf32() {
        let rounds = "its kernels round f32 to TF32 (Context::with_allow_tf32 allows them)";
        Some(rounds.into())
    } else if dtype == DType::F32 && !tensor_cores.has_tf32 {
        Some("the device's matrix units have no TF32 that CubeCL gives access to".into())
    } else if dtype != DType::F32 && !is_half(dtype) {
        Some("its kernels run in f16, bf16 and TF32".into())
    } else if !tensor_cores.has_run() && !context.allow_experimental().0 {
        Some(NEVER_RUN.into())
    } else if dtype == DType::BF16 && !tensor_cores.has_bf16 {
        Some("the device's matrix units sum bf16 in no f32".into())
    } else if problem.needs_wide_indices() && !device.has_wide_indices {
        Some("a tensor has more than 2^31 elements and the device no 64-bit indices".into())
    } else {
        tensor_core::unsupported(problem).map(Cow::Owned)
    }
}

/// Why the Hopper tier cannot run.
fn hopper_obstacle(
    problem: &Problem,
    dtype: DType,
    device: Capabilities,
) -> Option<Cow<'static, str>> {
    if !device.has_hopper {
        let needs = "it needs a GPU of compute capability 9.0, the feature `cuda` and NVRTC";
        Some(needs.into())
    } else if !is_half(dtype) {
        Some("its kernels run in f16 and bf16".into())
    } else {
        sm90::unsupported(problem).map(Cow::Owned)
    }
}

/// The type that sums are held in, and that of the logsumexp.
pub(crate) fn accumulator(dtype: DType) -> DType {
    match dtype {
        DType::F64 => DType::F64,
        _ => DType::F32,
    }
}

#[cfg(test)]
mod tests {
    use burn_natten_kernels::Axis;

    use super::*;

    const CUBE: Capabilities = Capabilities {
        is_flex: false,
        is_cube: true,
        has_wide_indices: false,
        tensor_cores: None,
        has_hopper: false,
    };
    const FLEX: Capabilities =
        Capabilities { is_flex: true, is_cube: false, has_wide_indices: true, ..CUBE };
    const HOPPER: Capabilities = Capabilities { has_hopper: true, has_wide_indices: true, ..CUBE };

    fn cuda(sm: u32) -> Capabilities {
        let tensor_cores = TensorCores::cuda(sm);
        Capabilities { has_wide_indices: true, has_hopper: sm == 90, tensor_cores, ..CUBE }
    }

    fn problem(tokens: usize) -> Problem {
        Problem {
            batch: 1,
            heads: 1,
            heads_kv: 1,
            head_dim: 64,
            head_dim_v: 64,
            additional: 0,
            scale: 1.0,
            axes: [Axis::UNIT, Axis::UNIT, Axis::dense(tokens, tokens, false)],
        }
    }

    fn tier(strategy: Strategy, dtype: DType, device: Capabilities) -> Tier {
        select(&problem(16), strategy, dtype, device, Context::new()).expect("a tier")
    }

    #[test]
    fn auto_takes_the_kernels_of_the_device() {
        assert_eq!(tier(Strategy::Auto, DType::F64, FLEX), Tier::Flex);
        assert_eq!(tier(Strategy::Auto, DType::BF16, CUBE), Tier::Portable);
        assert_eq!(tier(Strategy::Auto, DType::F64, CUBE), Tier::Reference);
        assert_eq!(tier(Strategy::Reference, DType::F32, CUBE), Tier::Reference);
        assert_eq!(tier(Strategy::Auto, DType::BF16, HOPPER), Tier::Hopper);
        assert_eq!(tier(Strategy::Auto, DType::F32, HOPPER), Tier::Portable);
        assert_eq!(tier(Strategy::Portable, DType::F16, HOPPER), Tier::Portable);
    }

    #[test]
    fn what_hopper_does_not_cover_is_portable_unless_it_was_named() {
        let odd = Problem { head_dim: 20, ..problem(16) };
        let of = |strategy| select(&odd, strategy, DType::F16, HOPPER, Context::new());
        assert_eq!(of(Strategy::Auto).expect("a tier"), Tier::Portable);
        assert_eq!(
            of(Strategy::Hopper).expect_err("no multiple of 8").to_string(),
            "strategy: Hopper cannot run here, head_dim is 20, not a multiple of 8 up to 256"
        );
    }

    #[test]
    fn tensor_cores_come_between_hopper_and_portable() {
        assert_eq!(tier(Strategy::Auto, DType::BF16, cuda(80)), Tier::TensorCore);
        assert_eq!(tier(Strategy::Auto, DType::BF16, cuda(90)), Tier::Hopper);
        assert_eq!(tier(Strategy::TensorCore, DType::F16, cuda(90)), Tier::TensorCore);
        assert_eq!(tier(Strategy::Auto, DType::BF16, cuda(75)), Tier::Portable);
        assert_eq!(tier(Strategy::Auto, DType::F32, cuda(80)), Tier::Portable);
        let odd = Problem { head_dim: 20, ..problem(16) };
        let of = |problem| {
            select(&problem, Strategy::Auto, DType::F16, cuda(90), Context::new()).expect("a tier")
        };
        assert_eq!(of(odd), Tier::TensorCore);
        assert_eq!(of(Problem { head_dim: 300, ..odd }), Tier::Portable);
    }

    #[test]
    fn f32_is_multiplied_in_tf32_only_where_that_is_allowed() {
        let allowed = Context::new().with_allow_tf32(true);
        let of = |strategy, dtype, device, context| {
            select(&problem(16), strategy, dtype, device, context)
        };
        for sm in [80, 90] {
            let auto = |dtype, context| of(Strategy::Auto, dtype, cuda(sm), context);
            assert_eq!(auto(DType::F32, Context::new()), Ok(Tier::Portable));
            assert_eq!(auto(DType::F32, allowed), Ok(Tier::TensorCore));
            assert_eq!(auto(DType::F64, allowed), Ok(Tier::Reference));
            assert_eq!(auto(DType::F16, allowed), auto(DType::F16, Context::new()));
        }
        assert_eq!(of(Strategy::Auto, DType::F32, CUBE, allowed), Ok(Tier::Portable));
        assert_eq!(of(Strategy::Auto, DType::F32, cuda(75), allowed), Ok(Tier::Portable));
        let named = |dtype, device, context| of(Strategy::TensorCore, dtype, device, context);
        assert_eq!(named(DType::F32, cuda(90), allowed), Ok(Tier::TensorCore));
        let text = |result: Result<Tier, AttentionError>| result.expect_err("refused").to_string();
        assert_eq!(
            text(named(DType::F32, cuda(80), Context::new())),
            "strategy: TensorCore cannot run here, its kernels round f32 to TF32 \
             (Context::with_allow_tf32 allows them)"
        );
        assert_eq!(
            text(named(DType::F64, cuda(80), allowed)),
            "strategy: TensorCore cannot run here, its kernels run in f16, bf16 and TF32"
        );
        // Cooperative matrices have none.
        let tensor_cores = TensorCores::cuda(80).map(|cores| cores.with_cmma([16, 16, 16]));
        let cooperative = Capabilities { tensor_cores, ..CUBE };
        let experimental = allowed.with_allow_experimental(true, true);
        assert!(text(named(DType::F32, cooperative, experimental)).contains("have no TF32"));
    }

    #[test]
    fn what_has_never_run_is_asked_for() {
        let cooperative = TensorCores::cuda(80).map(|cores| cores.with_cmma([16, 16, 16]));
        let device = Capabilities { tensor_cores: cooperative, ..CUBE };
        let of = |strategy, context| select(&problem(16), strategy, DType::F16, device, context);
        let allowed = Context::new().with_allow_experimental(true, false);
        assert_eq!(of(Strategy::Auto, Context::new()), Ok(Tier::Portable));
        assert_eq!(of(Strategy::Auto, allowed), Ok(Tier::TensorCore));
        assert_eq!(of(Strategy::TensorCore, allowed), Ok(Tier::TensorCore));
        let error = of(Strategy::TensorCore, Context::new()).expect_err("not allowed");
        assert!(error.to_string().contains("Context::with_allow_experimental"), "{error}");
    }

    #[test]
    fn a_backward_pass_that_has_never_run_is_asked_for_by_itself() {
        let mma = TensorCores::cuda(80).expect("Ampere");
        let of = |cores, backward| {
            let context = Context::new().with_allow_experimental(true, backward);
            tensor_core_backward_obstacle(cores, context).is_some()
        };
        assert_eq!([of(mma, false), of(mma, true)], [false, false]);
        let cooperative = mma.with_cmma([8, 8, 8]);
        assert_eq!([of(cooperative, false), of(cooperative, true)], [true, false]);
    }

    #[test]
    fn a_named_strategy_that_cannot_run_says_why() {
        let text = |tokens: usize, strategy, dtype, device| {
            select(&problem(tokens), strategy, dtype, device, Context::new())
                .expect_err("cannot run")
                .to_string()
        };
        assert_eq!(
            text(16, Strategy::Hopper, DType::BF16, FLEX),
            "strategy: Hopper cannot run here, it needs a GPU of compute capability 9.0, the \
             feature `cuda` and NVRTC"
        );
        assert_eq!(
            text(16, Strategy::Hopper, DType::F32, HOPPER),
            "strategy: Hopper cannot run here, its kernels run in f16 and bf16"
        );
        assert_eq!(
            text(16, Strategy::TensorCore, DType::BF16, CUBE),
            "strategy: TensorCore cannot run here, it needs matrix units that CubeCL gives access \
             to and planes of 32 units"
        );
        assert_eq!(
            text(16, Strategy::Blackwell, DType::BF16, HOPPER),
            "strategy: Blackwell cannot run here, this version has no kernels for it"
        );
        assert_eq!(
            text(16, Strategy::Portable, DType::F64, CUBE),
            "strategy: Portable cannot run here, its kernels have no f64"
        );
        assert_eq!(
            text(1 << 26, Strategy::Portable, DType::F32, CUBE),
            "strategy: Portable cannot run here, a tensor has more than 2^31 elements and the \
             device no 64-bit indices"
        );
    }
}
