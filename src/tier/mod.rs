//! Which implementation computes a problem: a table of engines, and a choice among them that no device is needed for.

mod capabilities;
mod ladder;
mod select;

use std::fmt;

use crate::Strategy;

pub use capabilities::{Capabilities, TensorCores};
pub(crate) use ladder::Ladder;
pub use select::select;
pub(crate) use select::{Request, Selection, TOO_LARGE, hopper_for, selection};

/// An implementation of the operators.
///
/// [`select`] says which one runs; the guide compares their [determinism](crate::guide::determinism),
/// [memory](crate::guide::memory) and [precision](crate::guide::precision).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
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
    /// Native CUDA kernels for Blackwell GPUs of data centers.
    Blackwell,
}

impl Tier {
    /// All of them, the fastest first: where one cannot run, the next one that can takes its place.
    pub const ALL: [Self; 6] = [
        Self::Blackwell,
        Self::Hopper,
        Self::TensorCore,
        Self::Flex,
        Self::Portable,
        Self::Reference,
    ];

    /// The strategy that asks for it by name.
    ///
    /// ```rust
    /// use burn_natten::{Strategy, Tier};
    ///
    /// assert_eq!(Tier::Hopper.strategy(), Strategy::Hopper);
    /// // The direct kernels of the device's own backend.
    /// assert_eq!(Tier::Flex.strategy(), Strategy::Portable);
    /// ```
    pub fn strategy(self) -> Strategy {
        match self {
            Self::Reference => Strategy::Reference,
            Self::Flex | Self::Portable => Strategy::Portable,
            Self::TensorCore => Strategy::TensorCore,
            Self::Hopper => Strategy::Hopper,
            Self::Blackwell => Strategy::Blackwell,
        }
    }

    /// What it computes with, for messages.
    pub(crate) fn kernels(self) -> &'static str {
        match self {
            Self::Reference => "tensor operations",
            Self::Flex => "the Flex kernels",
            Self::Portable => "the Portable kernels",
            Self::TensorCore => "the TensorCore kernels",
            Self::Hopper => "the Hopper kernels",
            Self::Blackwell => "the Blackwell kernels",
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}
