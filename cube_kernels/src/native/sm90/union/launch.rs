//! What is handed to the kernels.

mod by_block;
mod gradients;
mod parts;
mod visits;

pub(in crate::native::sm90) use gradients::{GradientPrograms, enqueue_gradients};
pub(in crate::native::sm90) use visits::{VisitPrograms, enqueue_visits};

use std::sync::Arc;

use cubecl::client::Client;
use cubecl::server::Handle;

use super::super::inverse::{Items, turn_lists};
use super::Union;
use crate::native::Cut;
use crate::native::compile::Cubin;
use crate::native::grid::{Grid, parameters};
use crate::native::launch::{Argument, Buffer, DeviceInfo, Kernel, launch};
use crate::native::statistics::statistics_bytes;
use crate::native::{backward, forward};
use crate::sparse::{Inverse, check_lists};
use crate::view::KeyGradients;
use crate::{
    BlockSparse, KernelError, KeyValue, MAX_RANK, Operands, Outputs, Pass, Problem, Saved, Strided,
};
use parts::Parts;

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
#[derive(Clone, Copy)]
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
        let multiprocessors = device.multiprocessors as usize;
        Grid::new(cut(self.of, pass), &self.sparse.problem, multiprocessors, [0; MAX_RANK])
    }
}

fn cut(of: &Union, pass: Pass) -> Cut {
    Cut {
        pass,
        element: of.element,
        q_tile: [1; MAX_RANK],
        kv_tile: [1, 1, of.keys],
        cta_tile: [1, 1, of.queries()],
        stack: 0,
        ctas: 1,
        swizzle: 128,
        teams: 1,
        samples_first: false,
        splits: 1,
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

/// Keys of a CTA of the kernel that adds up parts: four of each of its warps.
const SUMMED_KEYS: usize = 16;

/// The programs of a backward pass.
pub(in crate::native::sm90) struct BackwardPrograms {
    /// What makes the statistics.
    pub delta: Arc<Cubin>,
    /// What joins lists.
    pub lists: Arc<Cubin>,
    /// What turns lists around.
    pub inverse: Arc<Cubin>,
    /// The gradient of queries.
    pub queries: Arc<Cubin>,
    /// What cuts inverse lists into parts.
    pub parts: Arc<Cubin>,
    /// The gradients of keys and values.
    pub keys: Arc<Cubin>,
    /// What adds up those of parts.
    pub sums: Arc<Cubin>,
}

/// The `Params` of the kernel for queries, with the kernels' `Union` behind its two addresses.
#[repr(C)]
#[derive(Clone, Copy)]
struct QueryParams {
    pointers: [u64; 8],
    of: [i32; 10],
    strides: [[i64; 3]; 4],
    scale: f32,
    scale_log2: f32,
}

const _: () = assert!(size_of::<QueryParams>() == 8 * (8 + 12) + 4 * 12);

/// Those of the kernels for keys and for their sums.
#[repr(C)]
#[derive(Clone, Copy)]
struct KeyParams {
    pointers: [u64; 11],
    inverse: [i32; 4],
    strides: [[i64; 3]; 4],
    queries: i32,
    keys: i32,
    heads: i32,
    heads_kv: i32,
    query_block: i32,
    origin: i32,
    step: i32,
    scale: f32,
    scale_log2: f32,
    first_pair: i32,
}

const _: () = assert!(size_of::<KeyParams>() == 8 * (11 + 12) + 4 * 14);

/// Whether launches can read and write these tensors and lists.
///
/// # Errors
///
/// [`KernelError`] that says why not.
pub(in crate::native::sm90) fn check_backward(
    of: &Union,
    sparse: &BlockSparse,
    inputs: &Saved<Strided>,
    lists: &Handle,
    outputs: &Operands<Option<Handle>>,
) -> Result<(), KernelError> {
    check_lists(sparse, lists)?;
    backward::check([cut(of, Pass::Queries)], &sparse.problem, inputs, outputs)
}

/// Enqueues a backward pass on tensors that are [checked](check_backward).
///
/// # Errors
///
/// [`KernelError`] if lists cannot be turned around. Nothing was launched then.
#[allow(clippy::too_many_arguments)]
pub(in crate::native::sm90) fn enqueue_backward(
    client: &Client,
    device: &DeviceInfo,
    programs: &BackwardPrograms,
    of: &Union,
    sparse: &BlockSparse,
    inputs: &Saved<Strided>,
    lists: &Handle,
    outputs: &Operands<Option<Handle>>,
) -> Result<(), KernelError> {
    let walk = Walk { of, sparse };
    let problem = &sparse.problem;
    let of_keys = KeyGradients { client, problem, size: forward::ELEMENT, is_joint: true };
    let (dq, of_key) = (&outputs.query, of_keys.own(outputs));
    if walk.tiles() == 0 || (dq.is_none() && of_key.is_none()) {
        return Ok(());
    }
    // What can fail comes first.
    let inverse = of_key
        .is_some()
        .then(|| turn_lists(client, &programs.inverse, sparse, lists, Items::Lists))
        .transpose()?;
    let statistics = statistics(client, &programs.delta, problem, inputs);
    if let Some(dq) = dq {
        let joined = walk.join(client, &programs.lists, lists);
        walk.queries(client, device, &programs.queries, inputs, &statistics, &joined, dq);
    }
    if let (Some(of_key), Some(inverse)) = (of_key, inverse) {
        walk.keys(client, programs, inputs, &statistics, &inverse, &of_key);
    }
    Ok(())
}

/// Enqueues what makes the statistics.
fn statistics(
    client: &Client,
    cubin: &Arc<Cubin>,
    problem: &Problem,
    inputs: &Saved<Strided>,
) -> Handle {
    let workspace = backward::Workspace::new(client, statistics_bytes(problem), 1, None);
    backward::launch_delta(client, cubin, problem, inputs, &workspace);
    workspace.statistics
}

/// Query, key, value and the gradient of the output.
fn read(inputs: &Saved<Strided>) -> [&Strided; 4] {
    let Operands { query, key, value, .. } = &inputs.operands;
    [query, key, value, &inputs.gradients.out]
}

impl Walk<'_> {
    fn scales(&self) -> [f32; 2] {
        let scale = self.sparse.problem.scale;
        [scale as f32, (scale * std::f64::consts::LOG2_E) as f32]
    }

    #[allow(clippy::too_many_arguments)]
    fn queries(
        &self,
        client: &Client,
        device: &DeviceInfo,
        cubin: &Arc<Cubin>,
        inputs: &Saved<Strided>,
        statistics: &Handle,
        joined: &Joined,
        dq: &Handle,
    ) {
        let problem = &self.sparse.problem;
        let tensors = read(inputs);
        let mut buffers: Vec<Buffer> =
            tensors.iter().map(|tensor| Buffer::read(&tensor.handle)).collect();
        buffers.extend([
            Buffer::read(statistics),
            Buffer::read(&joined.items),
            Buffer::read(&joined.counts),
            Buffer::written(dq),
        ]);
        let [scale, scale_log2] = self.scales();
        let params = QueryParams {
            pointers: [0; 8],
            of: self.numbers(),
            strides: tensors.map(strides),
            scale,
            scale_log2,
        };
        // SAFETY: the assertion above counts every byte.
        let params = unsafe { parameters(params, &[7, 0, 1, 2, 3, 4, 5, 6]) };
        let grid = self.grid(device, Pass::Queries);
        let arguments = vec![
            Argument::TensorMap(grid.key_map(1, tensors[1], problem.head_dim)),
            Argument::TensorMap(grid.key_map(2, tensors[2], problem.head_dim_v)),
            params,
        ];
        launch(client, self.kernel(device, cubin, c"attention_backward"), buffers, arguments);
    }

    /// Of lists of blocks of so many queries, or with an entry of a query each, of so many of its list.
    fn key_params(
        &self,
        tensors: [&Strided; 4],
        parts: &Parts,
        query_block: usize,
        first_pair: usize,
    ) -> KeyParams {
        let problem = &self.sparse.problem;
        let [scale, scale_log2] = self.scales();
        KeyParams {
            pointers: [0; 11],
            inverse: parts.numbers(),
            strides: tensors.map(strides),
            queries: problem.queries() as i32,
            keys: problem.keys() as i32,
            heads: problem.heads as i32,
            heads_kv: problem.heads_kv as i32,
            query_block: query_block as i32,
            origin: self.origin(),
            step: self.step() as i32,
            scale,
            scale_log2,
            first_pair: first_pair as i32,
        }
    }

    fn keys(
        &self,
        client: &Client,
        programs: &BackwardPrograms,
        inputs: &Saved<Strided>,
        statistics: &Handle,
        inverse: &Inverse,
        outputs: &KeyValue<Handle>,
    ) {
        let Self { of, sparse } = self;
        let problem = &sparse.problem;
        let pairs = problem.batch * problem.heads_kv;
        let parts = Parts::find(client, &programs.parts, self, inverse);
        let sum = size_of::<f32>() * of.keys * (problem.head_dim + problem.head_dim_v);
        let sums = client.empty((pairs * parts.most_slots).max(1) * sum);
        let behind = size_of::<u32>() * inverse.starts;
        let kernel = |cubin: &Arc<Cubin>, entry, grid: usize, block: usize, shared: usize| Kernel {
            cubin: cubin.clone(),
            entry,
            grid: grid as u32,
            block: block as u32,
            shared_memory: shared as u32,
        };

        let tensors = read(inputs);
        let query_block = sparse.query_block[MAX_RANK - 1].min(problem.queries());
        let params = self.key_params(tensors, &parts, query_block, 0);
        let run = |kernel: Kernel, table: &Handle, sums: Buffer| {
            let KeyValue { key, value } = outputs;
            let mut buffers = vec![Buffer::written(key), Buffer::written(value)];
            buffers.extend(tensors.iter().map(|tensor| Buffer::read(&tensor.handle)));
            buffers.extend([Buffer::read(statistics), Buffer::read(table), sums]);
            buffers.push(Buffer::read(&inverse.handle));
            let pointers = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9];
            // SAFETY: the assertion above counts every byte.
            let params = unsafe { parameters(params, &pointers) }.behind(10, behind);
            launch(client, kernel, buffers, vec![params]);
        };
        let (keys, threads) = (c"attention_backward", of.threads());
        let attend = kernel(&programs.keys, keys, pairs * parts.most, threads, of.keys_memory());
        run(attend, &parts.table, Buffer::written(&sums));
        let ctas = pairs * problem.keys().div_ceil(SUMMED_KEYS);
        let add = kernel(&programs.sums, c"attention_sums", ctas, 128, 0);
        run(add, &parts.slots, Buffer::read(&sums));
    }
}
