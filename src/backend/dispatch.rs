//! From a problem, a device and what the user asked for to a plan.

use std::sync::Once;

use burn::backend::DispatchDevice;
use burn::tensor::{DType, Device};
use burn_natten_kernels::Problem;

use crate::{AttentionError, Context, Strategy};

/// An implementation of the operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Tier {
    /// Burn's tensor operations.
    Reference,
    /// SIMD kernels on the buffers of Burn's Flex backend.
    Flex,
    /// CubeCL kernels for any runtime.
    Portable,
}

/// What the selection knows of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Whether Burn's Flex backend runs there.
    pub is_flex: bool,
    /// Whether a CubeCL runtime runs there.
    pub is_cube: bool,
}

impl Capabilities {
    /// Reads the capabilities of a device; `None` if this build has no operators for its backend.
    pub fn of(device: &Device) -> Option<Self> {
        match device.clone().without_autodiff().as_dispatch() {
            #[cfg(feature = "flex")]
            DispatchDevice::Flex(_) => Some(Self { is_flex: true, is_cube: false }),
            #[cfg(feature = "cube")]
            DispatchDevice::Cube(_) => Some(Self { is_flex: false, is_cube: true }),
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

/// Picks the tier that computes tensors of `dtype` on a device with these capabilities.
///
/// [`Strategy::Auto`] degrades where a faster tier cannot run, logging once; any other strategy
/// runs as asked.
///
/// # Errors
///
/// [`AttentionError::Strategy`] if a strategy that was asked for by name cannot run.
pub fn select(
    strategy: Strategy,
    dtype: DType,
    device: Capabilities,
) -> Result<Tier, AttentionError> {
    let unable =
        |reason: &str| Err(AttentionError::Strategy { strategy, reason: reason.to_string() });
    match strategy {
        Strategy::Reference => Ok(Tier::Reference),
        Strategy::Auto | Strategy::Portable if device.is_flex => Ok(Tier::Flex),
        Strategy::Auto | Strategy::Portable if device.is_cube && dtype != DType::F64 => {
            Ok(Tier::Portable)
        }
        Strategy::Auto => {
            static LOGGED: Once = Once::new();
            LOGGED.call_once(|| {
                log::warn!("burn-natten: no kernel for {dtype:?} here, using tensor operations");
            });
            Ok(Tier::Reference)
        }
        Strategy::Portable if device.is_cube => unable("its kernels have no f64"),
        Strategy::Portable => unable("it needs a Flex or a CubeCL device"),
        Strategy::TensorCore | Strategy::Hopper | Strategy::Blackwell => {
            unable("this version has no kernels for it")
        }
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
    use super::*;

    const FLEX: Capabilities = Capabilities { is_flex: true, is_cube: false };
    const CUBE: Capabilities = Capabilities { is_flex: false, is_cube: true };

    #[test]
    fn auto_takes_the_kernels_of_the_device() {
        assert_eq!(select(Strategy::Auto, DType::F64, FLEX), Ok(Tier::Flex));
        assert_eq!(select(Strategy::Auto, DType::BF16, CUBE), Ok(Tier::Portable));
        assert_eq!(select(Strategy::Auto, DType::F64, CUBE), Ok(Tier::Reference));
        assert_eq!(select(Strategy::Reference, DType::F32, CUBE), Ok(Tier::Reference));
    }

    #[test]
    fn a_named_strategy_that_cannot_run_says_why() {
        let error = select(Strategy::Hopper, DType::BF16, FLEX).expect_err("no such kernel");
        assert_eq!(
            error.to_string(),
            "strategy: Hopper cannot run here, this version has no kernels for it"
        );
        let error = select(Strategy::Portable, DType::F64, CUBE).expect_err("no f64");
        assert!(error.to_string().contains("no f64"), "{error}");
    }
}
