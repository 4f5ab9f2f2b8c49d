//! The scalars of a kernel, as a launch passes them.

use burn_natten_kernels::tensor_core::{Blueprint, Exponential, Pass};
use burn_natten_kernels::{Axis, MAX_RANK, Problem};

/// A contiguous tensor `[batch, tokens.., heads, dim]`.
#[derive(Clone, Copy)]
pub struct Layout {
    pub tokens: [usize; MAX_RANK],
    pub heads: usize,
    pub dim: usize,
}

impl Layout {
    /// Vectors of `vector` elements between neighbors: batch, z, y, x, head.
    fn strides(&self, vector: usize) -> [usize; 5] {
        let x = self.heads * self.dim;
        let y = self.tokens[2] * x;
        let z = self.tokens[1] * y;
        [self.tokens[0] * z, z, y, x, self.dim].map(|stride| stride / vector)
    }
}

/// Number of cubes, and sizes in the order of the kernel's `Space` and its strides.
pub fn sizes(problem: &Problem, blueprint: &Blueprint, tensors: &[Layout]) -> (usize, Vec<usize>) {
    let is_keys = blueprint.pass == Pass::Keys;
    sizes_of(problem, is_keys, blueprint.row_tile(), blueprint.vector, tensors)
}

/// The same for kernels whose rows are keys, or not, with tiles of as many rows.
pub fn sizes_of(
    problem: &Problem,
    is_keys: bool,
    row_tile: [usize; MAX_RANK],
    vector: usize,
    tensors: &[Layout],
) -> (usize, Vec<usize>) {
    let heads = if is_keys { problem.heads_kv } else { problem.heads };
    let mut cubes = problem.batch * heads;
    let mut sizes = vec![];
    for (index, (axis, tile)) in problem.axes.into_iter().zip(row_tile).enumerate() {
        let Axis { queries, keys, kernel_size, stride, dilation, .. } = axis;
        let (ahead, behind) = problem.shifts()[index];
        let (rows, columns) = if is_keys { (keys, queries) } else { (queries, keys) };
        let tiles = rows.div_ceil(dilation).div_ceil(tile);
        cubes *= dilation * tiles;
        sizes.extend([rows, columns, kernel_size, stride, dilation, ahead, behind, tiles]);
    }
    sizes.extend([heads, problem.group_size(), problem.additional, cubes]);
    sizes.extend(tensors.iter().flat_map(|tensor| tensor.strides(vector)));
    (cubes, sizes)
}

/// What the kernels take for the power of e or of 2 that they compute.
pub fn factor(exponential: Exponential, scale: f64) -> f64 {
    match exponential {
        Exponential::Library => scale,
        Exponential::Instruction(_) => scale * std::f64::consts::LOG2_E,
    }
}
