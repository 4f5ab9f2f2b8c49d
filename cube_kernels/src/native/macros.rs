//! Macros that kernels of several architectures take alike: what the headers in `cuda` read that they share.

use crate::MAX_RANK;

/// Bit a: axis a.
pub(super) fn axes_bits(axes: [bool; MAX_RANK]) -> usize {
    axes.into_iter().enumerate().map(|(axis, bit)| usize::from(bit) << axis).sum()
}

/// The extents of a bias, if there is one, and the sides of a box of rows and of one of columns.
pub(super) fn sides(
    bias: Option<[usize; MAX_RANK]>,
    rows: [usize; MAX_RANK],
    columns: [usize; MAX_RANK],
) -> impl Iterator<Item = (&'static str, usize)> {
    let names = [
        ["BIAS_Z", "BIAS_Y", "BIAS_X"],
        ["ROW_Z", "ROW_Y", "ROW_X"],
        ["COLUMN_Z", "COLUMN_Y", "COLUMN_X"],
    ];
    let sides = [bias.unwrap_or([1; MAX_RANK]), rows, columns];
    names.into_iter().flatten().zip(sides.into_iter().flatten())
}
