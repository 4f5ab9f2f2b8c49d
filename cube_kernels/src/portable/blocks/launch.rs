//! The passes as they are called: buffers, checks, and kernels in order.

use cubecl::client::Client;
use cubecl::ir::ElemType;
use cubecl::server::Handle;

use super::super::plan::{Launch, block_size};
use super::super::rows::Slicing;
use super::{backward as gradients, forward as rows};
use crate::cube::{Tensor, addresses};
use crate::sparse::check_lists;
use crate::view::{
    KeyGradients, check_gradients, check_operands, check_outputs, check_saved_with_out,
};
use crate::{BlockSparse, KernelError, Operands, Outputs, Saved, Shape, Strided};

/// Compile-time parameters of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct BlockPlan {
    /// Query and key rows.
    pub key: Slicing,
    /// Value and output rows.
    pub value: Slicing,
    /// Rows taken at once.
    pub block: usize,
    /// Whether rows that are taken at once are heads of one token, and not tokens of one line.
    pub by_heads: bool,
}

/// Most units that share a key in the backward pass.
const PARTS: usize = 8;
/// Keys of a cube, where units share them: the units of a plane, of most makes.
const LANES: usize = 32;

/// A problem on a device.
pub(super) struct Launching<'a> {
    pub launch: Launch<'a>,
    pub sparse: &'a BlockSparse,
    /// Units that share a key in the backward pass.
    pub parts: usize,
}

/// `out = softmax(scale * q k) v` over the keys that each query sees in the blocks of its list, and the logsumexp of these
/// scores.
///
/// `lists` are `[batch, query_blocks, list_heads, entries]`, of 32-bit integers. Queries, keys and values may be views. A query
/// that sees no key has output 0, logsumexp -inf and no gradient.
///
/// # Errors
///
/// If the problem is none, the device cannot run it or a buffer is too small; then nothing was launched.
pub fn forward(
    client: &Client,
    sparse: &BlockSparse,
    dtype: ElemType,
    inputs: &Operands<Strided>,
    lists: &Handle,
    outputs: &Outputs<Handle>,
) -> Result<(), KernelError> {
    check_lists(sparse, lists)?;
    let problem = &sparse.problem;
    let launch = Launch::new(client, problem, dtype)?;
    check_operands(problem, inputs, dtype.size())?;
    check_outputs(problem, outputs, dtype.size())?;
    let launching = Launching::new(launch, sparse, &views(sparse, inputs))?;
    if launching.launch.query_rows() > 0 {
        rows::launch(&launching, inputs, lists, outputs);
    }
    Ok(())
}

/// Gradients of [`forward()`] with respect to queries, keys and values, from those of both its outputs.
///
/// The output's gradient may be a view as well; output, logsumexp and its gradient are contiguous. Passes that sum none that
/// is wanted, one that has a buffer, are not launched. No atomics: results repeat bit by bit. Workspace: 8 bytes per query row,
/// and for keys and values what [`invert`](crate::sparse::invert) takes.
///
/// # Errors
///
/// As [`forward()`].
pub fn backward(
    client: &Client,
    sparse: &BlockSparse,
    dtype: ElemType,
    inputs: &Saved<Strided>,
    lists: &Handle,
    outputs: &Operands<Option<Handle>>,
) -> Result<(), KernelError> {
    let hardware = &client.properties().hardware;
    let parts = match hardware.num_cpu_cores {
        Some(_) => 1,
        None => (hardware.max_units_per_cube as usize / LANES).clamp(1, PARTS),
    };
    backward_with(client, parts, sparse, dtype, inputs, lists, outputs)
}

/// [`backward()`] with so many units that share the visitors of a key.
///
/// # Errors
///
/// As [`backward()`], or if the device has not as many.
pub fn backward_with(
    client: &Client,
    parts: usize,
    sparse: &BlockSparse,
    dtype: ElemType,
    inputs: &Saved<Strided>,
    lists: &Handle,
    outputs: &Operands<Option<Handle>>,
) -> Result<(), KernelError> {
    check_lists(sparse, lists)?;
    let problem = &sparse.problem;
    let launch = Launch::new(client, problem, dtype)?;
    check_saved_with_out(problem, inputs, dtype.size())?;
    check_gradients(problem, outputs, dtype.size())?;
    let out = Shape::out(problem);
    let mut read = views(sparse, &inputs.operands);
    read.extend([(&inputs.gradients.out, out), (&inputs.outputs.out, out)]);
    let launching = Launching { parts, ..Launching::new(launch, sparse, &read)? };
    let most = client.properties().hardware.max_units_per_cube as usize / launching.lanes();
    if parts == 0 || parts > most {
        let reason = format!("{most} units at most can share a key on this device; got {parts}");
        return Err(KernelError::Blueprint(reason));
    }
    let lse = Shape::lse(problem);
    inputs.outputs.out.contiguous_handle("out", out)?;
    inputs.outputs.lse.contiguous_handle("lse", lse)?;
    inputs.gradients.lse.contiguous_handle("dlse", lse)?;
    let of_keys = KeyGradients { client, problem, size: dtype.size(), is_joint: true };
    let keys = of_keys.own(outputs);
    gradients::launch(&launching, inputs, lists, outputs, keys.as_ref())
}

/// What both passes read as vectors.
fn views<'a>(sparse: &BlockSparse, inputs: &'a Operands<Strided>) -> Vec<(&'a Strided, Shape)> {
    inputs.iter().map(|(operand, tensor)| (tensor, operand.shape(&sparse.problem))).collect()
}

impl<'a> Launching<'a> {
    /// Fails if the device lacks 64-bit indices that the views or the lists need.
    fn new(
        launch: Launch<'a>,
        sparse: &'a BlockSparse,
        views: &[(&Strided, Shape)],
    ) -> Result<Self, KernelError> {
        let mut vector_size = launch.vector_size;
        let mut largest = launch.problem.largest_tensor().max(sparse.list_elements());
        for (tensor, shape) in views {
            vector_size = vector_size.min(tensor.widest(*shape, launch.dtype.size()));
            largest = largest.max(shape.extent(tensor.strides));
        }
        let address_type = addresses(launch.client, largest)?;
        Ok(Self { launch: Launch { vector_size, address_type, ..launch }, sparse, parts: 1 })
    }

    /// Keys of a cube, where units share them.
    pub fn lanes(&self) -> usize {
        match self.launch.client.properties().hardware.num_cpu_cores {
            Some(_) => 1,
            None => LANES,
        }
    }

    /// For kernels that walk over keys and sum value rows, of which a unit holds `lines`.
    pub fn value_plan(&self, lines: usize) -> BlockPlan {
        self.plan(1, self.value_lines().div_ceil(lines))
    }

    /// For kernels that walk over keys and sum key rows, of which a unit holds `lines`.
    pub fn key_plan(&self, lines: usize) -> BlockPlan {
        self.plan(self.key_lines().div_ceil(lines), 1)
    }

    /// For kernels that walk over queries and sum both, in slices of one number, of which a unit holds `lines` of each.
    pub fn gather_plan(&self, lines: usize) -> BlockPlan {
        let slices = self.key_lines().max(self.value_lines()).div_ceil(lines);
        let tokens = self.sparse.query_block[2].min(self.launch.problem.axes[2].queries);
        let heads = self.sparse.heads_of_list();
        let by_heads = heads > tokens;
        let run = if by_heads { heads } else { tokens };
        BlockPlan { block: block_size(run), by_heads, ..self.plan(slices, slices) }
    }

    fn plan(&self, key_slices: usize, value_slices: usize) -> BlockPlan {
        let run = self.sparse.key_block[2].min(self.launch.problem.axes[2].keys);
        BlockPlan {
            key: Slicing::new(self.key_lines(), key_slices),
            value: Slicing::new(self.value_lines(), value_slices),
            block: block_size(run),
            by_heads: false,
        }
    }

    fn key_lines(&self) -> usize {
        self.launch.problem.head_dim / self.launch.vector_size
    }

    fn value_lines(&self) -> usize {
        self.launch.problem.head_dim_v / self.launch.vector_size
    }

    /// Queries, keys and values as kernels are launched with: queries in place of keys where there are none, for empty buffers
    /// cannot be bound, and the other way round.
    pub fn inputs<'b>(&self, inputs: &'b Operands<Strided>) -> [Tensor<'b>; 3] {
        let [query, key, value] = [&inputs.query, &inputs.key, &inputs.value]
            .map(|tensor| (&tensor.handle, tensor.strides));
        let (queries, keys) = (self.launch.query_rows() > 0, self.launch.key_rows() > 0);
        [
            if queries { query } else { key },
            if keys { key } else { query },
            if keys { value } else { query },
        ]
    }

    /// The lists, or `other` where they are empty.
    pub fn lists_or<'b>(&self, lists: &'b Handle, other: &'b Handle) -> &'b Handle {
        if self.sparse.list_elements() > 0 { lists } else { other }
    }
}
