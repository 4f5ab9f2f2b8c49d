//! What is handed to the kernels.

use std::sync::Arc;

use cubecl::client::Client;
use cubecl::server::Handle;

use super::Union;
use crate::native::Cut;
use crate::native::compile::Cubin;
use crate::native::forward;
use crate::native::grid::{Grid, parameters};
use crate::native::launch::{Argument, Buffer, DeviceInfo, Kernel, launch};
use crate::sparse::check_lists;
use crate::{BlockSparse, KernelError, MAX_RANK, Operands, Outputs, Pass, Strided};

/// The programs of a pass.
pub(in crate::native::sm90) struct Programs {
    /// What joins lists.
    pub lists: Arc<Cubin>,
    /// What attends.
    pub attention: Arc<Cubin>,
}

/// The `Params` of the kernel that joins lists.
#[repr(C)]
#[derive(Clone, Copy)]
struct ListParams {
    pointers: [u64; 3],
    queries: i32,
    keys: i32,
    blocks: i32,
    query_block: i32,
    query_blocks: i32,
    heads: i32,
    entries: i32,
    tiles: i32,
    origin: i32,
    step: i32,
}

const _: () = assert!(size_of::<ListParams>() == 8 * 3 + 4 * 10);

/// The `Params` of the forward pass, with the kernels' `Union` behind the first five addresses.
#[repr(C)]
#[derive(Clone, Copy)]
struct ForwardParams {
    pointers: [u64; 7],
    of: [i32; 10],
    strides: [[i64; 3]; 3],
    scale_log2: f32,
    padding: i32,
}

const _: () = assert!(size_of::<ForwardParams>() == 8 * (7 + 9) + 4 * 12);

/// Lists, joined.
struct Joined {
    items: Handle,
    counts: Handle,
}

/// How the kernels cover a problem.
struct Walk<'a> {
    of: &'a Union,
    sparse: &'a BlockSparse,
}

impl Walk<'_> {
    /// Tiles of a head.
    fn tiles_of_head(&self) -> usize {
        self.sparse.problem.queries().div_ceil(self.of.queries())
    }

    fn tiles(&self) -> usize {
        self.sparse.problem.batch * self.sparse.problem.heads_kv * self.tiles_of_head()
    }

    /// Where query 0 stands. Beyond the first and the last key it makes no difference.
    fn origin(&self) -> i32 {
        let axis = &self.sparse.problem.axes[MAX_RANK - 1];
        let end = (axis.keys * self.step()) as isize;
        axis.origin.clamp(-(axis.queries as isize), end) as i32
    }

    fn step(&self) -> usize {
        self.sparse.steps[MAX_RANK - 1]
    }

    /// The kernels' `Union` behind its addresses.
    fn numbers(&self) -> [i32; 10] {
        let problem = &self.sparse.problem;
        let numbers = [
            problem.queries(),
            problem.keys(),
            problem.heads,
            problem.heads_kv,
            self.sparse.entries,
            self.tiles(),
            self.tiles_of_head(),
        ];
        let [queries, keys, heads, heads_kv, entries, tiles, of_head] =
            numbers.map(|number| number as i32);
        let (origin, step) = (self.origin(), self.step() as i32);
        [queries, keys, heads, heads_kv, entries, tiles, of_head, origin, step, 0]
    }

    fn join(&self, client: &Client, cubin: &Arc<Cubin>, lists: &Handle) -> Joined {
        let Self { of, sparse } = self;
        let (problem, tiles) = (&sparse.problem, self.tiles());
        let joined = Joined {
            items: client.empty(size_of::<u64>() * tiles * of.queries() * sparse.entries),
            counts: client.empty(size_of::<i32>() * tiles),
        };
        let params = ListParams {
            pointers: [0; 3],
            queries: problem.queries() as i32,
            keys: problem.keys() as i32,
            blocks: sparse.key_blocks() as i32,
            query_block: sparse.query_block[MAX_RANK - 1].min(problem.queries()) as i32,
            query_blocks: sparse.query_blocks() as i32,
            heads: sparse.list_heads as i32,
            entries: sparse.entries as i32,
            tiles: self.tiles_of_head() as i32,
            origin: self.origin(),
            step: self.step() as i32,
        };
        // SAFETY: the assertion above counts every byte.
        let params = unsafe { parameters(params, &[0, 1, 2]) };
        let kernel = Kernel {
            cubin: cubin.clone(),
            entry: c"attention_union",
            grid: tiles as u32,
            block: 128,
            shared_memory: of.lists_memory(sparse.entries) as u32,
        };
        let buffers = vec![
            Buffer::written(&joined.items),
            Buffer::written(&joined.counts),
            Buffer::read(lists),
        ];
        launch(client, kernel, buffers, vec![params]);
        joined
    }

    fn kernel(
        &self,
        device: &DeviceInfo,
        cubin: &Arc<Cubin>,
        entry: &'static std::ffi::CStr,
    ) -> Kernel {
        Kernel {
            cubin: cubin.clone(),
            entry,
            grid: self.tiles().min(device.multiprocessors as usize) as u32,
            block: self.of.threads() as u32,
            shared_memory: self.of.shared_memory() as u32,
        }
    }

    fn grid(&self, device: &DeviceInfo, pass: Pass) -> Grid<'_> {
        Grid {
            cut: cut(self.of, pass),
            problem: &self.sparse.problem,
            multiprocessors: device.multiprocessors as usize,
            residues: [0; MAX_RANK],
        }
    }
}

fn cut(of: &Union, pass: Pass) -> Cut {
    Cut {
        pass,
        element: of.element,
        q_tile: [1; MAX_RANK],
        kv_tile: [1, 1, of.keys],
        cta_tile: [1, 1, of.queries()],
        ctas: 1,
        swizzle: 128,
        samples_first: false,
        threads: of.threads(),
        shared_memory: of.shared_memory(),
    }
}

/// Strides of a tensor: batch, token, head.
fn strides(tensor: &Strided) -> [i64; 3] {
    let [batch, _, _, token, head] = forward::words(tensor);
    [batch, token, head]
}

/// Whether a launch can read and write these tensors and lists.
///
/// # Errors
///
/// [`KernelError`] that says why not.
pub(in crate::native::sm90) fn check_forward(
    of: &Union,
    sparse: &BlockSparse,
    inputs: &Operands<Strided>,
    lists: &Handle,
    outputs: &Outputs<Handle>,
) -> Result<(), KernelError> {
    check_lists(sparse, lists)?;
    forward::check(&cut(of, Pass::Forward), &sparse.problem, inputs, outputs)
}

/// Enqueues the forward pass on tensors that are [checked](check_forward).
#[allow(clippy::too_many_arguments)]
pub(in crate::native::sm90) fn enqueue_forward(
    client: &Client,
    device: &DeviceInfo,
    programs: &Programs,
    of: &Union,
    sparse: &BlockSparse,
    inputs: &Operands<Strided>,
    lists: &Handle,
    outputs: &Outputs<Handle>,
) {
    let walk = Walk { of, sparse };
    let problem = &sparse.problem;
    if walk.tiles() == 0 {
        return;
    }
    let joined = walk.join(client, &programs.lists, lists);
    let Operands { query, key, value, .. } = inputs;
    let grid = walk.grid(device, Pass::Forward);
    let buffers = vec![
        Buffer::read(&query.handle),
        Buffer::read(&key.handle),
        Buffer::read(&value.handle),
        Buffer::written(&outputs.out),
        Buffer::written(&outputs.lse),
        Buffer::read(&joined.items),
        Buffer::read(&joined.counts),
    ];
    let params = ForwardParams {
        pointers: [0; 7],
        of: walk.numbers(),
        strides: [query, key, value].map(strides),
        scale_log2: (problem.scale * std::f64::consts::LOG2_E) as f32,
        padding: 0,
    };
    // SAFETY: the assertion above counts every byte.
    let params = unsafe { parameters(params, &[3, 4, 0, 1, 2, 5, 6]) };
    let arguments = vec![
        Argument::TensorMap(grid.key_map(1, key, problem.head_dim)),
        Argument::TensorMap(grid.key_map(2, value, problem.head_dim_v)),
        params,
    ];
    let kernel = walk.kernel(device, &programs.attention, c"attention_forward");
    launch(client, kernel, buffers, arguments);
}
