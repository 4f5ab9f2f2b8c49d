use cubecl::ir::ElemType;

#[cfg(feature = "cuda")]
use crate::native::compile::CompileError;

/// Why nothing was launched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KernelError {
    /// The device has not what the kernels need.
    #[error("the device has no {0}")]
    Device(&'static str),
    /// The kernels or the device do not know the element type.
    #[error("the kernels run in {known}, not in {got:?}")]
    ElementType {
        /// What they run in.
        known: &'static str,
        /// What was given.
        got: ElemType,
    },
    /// The kernels do not cover the problem.
    #[error("the kernels do not cover it: {0}")]
    Problem(String),
    /// A buffer has too many elements for 32-bit indices, and the device has no others.
    #[error("a buffer of {0} elements needs 64-bit indices, which this device does not have")]
    Addressing(usize),
    /// A buffer is smaller than the problem says.
    #[error("the buffer of {name} has {actual} bytes, but the problem needs {expected}")]
    Buffer {
        /// Which buffer.
        name: &'static str,
        /// Bytes it has to have.
        expected: u64,
        /// Bytes it has.
        actual: u64,
    },
    /// A tensor is laid out as the kernels cannot read it; a contiguous copy is.
    #[error("{name} is laid out as the kernels cannot read it: {reason}")]
    Layout {
        /// Which tensor.
        name: &'static str,
        /// What is in the way.
        reason: &'static str,
    },
    /// The problem has additional tokens without buffers for them, or the other way round.
    #[error("the problem has {0} additional tokens, which does not fit the buffers given for them")]
    Additional(usize),
    /// The problem has a relative position bias without a buffer for it, or the other way round.
    #[error("the problem has {}, which does not fit the buffers given", if *.0 { "a bias" } else { "no bias" })]
    Bias(bool),
    /// A kernel that was asked for is for another pass or other problems, or takes more than the device has.
    #[error("{0}")]
    Blueprint(String),
    /// Kernels that have never run on such a device do not do there what others do.
    #[error("on this device its kernels fail their check: {0}")]
    Check(String),
    /// There is no program.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Compile(#[from] CompileError),
}
