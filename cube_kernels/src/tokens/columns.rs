//! Sums over rows.
//!
//! A cube takes some columns and a share of the rows, of which each of its slots takes every so-many-th; slots are added up in
//! order, and so are cubes, by one cube for all shares.

// `#[cube]` and `CubeLaunch` add items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::ir::ElemType;
use cubecl::prelude::*;
use cubecl::server::Handle;

use super::RowTile;
use super::matrix::{Matrix, Shares};
use crate::KernelError;
use crate::cube::{F32, buffer, grid, narrow_all};

/// The rows of a cube: `turns` times as many as it takes at once.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
#[expand(derive(Clone, Copy))]
pub(super) struct RowRange {
    pub count: usize,
    pub turns: usize,
}

/// Adds what other slots have to what the first one has, in order.
#[cube]
pub(super) fn add_slots<N: Size>(
    sums: &mut Array<Vector<f32, N>>,
    slot: usize,
    #[comptime] tile: RowTile,
) {
    if comptime!(tile.slots > 1) {
        let (units, lanes) = comptime!((tile.units(), tile.lanes));
        let unit = UNIT_POS as usize;
        let mut shared = Shared::<[Vector<f32, N>]>::new_slice(units);
        #[unroll]
        for i in 0..comptime!(tile.held()) {
            shared[unit] = sums[i];
            sync_cube();
            if slot == 0 {
                for other in 1..comptime!(tile.slots) {
                    sums[i] += shared[other * lanes + unit];
                }
            }
            sync_cube();
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn columns_kernel<F: Float, G: Float, N: Size>(
    input: &[Vector<F, N>],
    sums: &mut [Vector<G, N>],
    rows: RowRange,
    shares: usize,
    lines: usize,
    #[comptime] tile: RowTile,
    #[define(F, G)] _dtypes: [ElemType; 2],
) {
    let (lanes, slots) = comptime!((tile.lanes, tile.slots));
    let unit = UNIT_POS as usize;
    let (lane, slot) = (unit % lanes, unit / lanes);
    let groups = lines.div_ceil(lanes);
    let (line, share) = (CUBE_POS % groups * lanes + lane, CUBE_POS / groups);
    let mut sum = Array::<Vector<f32, N>>::new(1usize);
    sum[0] = Vector::new(0.0f32);
    let first = share * rows.turns * slots + slot;
    for turn in 0..rows.turns {
        let row = first + turn * slots;
        if row < rows.count && line < lines && share < shares {
            sum[0] += Vector::cast_from(input[row * lines + line]);
        }
    }
    add_slots::<N>(&mut sum, slot, tile);
    if slot == 0 && line < lines && share < shares {
        sums[share * lines + line] = narrow_all(sum[0]);
    }
}

/// The sum of the rows of `input`, `[rows, channels]`, to `sums`, `[channels]`, contiguous and of one type.
///
/// Workspace: 4 bytes a channel for each of at most 512 cubes. No atomics: results repeat bit by bit.
///
/// # Errors
///
/// If the device lacks the type or 64-bit indices that are needed, or a buffer is too small; then nothing was launched.
pub fn column_sums(matrix: &Matrix<'_>, input: &Handle, sums: &Handle) -> Result<(), KernelError> {
    matrix.launch()?;
    matrix.check("input", input)?;
    matrix.check_row("sums", sums)?;
    if matrix.channels == 0 {
        return Ok(());
    }
    let (tile, groups) = tile(matrix);
    let shares = Shares::new(matrix.rows.div_ceil(tile.slots), groups);
    if shares.cubes == 1 {
        return sum(matrix, input, 1, sums, matrix.dtype);
    }
    let partial = matrix.partial_sums(&shares);
    sum(matrix, input, shares.cubes, &partial, F32)?;
    matrix.sum_partial(&partial, &shares, sums)
}

/// A vector of a row for each lane, and the groups of lanes that a row has.
fn tile(matrix: &Matrix<'_>) -> (RowTile, usize) {
    let lines = matrix.channels / matrix.vector();
    let tile = RowTile::of_columns(lines, matrix.units);
    (tile, lines.div_ceil(tile.lanes))
}

/// The sums of each share of the rows, `[shares, channels]`.
pub(super) fn sum(
    matrix: &Matrix<'_>,
    input: &Handle,
    shares: usize,
    to: &Handle,
    dtype: ElemType,
) -> Result<(), KernelError> {
    let (by, (tile, groups)) = (matrix.launch()?, tile(matrix));
    let turns = matrix.rows.div_ceil(tile.slots).div_ceil(shares);
    // SAFETY: every index is below the sizes that the buffers were checked against, or workspaces made for.
    unsafe {
        columns_kernel::launch_unchecked(
            matrix.client,
            grid(matrix.client, shares * groups),
            CubeDim::new_1d(tile.units() as u32),
            by.address_type,
            by.vector,
            buffer(input),
            buffer(to),
            RowRangeLaunch::new(matrix.rows, turns),
            shares,
            matrix.channels / by.vector,
            tile,
            [matrix.dtype, dtype],
        );
    }
    Ok(())
}
