//! What the kernels of the forward pass read and write.

// `CubeLaunch` adds items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

#[cfg(feature = "cuda")]
use super::feed::optional_buffer;
use super::feed::{Input, InputPair};

/// What the kernels read: queries, keys with their values, and a relative position bias `[heads, z, y, x]`.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct Inputs<'a, F: Float, N: Size> {
    pub query: Input<'a, F, N>,
    pub columns: InputPair<'a, F, N>,
    pub additional: InputPair<'a, F, N>,
    pub bias: ComptimeOption<&'a [F]>,
    /// Of a packed batch, see [`packed`](super::packed).
    pub sequences: ComptimeOption<&'a [u32]>,
}

/// What they write.
#[derive(CubeType, CubeLaunch)]
pub(crate) struct Outputs<F: Float, NO: Size> {
    pub out: Box<[Vector<F, NO>]>,
    pub lse: Box<[f32]>,
}

#[cfg(feature = "cuda")]
impl<F: Float, N: Size> Inputs<'static, F, N> {
    /// What a kernel is compiled for.
    pub fn compilation(has_bias: bool, is_packed: bool) -> InputsCompilationArg<'static, F, N> {
        let (query, pair) = (Input::compilation(), InputPair::compilation);
        let bias = optional_buffer(has_bias);
        let sequences = optional_buffer(is_packed);
        InputsCompilationArg { query, columns: pair(), additional: pair(), bias, sequences }
    }
}

#[cfg(feature = "cuda")]
impl<F: Float, NO: Size> Outputs<F, NO> {
    /// What a kernel is compiled for.
    pub fn compilation() -> OutputsCompilationArg<F, NO> {
        let buffer = || BufferCompilationArg { inplace: None };
        OutputsCompilationArg { out: buffer(), lse: buffer() }
    }
}
