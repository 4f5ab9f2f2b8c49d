//! The backward pass that goes from block to block.

use std::sync::Arc;

use cubecl::client::Client;
use cubecl::server::Handle;

use super::super::Union;
use super::quotient::quotient;
use super::{KeyParams, PART, Walk, find_parts, read, strides};
use crate::native::compile::Cubin;
use crate::native::grid::parameters;
use crate::native::launch::{Buffer, Kernel, launch};
use crate::native::sm90::inverse::{Items, invert_lists};
use crate::native::statistics::statistics_bytes;
use crate::native::{backward, forward};
use crate::view::KeyGradients;
use crate::{BlockSparse, KernelError, KeyValue, Operands, Saved, Strided};

/// Threads of the kernel that visits blocks, and of those that add up, and warps of these.
const VISITING: usize = 256;
const ADDING: usize = 128;
const ADDING_WARPS: usize = ADDING / 32;

/// Its programs.
pub(in crate::native::sm90) struct GradientPrograms {
    /// What makes the statistics.
    pub delta: Arc<Cubin>,
    /// What turns lists around.
    pub inverse: Arc<Cubin>,
    /// What cuts inverse lists into parts.
    pub parts: Arc<Cubin>,
    /// The gradients of keys and values, and rows of those of queries.
    pub blocks: Arc<Cubin>,
    /// What adds up these rows.
    pub queries: Arc<Cubin>,
    /// What adds up the gradients of parts.
    pub sums: Arc<Cubin>,
}

/// The `Params` of the kernel that visits blocks.
#[repr(C)]
#[derive(Clone, Copy)]
struct BlockParams {
    pointers: [u64; 13],
    listed: i32,
    blocks: i32,
    strides: [[i64; 3]; 4],
    queries: i32,
    keys: i32,
    heads_kv: i32,
    magic: u32,
    shift: i32,
    first_pair: i32,
    pairs: i32,
    origin: i32,
    step: i32,
    scale: f32,
    scale_log2: f32,
    padding: i32,
}

const _: () = assert!(size_of::<BlockParams>() == 8 * (13 + 12) + 4 * 14);

/// Those of the kernel that adds up rows.
#[repr(C)]
#[derive(Clone, Copy)]
struct QueryParams {
    pointers: [u64; 9],
    strides: [[i64; 3]; 4],
    queries: i32,
    keys: i32,
    heads_kv: i32,
    entries: i32,
    blocks: i32,
    first_pair: i32,
    pairs: i32,
    origin: i32,
    step: i32,
    scale: f32,
    scale_log2: f32,
    padding: i32,
}

const _: () = assert!(size_of::<QueryParams>() == 8 * (9 + 12) + 4 * 12);

/// Enqueues it on tensors that are [checked](super::check_backward), by kernels that are [`Union::visits`], for gradients of queries as well
/// as of keys or values.
///
/// # Errors
///
/// [`KernelError`] if lists cannot be turned around. Nothing was launched then.
pub(in crate::native::sm90) fn enqueue_gradients(
    client: &Client,
    programs: &GradientPrograms,
    of: &Union,
    sparse: &BlockSparse,
    inputs: &Saved<Strided>,
    lists: &Handle,
    outputs: &Operands<Option<Handle>>,
) -> Result<(), KernelError> {
    let walk = Walk { of, sparse };
    let problem = &sparse.problem;
    let of_keys = KeyGradients { client, problem, size: forward::ELEMENT, is_joint: true };
    let (Some(dq), Some(KeyValue { key: dk, value: dv })) = (&outputs.query, of_keys.own(outputs))
    else {
        return Ok(());
    };
    let (pairs, blocks) = (problem.batch * problem.heads_kv, sparse.key_blocks());
    let (queries, entries) = (problem.queries(), sparse.entries);
    let listed = queries * entries;
    if pairs * listed * blocks == 0 {
        return Ok(());
    }
    let inverse = invert_lists(client, &programs.inverse, sparse, lists, Items::Entries)?;
    let [most, most_slots] = of.most_parts(blocks, listed);
    let parts = client.empty(PART * pairs * most);
    let slots = client.empty(size_of::<i32>() * pairs * blocks);
    find_parts(client, &programs.parts, &inverse, [pairs, listed, blocks], [&parts, &slots]);
    let workspace = backward::Workspace {
        statistics: client.empty(statistics_bytes(problem)),
        taken: client.empty(size_of::<i32>()),
        bias: None,
    };
    backward::launch_delta(client, &programs.delta, problem, inputs, &workspace, 1);

    // The samples and key heads of a launch, of which there are as few as need be, and all about as long.
    let at_once = (of.results / of.bytes_of_gradients(listed).max(1)).clamp(1, pairs);
    let at_once = pairs.div_ceil(pairs.div_ceil(at_once));
    // And one for rows that are nobody's.
    let rows = at_once * listed * of.group + 1;
    let partial = client.empty(2 * rows * problem.head_dim);
    let scales = client.empty(size_of::<f32>() * rows);
    let sum = size_of::<f32>() * of.keys * (problem.head_dim + problem.head_dim_v);
    let sums = client.empty((at_once * most_slots).max(1) * sum);

    let tensors = read(inputs);
    let statistics = &workspace.statistics;
    let behind = size_of::<u32>() * inverse.starts;
    let [scale, scale_log2] = walk.scales();
    let [origin, step] = [walk.origin(), walk.step() as i32];
    let numbers = [queries, problem.keys(), problem.heads, problem.heads_kv, entries];
    let [q, k, heads, heads_kv, e] = numbers.map(|number| number as i32);
    let (magic, shift) = quotient(entries as u32);
    let run = |cubin: &Arc<Cubin>, entry, [grid, block, shared]: [usize; 3], buffers, params| {
        let kernel = Kernel {
            cubin: cubin.clone(),
            entry,
            grid: grid as u32,
            block: block as u32,
            shared_memory: shared as u32,
        };
        launch(client, kernel, buffers, vec![params]);
    };
    let given = || tensors.iter().map(|tensor| Buffer::read(&tensor.handle));
    for first_pair in (0..pairs).step_by(at_once) {
        let now = at_once.min(pairs - first_pair);
        let params = BlockParams {
            pointers: [0; 13],
            listed: listed as i32,
            blocks: blocks as i32,
            strides: tensors.map(strides),
            queries: q,
            keys: k,
            heads_kv,
            magic,
            shift,
            first_pair: first_pair as i32,
            pairs: now as i32,
            origin,
            step,
            scale,
            scale_log2,
            padding: 0,
        };
        // SAFETY: the assertion at `BlockParams` counts every byte.
        let params = unsafe { parameters(params, &[0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 4, 11, 11]) };
        let written = [&dk, &dv, &partial, &scales, &sums];
        let mut buffers: Vec<_> = written.into_iter().map(Buffer::written).collect();
        buffers.extend(given());
        buffers.extend([statistics, &parts, &inverse.handle].map(Buffer::read));
        let cover = [now * most, VISITING, of.gradients_memory()];
        run(&programs.blocks, c"attention_backward", cover, buffers, params.behind(12, behind));

        let params = QueryParams {
            pointers: [0; 9],
            strides: tensors.map(strides),
            queries: q,
            keys: k,
            heads_kv,
            entries: e,
            blocks: blocks as i32,
            first_pair: first_pair as i32,
            pairs: now as i32,
            origin,
            step,
            scale,
            scale_log2,
            padding: 0,
        };
        // SAFETY: the assertion at `QueryParams` counts every byte.
        let params = unsafe { parameters(params, &[0, 1, 2, 3, 4, 5, 6, 7, 8]) };
        let mut buffers = vec![Buffer::written(dq)];
        buffers.extend(given());
        buffers.extend([statistics, &partial, &scales, lists].map(Buffer::read));
        let cover = [(now * queries * of.group).div_ceil(ADDING_WARPS), ADDING, 0];
        run(&programs.queries, c"attention_gradients", cover, buffers, params);

        let params = KeyParams {
            pointers: [0; 11],
            listed: listed as i32,
            blocks: blocks as i32,
            strides: tensors.map(strides),
            queries: q,
            keys: k,
            heads,
            heads_kv,
            query_block: e,
            origin,
            step,
            scale,
            scale_log2,
            first_pair: first_pair as i32,
        };
        // SAFETY: the assertion at `KeyParams` counts every byte.
        let params = unsafe { parameters(params, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9]) };
        let mut buffers = [&dk, &dv].map(Buffer::written).to_vec();
        buffers.extend(given());
        buffers.extend([statistics, &slots, &sums, &inverse.handle].map(Buffer::read));
        let cover = [now * problem.keys().div_ceil(ADDING_WARPS), ADDING, 0];
        run(&programs.sums, c"attention_sums", cover, buffers, params.behind(10, behind));
    }
    Ok(())
}
