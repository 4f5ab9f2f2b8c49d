//! Contiguous tensors as the kernels are launched with them.

use cubecl::server::Handle;

use crate::cube::Tensor;
use crate::{MAX_RANK, Problem};

/// Shapes of a problem's tensors.
pub(super) struct Tensors<'a> {
    problem: &'a Problem,
}

impl<'a> Tensors<'a> {
    pub fn new(problem: &'a Problem) -> Self {
        Self { problem }
    }

    /// A tensor of the query's shape.
    pub fn query<'b>(&self, handle: &'b Handle) -> Tensor<'b> {
        let tokens = self.problem.axes.map(|axis| axis.queries);
        contiguous(handle, tokens, self.problem.heads, self.problem.head_dim)
    }

    /// Tensors of the shapes of the query and of the output.
    pub fn queries<'b>(&self, [query, out]: [&'b Handle; 2]) -> [Tensor<'b>; 2] {
        let tokens = self.problem.axes.map(|axis| axis.queries);
        let dim = self.problem.head_dim_v;
        [self.query(query), contiguous(out, tokens, self.problem.heads, dim)]
    }

    /// Tensors of the shapes of key and value.
    pub fn keys<'b>(&self, handles: [&'b Handle; 2]) -> [Tensor<'b>; 2] {
        self.of_keys(handles, self.problem.axes.map(|axis| axis.keys))
    }

    /// Tensors of the shapes of the additional keys and values.
    pub fn additional<'b>(&self, handles: [&'b Handle; 2]) -> [Tensor<'b>; 2] {
        self.of_keys(handles, [1, 1, self.problem.additional])
    }

    fn of_keys<'b>(
        &self,
        [key, value]: [&'b Handle; 2],
        tokens: [usize; MAX_RANK],
    ) -> [Tensor<'b>; 2] {
        let Problem { heads_kv, head_dim, head_dim_v, .. } = *self.problem;
        [
            contiguous(key, tokens, heads_kv, head_dim),
            contiguous(value, tokens, heads_kv, head_dim_v),
        ]
    }
}

/// A tensor `[batch, tokens.., heads, dim]`.
fn contiguous(
    handle: &Handle,
    [z, y, x]: [usize; MAX_RANK],
    heads: usize,
    dim: usize,
) -> Tensor<'_> {
    let along_x = heads * dim;
    let along_y = x * along_x;
    let along_z = y * along_y;
    (handle, [z * along_z, along_z, along_y, along_x, dim])
}
