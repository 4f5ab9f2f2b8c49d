//! The backward pass that goes from block to block.

use std::sync::Arc;

use cubecl::client::Client;
use cubecl::server::Handle;

use super::super::Union;
use super::by_block::{ByBlock, JOINING, JOINING_WARPS, VISITING, Visits, run};
use super::{SUMMED_KEYS, Walk, read, statistics, strides};
use crate::native::compile::Cubin;
use crate::native::forward;
use crate::native::grid::parameters;
use crate::native::launch::Buffer;
use crate::view::KeyGradients;
use crate::{BlockSparse, KernelError, KeyValue, Operands, Saved, Strided};

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
    inverse: [i32; 4],
    strides: [[i64; 3]; 4],
    of: Visits,
}

const _: () = assert!(size_of::<BlockParams>() == 8 * (13 + 2 + 12) + size_of::<Visits>());

/// Those of the kernel that adds up rows.
#[repr(C)]
#[derive(Clone, Copy)]
struct QueryParams {
    pointers: [u64; 9],
    strides: [[i64; 3]; 4],
    of: Visits,
}

const _: () = assert!(size_of::<QueryParams>() == 8 * (9 + 12) + size_of::<Visits>());

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
    let problem = &sparse.problem;
    let of_keys = KeyGradients { client, problem, size: forward::ELEMENT, is_joint: true };
    let (Some(dq), Some(KeyValue { key: dk, value: dv })) = (&outputs.query, of_keys.own(outputs))
    else {
        return Ok(());
    };
    let listed = problem.batch * problem.heads_kv * problem.queries() * sparse.entries;
    if listed * sparse.key_blocks() == 0 {
        return Ok(());
    }
    let cubins = [&programs.inverse, &programs.parts];
    let by_block = ByBlock::new(client, cubins, Walk { of, sparse }, lists)?;
    let statistics = statistics(client, &programs.delta, problem, inputs);
    let ByBlock { walk, inverse, parts, .. } = &by_block;

    let at_once = by_block.at_once(of.bytes_of_gradients(parts.listed));
    // And one for rows that are nobody's.
    let rows = at_once * parts.listed * of.group + 1;
    let partial = client.empty(2 * rows * problem.head_dim);
    let scales = client.empty(size_of::<f32>() * rows);
    let sum = size_of::<f32>() * of.keys * (problem.head_dim + problem.head_dim_v);
    let sums = client.empty((at_once * parts.most_slots).max(1) * sum);

    let tensors = read(inputs);
    let given = || tensors.into_iter().map(|tensor| Buffer::read(&tensor.handle));
    let strides = tensors.map(strides);
    for of_launch in by_block.launches(at_once) {
        let now = of_launch.pairs as usize;
        let params =
            BlockParams { pointers: [0; 13], inverse: parts.numbers(), strides, of: of_launch };
        // SAFETY: the assertion at `BlockParams` counts every byte.
        let params = unsafe { parameters(params, &[0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 4, 11, 11]) };
        let params = params.behind(12, by_block.behind());
        let mut buffers = [&dk, &dv, &partial, &scales, &sums].map(Buffer::written).to_vec();
        buffers.extend(given());
        buffers.extend([&statistics, &parts.table, &inverse.handle].map(Buffer::read));
        let cover = [now * parts.most, VISITING, of.gradients_memory()];
        run(client, &programs.blocks, c"attention_backward", cover, buffers, params);

        let params = QueryParams { pointers: [0; 9], strides, of: of_launch };
        // SAFETY: the assertion at `QueryParams` counts every byte.
        let params = unsafe { parameters(params, &[0, 1, 2, 3, 4, 5, 6, 7, 8]) };
        let mut buffers = vec![Buffer::written(dq)];
        buffers.extend(given());
        buffers.extend([&statistics, &partial, &scales, lists].map(Buffer::read));
        let cover = [(now * problem.queries() * of.group).div_ceil(JOINING_WARPS), JOINING, 0];
        run(client, &programs.queries, c"attention_gradients", cover, buffers, params);

        let params = walk.key_params(tensors, parts, sparse.entries, of_launch.first_pair as usize);
        // SAFETY: the assertion at `KeyParams` counts every byte.
        let params = unsafe { parameters(params, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9]) };
        let params = params.behind(10, by_block.behind());
        let mut buffers = [&dk, &dv].map(Buffer::written).to_vec();
        buffers.extend(given());
        buffers.extend([&statistics, &parts.slots, &sums, &inverse.handle].map(Buffer::read));
        let cover = [now * problem.keys().div_ceil(SUMMED_KEYS), JOINING, 0];
        run(client, &programs.sums, c"attention_sums", cover, buffers, params);
    }
    Ok(())
}
