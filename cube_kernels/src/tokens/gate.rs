//! The sum of three branches, each weighed row by row with a gate of its own or not at all, and its gradients.
//!
//! All passes are worth the bytes of their tensors: the backward pass reads three branches and a gradient once, and writes three
//! gradients, with the products for the gates on the way; or nothing but what these products and the gates come to, which is what
//! backward passes of attentions need of their own outputs.

// `#[cube]` and `CubeLaunch` add items beside each definition, without docs.
#![allow(missing_docs)]

use cubecl::prelude::*;
use cubecl::server::Handle;

use super::RowTile;
use super::matrix::Matrix;
use super::rows::{is_line, load, place};
use crate::KernelError;
use crate::cube::{buffer, grid, narrow, narrow_all};
use crate::view::check_buffer;

/// How many branches there are.
pub const BRANCHES: usize = 3;

#[derive(CubeType, CubeLaunch)]
struct Branches<'a, F: Float, N: Size> {
    first: &'a [Vector<F, N>],
    second: &'a [Vector<F, N>],
    third: &'a [Vector<F, N>],
}

#[cube]
fn gate<F: Float>(gates: &[F], row: usize, is_there: bool, #[comptime] branch: usize) -> f32 {
    let mut gate = 0.0f32;
    if is_there {
        gate = f32::cast_from(gates[row * BRANCHES + comptime!(branch)]);
    }
    gate
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn gate_kernel<F: Float, N: Size>(
    branches: &Branches<'_, F, N>,
    gates: &[F],
    output: &mut [Vector<F, N>],
    rows: usize,
    #[comptime] tile: RowTile,
    #[comptime] has_gates: bool,
    #[define(F)] _dtype: ElemType,
) {
    let at = place(tile);
    let row = CUBE_POS * comptime!(tile.slots) + at.slot;
    let (is_there, begin) = (row < rows, row * comptime!(tile.lines));
    let of_branches = load_branches::<F, N>(branches, begin, is_there, at.lane, tile);
    let (mut a, mut b, mut c) = (1.0f32.runtime(), 1.0f32.runtime(), 1.0f32.runtime());
    if comptime!(has_gates) {
        a = gate::<F>(gates, row, is_there, 0usize);
        b = gate::<F>(gates, row, is_there, 1usize);
        c = gate::<F>(gates, row, is_there, 2usize);
    }
    #[unroll]
    for i in 0..comptime!(tile.held()) {
        let line = at.lane + i * comptime!(tile.lanes);
        if is_there && is_line(line, tile) {
            let mut sum = of_branches.first[i] * Vector::new(a);
            sum += of_branches.second[i] * Vector::new(b);
            sum += of_branches.third[i] * Vector::new(c);
            output[begin + line] = narrow_all(sum);
        }
    }
}

/// The rows of all branches, whose loads are on their way at once: what is done with the first one would hold up the others.
#[derive(CubeType)]
struct Rows<N: Size> {
    first: Array<Vector<f32, N>>,
    second: Array<Vector<f32, N>>,
    third: Array<Vector<f32, N>>,
}

#[cube]
fn load_branches<F: Float, N: Size>(
    branches: &Branches<'_, F, N>,
    begin: usize,
    is_there: bool,
    lane: usize,
    #[comptime] tile: RowTile,
) -> Rows<N> {
    Rows::<N> {
        first: load::<F, N>(branches.first, begin, is_there, lane, tile),
        second: load::<F, N>(branches.second, begin, is_there, lane, tile),
        third: load::<F, N>(branches.third, begin, is_there, lane, tile),
    }
}

/// What a unit has of the product of a branch's row and the gradient's.
#[cube]
fn row_product<N: Size>(
    branch: &Array<Vector<f32, N>>,
    gradient: &Array<Vector<f32, N>>,
    #[comptime] tile: RowTile,
) -> f32 {
    let mut product = Vector::<f32, N>::new(0.0f32);
    #[unroll]
    for i in 0..comptime!(tile.held()) {
        product += branch[i] * gradient[i];
    }
    product.vector_sum()
}

/// Lays down what a unit has of the products of all branches, those of a branch beside each other.
#[cube]
fn share_products<N: Size>(
    shared: &mut Shared<[f32]>,
    of_branches: &Rows<N>,
    gradient: &Array<Vector<f32, N>>,
    #[comptime] tile: RowTile,
) {
    let (unit, units) = (UNIT_POS as usize, comptime!(tile.units()));
    shared[unit] = row_product::<N>(&of_branches.first, gradient, tile);
    shared[unit + units] = row_product::<N>(&of_branches.second, gradient, tile);
    shared[unit + 2 * units] = row_product::<N>(&of_branches.third, gradient, tile);
}

/// The sum of what the lanes of a row have for a branch, in their order.
#[cube]
fn of_lanes(
    shared: &Shared<[f32]>,
    slot: usize,
    #[comptime] branch: usize,
    #[comptime] tile: RowTile,
) -> f32 {
    let (lanes, units) = comptime!((tile.lanes, tile.units()));
    let mut sum = 0.0f32;
    #[unroll]
    for lane in 0..lanes {
        sum += shared[comptime!(branch * units) + slot * lanes + lane];
    }
    sum
}

/// Writes the gradient of a branch's row.
#[cube]
fn write_gradient<F: Float, N: Size>(
    gradient: &Array<Vector<f32, N>>,
    gate: f32,
    to: &mut [Vector<F, N>],
    begin: usize,
    is_there: bool,
    lane: usize,
    #[comptime] tile: RowTile,
) {
    #[unroll]
    for i in 0..comptime!(tile.held()) {
        let line = lane + i * comptime!(tile.lanes);
        if is_there && is_line(line, tile) {
            to[begin + line] = narrow_all(gradient[i] * Vector::new(gate));
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn backward_kernel<F: Float, N: Size>(
    branches: &Branches<'_, F, N>,
    gates: &[F],
    gradient: &[Vector<F, N>],
    to_first: &mut [Vector<F, N>],
    to_second: &mut [Vector<F, N>],
    to_third: &mut [Vector<F, N>],
    to_gates: &mut [F],
    rows: usize,
    #[comptime] tile: RowTile,
    #[define(F)] _dtype: ElemType,
) {
    let at = place(tile);
    let (lanes, units) = comptime!((tile.lanes, tile.units()));
    let row = CUBE_POS * comptime!(tile.slots) + at.slot;
    let (is_there, begin) = (row < rows, row * comptime!(tile.lines));
    let mut shared = Shared::<[f32]>::new_slice(comptime!(BRANCHES * units));
    let of_row = load::<F, N>(gradient, begin, is_there, at.lane, tile);
    let of_branches = load_branches::<F, N>(branches, begin, is_there, at.lane, tile);
    let a = gate::<F>(gates, row, is_there, 0usize);
    let b = gate::<F>(gates, row, is_there, 1usize);
    let c = gate::<F>(gates, row, is_there, 2usize);
    share_products::<N>(&mut shared, &of_branches, &of_row, tile);
    write_gradient::<F, N>(&of_row, a, to_first, begin, is_there, at.lane, tile);
    write_gradient::<F, N>(&of_row, b, to_second, begin, is_there, at.lane, tile);
    write_gradient::<F, N>(&of_row, c, to_third, begin, is_there, at.lane, tile);
    sync_cube();
    // A gate is one lane's, or where there are fewer lanes than gates, one of a lane's.
    #[unroll]
    for branch in 0..BRANCHES {
        if is_there && at.lane == comptime!(branch % lanes) {
            let sum = of_lanes(&shared, at.slot, branch, tile);
            to_gates[row * BRANCHES + branch] = narrow::<F>(sum);
        }
    }
}

#[cube(launch_unchecked, address_type = "dynamic")]
fn statistics_kernel<F: Float, N: Size>(
    branches: &Branches<'_, F, N>,
    first_lse: &[f32],
    second_lse: &[f32],
    third_lse: &[f32],
    gates: &[F],
    gradient: &[Vector<F, N>],
    statistics: &mut [f32],
    to_gates: &mut [F],
    rows: usize,
    #[comptime] tile: RowTile,
    #[define(F)] _dtype: ElemType,
) {
    let at = place(tile);
    let (lanes, units) = comptime!((tile.lanes, tile.units()));
    let row = CUBE_POS * comptime!(tile.slots) + at.slot;
    let (is_there, begin) = (row < rows, row * comptime!(tile.lines));
    let mut shared = Shared::<[f32]>::new_slice(comptime!(BRANCHES * units));
    // A branch is that of a lane as gates are in `backward_kernel`, and everything is on its way before the first sum.
    let mut lses = Array::<f32>::new(comptime!(BRANCHES));
    let mut of_gates = Array::<f32>::new(comptime!(BRANCHES));
    #[unroll]
    for branch in 0..BRANCHES {
        if is_there && at.lane == comptime!(branch % lanes) {
            of_gates[branch] = gate::<F>(gates, row, is_there, branch);
            lses[branch] = if comptime!(branch == 0) {
                first_lse[row]
            } else if comptime!(branch == 1) {
                second_lse[row]
            } else {
                third_lse[row]
            };
        }
    }
    let of_row = load::<F, N>(gradient, begin, is_there, at.lane, tile);
    let of_branches = load_branches::<F, N>(branches, begin, is_there, at.lane, tile);
    share_products::<N>(&mut shared, &of_branches, &of_row, tile);
    sync_cube();
    #[unroll]
    for branch in 0..BRANCHES {
        if is_there && at.lane == comptime!(branch % lanes) {
            let sum = of_lanes(&shared, at.slot, branch, tile);
            let mut gate = of_gates[branch];
            if gate >= 0.0 {
                gate = gate.max(comptime!(f32::MIN_POSITIVE).runtime());
            }
            statistics[branch * rows + row] = lses[branch] - gate.ln();
            statistics[(BRANCHES + branch) * rows + row] = -sum;
            to_gates[row * BRANCHES + branch] = narrow::<F>(sum);
        }
    }
}

/// The tensors of [`gated_sum`], contiguous and of one type.
#[derive(Clone, Copy, Debug)]
pub struct GateInputs<'a> {
    /// `[rows, channels]` each.
    pub branches: [&'a Handle; BRANCHES],
    /// `[rows, 3]`
    pub gates: &'a Handle,
}

impl GateInputs<'_> {
    fn check(&self, matrix: &Matrix<'_>) -> Result<(), KernelError> {
        self.check_branches(matrix)?;
        matrix_of_gates(matrix).check("gates", self.gates)
    }

    fn check_branches(&self, matrix: &Matrix<'_>) -> Result<(), KernelError> {
        let names = ["first branch", "second branch", "third branch"];
        names
            .into_iter()
            .zip(self.branches)
            .try_for_each(|(name, branch)| matrix.check(name, branch))
    }

    fn launch<F: Float, N: Size>(&self) -> BranchesLaunch<'static, F, N> {
        let [first, second, third] = self.branches.map(buffer);
        BranchesLaunch::new(first, second, third)
    }
}

fn matrix_of_gates<'a>(matrix: &Matrix<'a>) -> Matrix<'a> {
    Matrix { channels: BRANCHES, ..*matrix }
}

/// `gates[row, 0] first[row] + gates[row, 1] second[row] + gates[row, 2] third[row]`, summed in f32, to `output`, `[rows, channels]`.
///
/// # Errors
///
/// If the device lacks the type or 64-bit indices that are needed, rows are too long for its units, or a buffer is too small;
/// then nothing was launched.
pub fn gated_sum(
    matrix: &Matrix<'_>,
    inputs: &GateInputs<'_>,
    output: &Handle,
) -> Result<(), KernelError> {
    inputs.check(matrix)?;
    sum(matrix, inputs, true, output)
}

/// `first + second + third`, `[rows, channels]` each, summed in f32 and rounded once, to `output`.
///
/// # Errors
///
/// As [`gated_sum`].
pub fn branch_sum(
    matrix: &Matrix<'_>,
    branches: [&Handle; BRANCHES],
    output: &Handle,
) -> Result<(), KernelError> {
    let [gates, _, _] = branches;
    let inputs = GateInputs { branches, gates };
    inputs.check_branches(matrix)?;
    sum(matrix, &inputs, false, output)
}

fn sum(
    matrix: &Matrix<'_>,
    inputs: &GateInputs<'_>,
    has_gates: bool,
    output: &Handle,
) -> Result<(), KernelError> {
    let (by, tile) = (matrix.launch()?, matrix.tile()?);
    matrix.check("output", output)?;
    if matrix.rows * matrix.channels == 0 {
        return Ok(());
    }
    // SAFETY: every index is below the sizes that the buffers were checked against.
    unsafe {
        gate_kernel::launch_unchecked(
            matrix.client,
            grid(matrix.client, matrix.rows.div_ceil(tile.slots)),
            CubeDim::new_1d(tile.units() as u32),
            by.address_type,
            by.vector,
            inputs.launch(),
            buffer(inputs.gates),
            buffer(output),
            matrix.rows,
            tile,
            has_gates,
            matrix.dtype,
        );
    }
    Ok(())
}

/// Gradients of [`gated_sum`] by that of its output, `gradient`: those of its inputs, to buffers like these. Rows without channels leave
/// them as they are. No atomics: results repeat bit by bit.
///
/// # Errors
///
/// As [`gated_sum`].
pub fn gated_sum_backward(
    matrix: &Matrix<'_>,
    inputs: &GateInputs<'_>,
    gradient: &Handle,
    to: &GateInputs<'_>,
) -> Result<(), KernelError> {
    let (by, tile) = (matrix.launch()?, matrix.tile()?);
    inputs.check(matrix)?;
    matrix.check("gradient", gradient)?;
    to.check(matrix)?;
    if matrix.rows * matrix.channels == 0 {
        return Ok(());
    }
    let [first, second, third] = to.branches.map(buffer);
    // SAFETY: every index is below the sizes that the buffers were checked against.
    unsafe {
        backward_kernel::launch_unchecked(
            matrix.client,
            grid(matrix.client, matrix.rows.div_ceil(tile.slots)),
            CubeDim::new_1d(tile.units() as u32),
            by.address_type,
            by.vector,
            inputs.launch(),
            buffer(inputs.gates),
            buffer(gradient),
            first,
            second,
            third,
            buffer(to.gates),
            matrix.rows,
            tile,
            matrix.dtype,
        );
    }
    Ok(())
}

/// Where [`gated_sum_statistics`] writes.
#[derive(Clone, Copy, Debug)]
pub struct GateStatistics<'a> {
    /// f32, `[2, 3, rows]`: of each branch and row the logsumexp less the gate's logarithm, then the negative of the gate's gradient.
    pub statistics: &'a Handle,
    /// The gradients of the gates, like these.
    pub gates: &'a Handle,
}

/// The gradients of [`gated_sum`]'s gates by that of its output, `gradient`, and what the backward passes of attentions need whose outputs
/// the branches are, `lses` their logsumexps, f32, `[rows]` each. Gates from zero to the least normal f32 count as that, and those below
/// zero give NaN.
///
/// # Errors
///
/// As [`gated_sum`].
pub fn gated_sum_statistics(
    matrix: &Matrix<'_>,
    inputs: &GateInputs<'_>,
    lses: [&Handle; BRANCHES],
    gradient: &Handle,
    to: &GateStatistics<'_>,
) -> Result<(), KernelError> {
    let (by, tile) = (matrix.launch()?, matrix.tile()?);
    inputs.check(matrix)?;
    matrix.check("gradient", gradient)?;
    matrix_of_gates(matrix).check("gates", to.gates)?;
    let size = size_of::<f32>() * matrix.rows;
    lses.into_iter().try_for_each(|lse| check_buffer("logsumexp", lse, size))?;
    check_buffer("statistics", to.statistics, 2 * BRANCHES * size)?;
    if matrix.rows * matrix.channels == 0 {
        return Ok(());
    }
    let [first, second, third] = lses.map(buffer);
    // SAFETY: every index is below the sizes that the buffers were checked against.
    unsafe {
        statistics_kernel::launch_unchecked(
            matrix.client,
            grid(matrix.client, matrix.rows.div_ceil(tile.slots)),
            CubeDim::new_1d(tile.units() as u32),
            by.address_type,
            by.vector,
            inputs.launch(),
            first,
            second,
            third,
            buffer(inputs.gates),
            buffer(gradient),
            buffer(to.statistics),
            buffer(to.gates),
            matrix.rows,
            tile,
            matrix.dtype,
        );
    }
    Ok(())
}
