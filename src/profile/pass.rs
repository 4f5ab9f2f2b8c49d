use std::fmt;
use std::str::FromStr;

use burn::tensor::Device;

use super::{Repeats, Timing, Workload, time_backward, time_forward};
use crate::AttentionError;
use crate::names::{UnknownName, find};

/// A pass of an operator.
///
/// ```rust
/// use burn_natten::profile::Pass;
///
/// assert_eq!("backward".parse(), Ok(Pass::Backward));
/// assert_eq!(Pass::Forward.to_string(), "forward");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pass {
    /// From the inputs to output and logsumexp.
    Forward,
    /// From the gradients of those to the gradients of the inputs.
    Backward,
}

impl Pass {
    /// Its name, in lower case.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
        }
    }

    /// [`time_forward`] or [`time_backward`].
    ///
    /// # Errors
    ///
    /// As [`time_forward`].
    pub fn time(
        self,
        workload: &Workload,
        device: &Device,
        repeats: &Repeats,
    ) -> Result<Timing, AttentionError> {
        match self {
            Self::Forward => time_forward(workload, device, repeats),
            Self::Backward => time_backward(workload, device, repeats),
        }
    }
}

impl fmt::Display for Pass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Pass {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        find("pass", name, &[Self::Forward, Self::Backward], Self::name)
    }
}
