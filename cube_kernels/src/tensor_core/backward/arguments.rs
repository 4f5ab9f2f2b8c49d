//! What the kernels read and write.

// `CubeLaunch` adds items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;

use crate::cube::InputPair;
#[cfg(feature = "cuda")]
use crate::cube::optional_buffer;

/// What the kernels read. Vectors of the rows stay in shared memory, those of the columns pass through it.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Inputs<'a, F: Float, N: Size> {
    pub rows: InputPair<'a, F, N>,
    pub columns: InputPair<'a, F, N>,
    pub additional: InputPair<'a, F, N>,
    /// Of each query the scaled logsumexp and delta.
    pub statistics: &'a [f32],
    pub bias: ComptimeOption<&'a [F]>,
    /// Of a packed batch, see [`cube`](crate::cube).
    pub sequences: ComptimeOption<&'a [u32]>,
}

/// Gradients of the rows' first and second vectors, and of the bias.
#[derive(CubeType, CubeLaunch)]
pub(super) struct Outputs<F: Float, NO: Size> {
    pub first: Box<[Vector<F, NO>]>,
    pub second: Box<[Vector<F, NO>]>,
    /// Sums of the gradient of the bias, `[batch, heads, tiles, entries]`.
    pub sums: ComptimeOption<Box<[f32]>>,
}

#[cfg(feature = "cuda")]
impl<F: Float, N: Size> Inputs<'static, F, N> {
    /// What a kernel is compiled for.
    pub fn compilation(has_bias: bool, is_packed: bool) -> InputsCompilationArg<'static, F, N> {
        let pair = InputPair::compilation;
        InputsCompilationArg {
            rows: pair(),
            columns: pair(),
            additional: pair(),
            statistics: BufferCompilationArg { inplace: None },
            bias: optional_buffer(has_bias),
            sequences: optional_buffer(is_packed),
        }
    }
}

#[cfg(feature = "cuda")]
impl<F: Float, NO: Size> Outputs<F, NO> {
    /// What a kernel is compiled for.
    pub fn compilation(has_sums: bool) -> OutputsCompilationArg<F, NO> {
        let buffer = || BufferCompilationArg { inplace: None };
        let sums = optional_buffer(has_sums);
        OutputsCompilationArg { first: buffer(), second: buffer(), sums }
    }
}
