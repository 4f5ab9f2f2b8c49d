use burn::tensor::{DType, Device};
use burn_natten_kernels::Problem;

use crate::backend::Plan;
#[cfg(feature = "cuda")]
use crate::backend::{warm_up_blackwell, warm_up_hopper};
use crate::profile::Workload;
use crate::{AttentionError, Context, Strategy, Tier};

/// Compiles what an operator will need for `problem` on a device, so that its first call does not
/// wait. Returns the tier that will run. [`warm_up_training`] compiles the backward pass as well.
///
/// Native kernels are compiled by NVRTC when they are first used, which takes a second or two for
/// each combination of element type, head dimensions and kind of window, once a machine: programs
/// are kept on disk (`BURN_NATTEN_CACHE` names another folder). The kernels of the TensorCore and the Portable tier are compiled by
/// CubeCL in their first launch, and the former's may be [measured](Context::with_autotune) in it: here they
/// run once, on random tensors of the problem's shape, which takes the memory of a call. Flex and the Reference tier have nothing to
/// prepare.
///
/// ```rust
/// use burn::tensor::{DType, Device};
/// use burn_natten::plan::Sizes;
/// use burn_natten::{Strategy, Tier, warm_up};
///
/// # fn main() -> Result<(), burn_natten::AttentionError> {
/// let problem = Sizes::new(64).dense(1024, 1024, true, None)?;
/// let tier = warm_up(&problem, DType::F32, Strategy::Auto, &Device::flex())?;
/// assert_eq!(tier, Tier::Flex);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// [`AttentionError::Strategy`] if a strategy that is asked for by name cannot run on the device, or
/// if its kernel does not compile; [`AttentionError::Execution`] if the device fails.
pub fn warm_up(
    problem: &Problem,
    dtype: DType,
    strategy: Strategy,
    device: &Device,
) -> Result<Tier, AttentionError> {
    warm(problem, dtype, strategy, device, false)
}

/// [`warm_up`] for both passes: compiles the kernels of the backward pass, too, so that the first step
/// of a training does not wait.
///
/// ```rust
/// use burn::tensor::{DType, Device};
/// use burn_natten::plan::{Sizes, Windows};
/// use burn_natten::{Strategy, Tier, warm_up_training};
///
/// # fn main() -> Result<(), burn_natten::AttentionError> {
/// let windows = Windows {
///     kernel_size: &[7, 7],
///     stride: &[1, 1],
///     dilation: &[1, 1],
///     is_causal: &[false, false],
/// };
/// let problem = Sizes::new(64).neighborhood(&[56, 56], windows, None)?;
/// let tier = warm_up_training(&problem, DType::F32, Strategy::Auto, &Device::flex())?;
/// assert_eq!(tier, Tier::Flex);
/// # Ok(())
/// # }
/// ```
///
/// # Errors
///
/// As [`warm_up`].
pub fn warm_up_training(
    problem: &Problem,
    dtype: DType,
    strategy: Strategy,
    device: &Device,
) -> Result<Tier, AttentionError> {
    warm(problem, dtype, strategy, device, true)
}

fn warm(
    problem: &Problem,
    dtype: DType,
    strategy: Strategy,
    device: &Device,
    is_training: bool,
) -> Result<Tier, AttentionError> {
    let plan = Plan::new(*problem, dtype, device, strategy, Context::current())?;
    for tier in plan.forward.iter() {
        match tier {
            Tier::Hopper | Tier::Blackwell => match compile(&plan, tier, device, is_training) {
                Ok(()) => return Ok(tier),
                Err(error) if strategy != Strategy::Auto => return Err(error),
                // As the operator does, which says so.
                Err(_) => continue,
            },
            Tier::TensorCore | Tier::Portable => {
                run_once(problem, dtype, strategy, device, is_training)?;
            }
            Tier::Flex | Tier::Reference => {}
        }
        return Ok(tier);
    }
    Ok(Tier::Reference)
}

/// Compiles native kernels that were asked for by name, so that what fails is an error of the operator, and no panic of the
/// backend behind it.
pub(crate) fn prepare(plan: &Plan, device: &Device) -> Result<(), AttentionError> {
    match plan.strategy {
        Strategy::Hopper | Strategy::Blackwell if !plan.is_empty() => {
            compile(plan, plan.forward.first(), device, device.is_autodiff())
        }
        _ => Ok(()),
    }
}

#[cfg(feature = "cuda")]
fn compile(
    plan: &Plan,
    tier: Tier,
    device: &Device,
    is_training: bool,
) -> Result<(), AttentionError> {
    let warm_up = if tier == Tier::Blackwell { warm_up_blackwell } else { warm_up_hopper };
    warm_up(plan, device, is_training).map_err(|error| AttentionError::Strategy {
        strategy: plan.strategy,
        reason: error.to_string(),
    })
}

#[cfg(not(feature = "cuda"))]
fn compile(
    plan: &Plan,
    _tier: Tier,
    _device: &Device,
    _is_training: bool,
) -> Result<(), AttentionError> {
    let reason = "this build has no native kernels".to_string();
    Err(AttentionError::Strategy { strategy: plan.strategy, reason })
}

/// Runs the operator on random tensors, and waits for it.
fn run_once(
    problem: &Problem,
    dtype: DType,
    strategy: Strategy,
    device: &Device,
    is_training: bool,
) -> Result<(), AttentionError> {
    let context = Context::current();
    let workload = Workload { problem: *problem, dtype, strategy, context };
    let inputs = workload.inputs(device, 0);
    let outputs = workload.forward(&inputs)?;
    if is_training {
        workload.backward(&inputs, &outputs, &workload.upstream(device, 1))?;
    }
    device.sync().map_err(|error| AttentionError::Execution { reason: error.to_string() })
}
