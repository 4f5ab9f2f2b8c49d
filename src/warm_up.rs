use burn::tensor::{DType, Device};
use burn_natten_kernels::Problem;

use crate::{AttentionError, Capabilities, Strategy, Tier, select};

/// Compiles what an operator will need for `problem` on a device, so that its first call does not
/// wait. Returns the tier that will run.
///
/// Native kernels are compiled by NVRTC when they are first used, which takes a second or two for
/// each combination of element type, head dimensions and kind of window, once a machine: programs
/// are kept on disk (`BURN_NATTEN_CACHE` names another folder). Other tiers have nothing to prepare
/// here.
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
/// if its kernel does not compile.
pub fn warm_up(
    problem: &Problem,
    dtype: DType,
    strategy: Strategy,
    device: &Device,
) -> Result<Tier, AttentionError> {
    let Some(capabilities) = Capabilities::of(device) else {
        let reason = format!("this build has no operators for {device:?}");
        return Err(AttentionError::Strategy { strategy, reason });
    };
    let tier = select(problem, strategy, dtype, capabilities)?;
    #[cfg(feature = "cuda")]
    if tier == Tier::Hopper {
        crate::backend::hopper::warm_up(problem, dtype, device)
            .map_err(|error| AttentionError::Strategy { strategy, reason: error.to_string() })?;
    }
    Ok(tier)
}
