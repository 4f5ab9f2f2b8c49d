//! Layer normalization of rows, and its gradients.
//!
//! The backward pass reads a row and its gradient once: mean and deviation are computed again, so that nothing is kept from
//! the forward pass, and what the row adds to the gradients of the parameters stays in registers until the last row of its
//! unit.

// `#[cube]` and `CubeLaunch` add items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;
use cubecl::server::Handle;

use super::RowTile;
use super::columns::{RowRange, add_slots};
use super::matrix::{Matrix, Shares};
use super::rows::{Place, is_line, load, place};
use crate::KernelError;
use crate::cube::{buffer, grid, narrow_all};

#[derive(CubeType, CubeLaunch)]
struct Parameters<'a, F: Float, N: Size> {
    gamma: &'a [Vector<F, N>],
    beta: &'a [Vector<F, N>],
}

/// The sum of what the lanes of a row have, in the order of lanes.
#[cube]
fn total(shared: &mut Shared<[f32]>, part: f32, slot: usize, #[comptime] tile: RowTile) -> f32 {
    let mut sum = part;
    if comptime!(tile.lanes > 1) {
        shared[UNIT_POS as usize] = part;
        sync_cube();
        sum = 0.0f32;
        #[unroll]
        for lane in 0..comptime!(tile.lanes) {
            sum += shared[slot * comptime!(tile.lanes) + lane];
        }
        sync_cube();
    }
    sum
}

/// Takes the mean from a row, and gives the inverse of its standard deviation.
#[cube]
fn center<N: Size>(
    row: &mut Array<Vector<f32, N>>,
    shared: &mut Shared<[f32]>,
    at: &Place,
    channels: f32,
    epsilon: f32,
    #[comptime] tile: RowTile,
) -> f32 {
    let mut sum = Vector::<f32, N>::new(0.0f32);
    #[unroll]
    for i in 0..comptime!(tile.held()) {
        sum += row[i];
    }
    let mean = total(shared, sum.vector_sum(), at.slot, tile) / channels;
    let mut squares = Vector::<f32, N>::new(0.0f32);
    #[unroll]
    for i in 0..comptime!(tile.held()) {
        if is_line(at.lane + i * comptime!(tile.lanes), tile) {
            row[i] -= Vector::new(mean);
            squares += row[i] * row[i];
        }
    }
    let variance = total(shared, squares.vector_sum(), at.slot, tile) / channels;
    (variance + epsilon).inverse_sqrt()
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn norm_kernel<F: Float, N: Size>(
    input: &[Vector<F, N>],
    parameters: &Parameters<'_, F, N>,
    output: &mut [Vector<F, N>],
    rows: usize,
    channels: f32,
    epsilon: f32,
    #[comptime] tile: RowTile,
    #[comptime] has_beta: bool,
    #[define(F)] _dtype: ElemType,
) {
    let at = place(tile);
    let row = CUBE_POS * comptime!(tile.slots) + at.slot;
    let (is_there, first) = (row < rows, row * comptime!(tile.lines));
    let mut shared = Shared::<[f32]>::new_slice(comptime!(tile.units()));
    let mut values = load::<F, N>(input, first, is_there, at.lane, tile);
    let deviation = center::<N>(&mut values, &mut shared, &at, channels, epsilon, tile);
    #[unroll]
    for i in 0..comptime!(tile.held()) {
        let line = at.lane + i * comptime!(tile.lanes);
        if is_there && is_line(line, tile) {
            let gamma = Vector::<f32, N>::cast_from(parameters.gamma[line]);
            let mut value = values[i] * Vector::new(deviation) * gamma;
            if comptime!(has_beta) {
                value += Vector::<f32, N>::cast_from(parameters.beta[line]);
            }
            output[first + line] = narrow_all(value);
        }
    }
}

/// What the backward pass reads.
#[derive(CubeType, CubeLaunch)]
struct Saved<'a, F: Float, N: Size> {
    input: &'a [Vector<F, N>],
    gamma: &'a [Vector<F, N>],
    gradient: &'a [Vector<F, N>],
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn backward_kernel<F: Float, N: Size>(
    saved: &Saved<'_, F, N>,
    to: &mut [Vector<F, N>],
    partial: &mut [Vector<f32, N>],
    rows: RowRange,
    channels: f32,
    epsilon: f32,
    #[comptime] tile: RowTile,
    #[define(F)] _dtype: ElemType,
) {
    let at = place(tile);
    let (held, lanes) = comptime!((tile.held(), tile.lanes));
    let mut shared = Shared::<[f32]>::new_slice(comptime!(tile.units()));
    let mut of_gamma = Array::<Vector<f32, N>>::new(held);
    let mut of_beta = Array::<Vector<f32, N>>::new(held);
    #[unroll]
    for i in 0..held {
        of_gamma[i] = Vector::new(0.0f32);
        of_beta[i] = Vector::new(0.0f32);
    }
    for turn in 0..rows.turns {
        let row = (CUBE_POS * rows.turns + turn) * comptime!(tile.slots) + at.slot;
        let (is_there, first) = (row < rows.count, row * comptime!(tile.lines));
        let gradients = load::<F, N>(saved.gradient, first, is_there, at.lane, tile);
        let mut values = load::<F, N>(saved.input, first, is_there, at.lane, tile);
        let deviation = center::<N>(&mut values, &mut shared, &at, channels, epsilon, tile);
        // Of what the gradient has along the row and along the normalised one, nothing passes.
        let mut sum = Vector::<f32, N>::new(0.0f32);
        let mut product = Vector::<f32, N>::new(0.0f32);
        #[unroll]
        for i in 0..held {
            let line = at.lane + i * lanes;
            values[i] *= Vector::new(deviation);
            if is_there && is_line(line, tile) {
                of_beta[i] += gradients[i];
                of_gamma[i] += gradients[i] * values[i];
                let scaled = gradients[i] * Vector::cast_from(saved.gamma[line]);
                sum += scaled;
                product += scaled * values[i];
            }
        }
        let mean = total(&mut shared, sum.vector_sum(), at.slot, tile) / channels;
        let along = total(&mut shared, product.vector_sum(), at.slot, tile) / channels;
        #[unroll]
        for i in 0..held {
            let line = at.lane + i * lanes;
            if is_there && is_line(line, tile) {
                let scaled = gradients[i] * Vector::cast_from(saved.gamma[line]);
                let rest = scaled - Vector::new(mean) - values[i] * Vector::new(along);
                to[first + line] = narrow_all(rest * Vector::new(deviation));
            }
        }
    }
    add_slots::<N>(&mut of_gamma, at.slot, tile);
    add_slots::<N>(&mut of_beta, at.slot, tile);
    if at.slot == 0 {
        #[unroll]
        for i in 0..held {
            let line = at.lane + i * lanes;
            if is_line(line, tile) {
                let first = 2 * CUBE_POS * comptime!(tile.lines);
                partial[first + line] = of_gamma[i];
                partial[first + comptime!(tile.lines) + line] = of_beta[i];
            }
        }
    }
}

/// The tensors of [`layer_norm_backward`], contiguous and of one type.
#[derive(Clone, Copy, Debug)]
pub struct NormInputs<'a> {
    /// `[rows, channels]`
    pub input: &'a Handle,
    /// `[channels]`
    pub gamma: &'a Handle,
    /// Gradient of the output, `[rows, channels]`.
    pub gradient: &'a Handle,
}

/// `(x - mean) / sqrt(variance + epsilon) * gamma + beta` of each row `x`.
///
/// `input` and `output` are `[rows, channels]`, `gamma` and `beta` are `[channels]`, all contiguous and of one type.
///
/// # Errors
///
/// If the device lacks the type or 64-bit indices that are needed, rows are too long for its units, or a buffer is too small;
/// then nothing was launched.
pub fn layer_norm(
    matrix: &Matrix<'_>,
    input: &Handle,
    gamma: &Handle,
    beta: Option<&Handle>,
    epsilon: f64,
    output: &Handle,
) -> Result<(), KernelError> {
    let (by, tile) = (matrix.launch()?, matrix.tile()?);
    matrix.check("input", input)?;
    matrix.check("output", output)?;
    matrix.check_row("gamma", gamma)?;
    beta.map_or(Ok(()), |beta| matrix.check_row("beta", beta))?;
    if matrix.rows * matrix.channels == 0 {
        return Ok(());
    }
    // SAFETY: every index is below the sizes that the buffers were checked against.
    unsafe {
        norm_kernel::launch_unchecked(
            matrix.client,
            grid(matrix.client, matrix.rows.div_ceil(tile.slots)),
            CubeDim::new_1d(tile.units() as u32),
            by.address_type,
            by.vector,
            buffer(input),
            ParametersLaunch::new(buffer(gamma), buffer(beta.unwrap_or(gamma))),
            buffer(output),
            matrix.rows,
            matrix.channels as f32,
            epsilon as f32,
            tile,
            beta.is_some(),
            matrix.dtype,
        );
    }
    Ok(())
}

/// Gradients of [`layer_norm`]: `input` like the input, and `parameters`, `[2, channels]`, of `gamma` and of `beta`.
///
/// Workspace: 8 bytes a channel for each of at most 512 cubes. No atomics: results repeat bit by bit.
///
/// # Errors
///
/// As [`layer_norm`].
pub fn layer_norm_backward(
    matrix: &Matrix<'_>,
    inputs: &NormInputs<'_>,
    epsilon: f64,
    input: &Handle,
    parameters: &Handle,
) -> Result<(), KernelError> {
    let (by, tile) = (matrix.launch()?, matrix.tile()?);
    matrix.check("input", inputs.input)?;
    matrix.check("gradient", inputs.gradient)?;
    matrix.check_row("gamma", inputs.gamma)?;
    matrix.check("gradient of the input", input)?;
    let both = Matrix { channels: 2 * matrix.channels, ..*matrix };
    both.check_row("gradients of the parameters", parameters)?;
    if matrix.channels == 0 {
        return Ok(());
    }
    let shares = Shares::new(matrix.rows.div_ceil(tile.slots), 1);
    let partial = both.partial_sums(&shares);
    // SAFETY: every index is below the sizes that the buffers were checked against, or the workspace was made for.
    unsafe {
        backward_kernel::launch_unchecked(
            matrix.client,
            grid(matrix.client, shares.cubes),
            CubeDim::new_1d(tile.units() as u32),
            by.address_type,
            by.vector,
            SavedLaunch::new(buffer(inputs.input), buffer(inputs.gamma), buffer(inputs.gradient)),
            buffer(input),
            buffer(&partial),
            shares.argument(matrix.rows),
            matrix.channels as f32,
            epsilon as f32,
            tile,
            matrix.dtype,
        );
    }
    both.sum_partial(&partial, &shares, parameters)
}
