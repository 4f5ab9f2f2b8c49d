//! GELU and its gradient: a pass over memory each.

// `#[cube]` adds items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;
use cubecl::server::Handle;

use super::matrix::Matrix;
use crate::KernelError;
use crate::cube::{buffer, grid_of_units, narrow_all};

/// `1 / sqrt(2)`.
const INVERSE_ROOT: f32 = core::f32::consts::FRAC_1_SQRT_2;
/// `1 / sqrt(2 pi)`, the greatest density of the normal distribution.
const DENSITY: f32 = 0.398_942_3;

/// The share of the normal distribution below each element.
#[cube]
fn below<N: Size>(x: Vector<f32, N>) -> Vector<f32, N> {
    let scaled = x * Vector::new(INVERSE_ROOT);
    (scaled.erf() + Vector::new(1.0f32)) * Vector::new(0.5f32)
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn gelu_kernel<F: Float, N: Size>(
    input: &[Vector<F, N>],
    output: &mut [Vector<F, N>],
    count: usize,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < count {
        let x = Vector::<f32, N>::cast_from(input[at]);
        output[at] = narrow_all(x * below::<N>(x));
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn gradient_kernel<F: Float, N: Size>(
    input: &[Vector<F, N>],
    gradient: &[Vector<F, N>],
    output: &mut [Vector<F, N>],
    count: usize,
    #[define(F)] _dtype: ElemType,
) {
    let at = ABSOLUTE_POS;
    if at < count {
        let x = Vector::<f32, N>::cast_from(input[at]);
        let density = (x * x * Vector::new(-0.5f32)).exp() * Vector::new(DENSITY);
        let slope = below::<N>(x) + x * density;
        output[at] = narrow_all(Vector::<f32, N>::cast_from(gradient[at]) * slope);
    }
}

/// `x * P(x)` of each element `x`, where `P` is the share of the normal distribution below it. Computed in f32.
///
/// # Errors
///
/// If the device lacks the type or 64-bit indices that are needed, or a buffer is too small; then nothing was launched.
pub fn gelu(matrix: &Matrix<'_>, input: &Handle, output: &Handle) -> Result<(), KernelError> {
    let by = matrix.launch()?;
    matrix.check("input", input)?;
    matrix.check("output", output)?;
    let count = matrix.rows * matrix.channels / by.vector;
    let (cubes, units) = grid_of_units(matrix.client, count.max(1));
    // SAFETY: every index is below the sizes that the buffers were checked against.
    unsafe {
        gelu_kernel::launch_unchecked(
            matrix.client,
            cubes,
            units,
            by.address_type,
            by.vector,
            buffer(input),
            buffer(output),
            count,
            matrix.dtype,
        );
    }
    Ok(())
}

/// The gradient of [`gelu`], from its input and the gradient of its output.
///
/// # Errors
///
/// As [`gelu`].
pub fn gelu_backward(
    matrix: &Matrix<'_>,
    input: &Handle,
    gradient: &Handle,
    output: &Handle,
) -> Result<(), KernelError> {
    let by = matrix.launch()?;
    matrix.check("input", input)?;
    matrix.check("gradient", gradient)?;
    matrix.check("gradient of the input", output)?;
    let count = matrix.rows * matrix.channels / by.vector;
    let (cubes, units) = grid_of_units(matrix.client, count.max(1));
    // SAFETY: every index is below the sizes that the buffers were checked against.
    unsafe {
        gradient_kernel::launch_unchecked(
            matrix.client,
            cubes,
            units,
            by.address_type,
            by.vector,
            buffer(input),
            buffer(gradient),
            buffer(output),
            count,
            matrix.dtype,
        );
    }
    Ok(())
}
