//! The forward pass that goes from block to block.

use std::sync::Arc;

use cubecl::client::Client;
use cubecl::server::Handle;

use super::super::Union;
use super::by_block::{ByBlock, JOINING, JOINING_WARPS, VISITING, Visits, run};
use super::{Walk, strides};
use crate::native::compile::Cubin;
use crate::native::grid::parameters;
use crate::native::launch::Buffer;
use crate::{BlockSparse, KernelError, Operands, Outputs, Strided};

/// Its programs.
pub(in crate::native::sm90) struct VisitPrograms {
    /// What turns lists around.
    pub inverse: Arc<Cubin>,
    /// What cuts inverse lists into parts.
    pub parts: Arc<Cubin>,
    /// What attends.
    pub visits: Arc<Cubin>,
    /// What puts results together.
    pub merge: Arc<Cubin>,
}

/// The `Params` of the kernel that attends.
#[repr(C)]
#[derive(Clone, Copy)]
struct VisitParams {
    pointers: [u64; 8],
    inverse: [i32; 4],
    strides: [[i64; 3]; 3],
    of: Visits,
}

const _: () = assert!(size_of::<VisitParams>() == 8 * (8 + 2 + 9) + size_of::<Visits>());

/// Those of the kernel that puts results together.
#[repr(C)]
#[derive(Clone, Copy)]
struct MergeParams {
    pointers: [u64; 8],
    strides: [[i64; 3]; 3],
    of: Visits,
}

const _: () = assert!(size_of::<MergeParams>() == 8 * (8 + 9) + size_of::<Visits>());

/// Enqueues it on tensors that are [checked](super::check_forward), by kernels that are [`Union::visits`].
///
/// # Errors
///
/// [`KernelError`] if lists cannot be turned around. Nothing was launched then.
pub(in crate::native::sm90) fn enqueue_visits(
    client: &Client,
    programs: &VisitPrograms,
    of: &Union,
    sparse: &BlockSparse,
    inputs: &Operands<Strided>,
    lists: &Handle,
    outputs: &Outputs<Handle>,
) -> Result<(), KernelError> {
    let problem = &sparse.problem;
    if problem.batch * problem.heads_kv * problem.queries() * sparse.entries == 0 {
        return Ok(());
    }
    let cubins = [&programs.inverse, &programs.parts];
    let by_block = ByBlock::new(client, cubins, Walk { of, sparse }, lists)?;
    let at_once = by_block.at_once(of.bytes_of_visits(by_block.parts.listed));
    let rows = at_once * by_block.parts.listed * of.group;
    let partial = client.empty(2 * rows * problem.head_dim_v);
    let partial_lse = client.empty(size_of::<f32>() * rows);
    let Operands { query, key, value, .. } = inputs;
    let tensors = [query, key, value];
    let given = || tensors.into_iter().map(|tensor| Buffer::read(&tensor.handle));
    let strides = tensors.map(strides);
    for of_launch in by_block.launches(at_once) {
        let now = of_launch.pairs as usize;
        let params = VisitParams {
            pointers: [0; 8],
            inverse: by_block.parts.numbers(),
            strides,
            of: of_launch,
        };
        // SAFETY: the assertion at `VisitParams` counts every byte.
        let params = unsafe { parameters(params, &[0, 1, 2, 3, 4, 5, 6, 6]) };
        let params = params.behind(7, by_block.behind());
        let mut buffers = [&partial, &partial_lse].map(Buffer::written).to_vec();
        buffers.extend(given());
        buffers.extend([&by_block.parts.table, &by_block.inverse.handle].map(Buffer::read));
        let cover = [now * by_block.parts.most, VISITING, of.visits_memory()];
        run(client, &programs.visits, c"attention_forward", cover, buffers, params);

        let params = MergeParams { pointers: [0; 8], strides, of: of_launch };
        // SAFETY: the assertion at `MergeParams` counts every byte.
        let params = unsafe { parameters(params, &[0, 1, 2, 3, 4, 5, 6, 7]) };
        let mut buffers = [&outputs.out, &outputs.lse].map(Buffer::written).to_vec();
        buffers.extend(given());
        buffers.extend([&partial, &partial_lse, lists].map(Buffer::read));
        let cover = [(now * problem.queries() * of.group).div_ceil(JOINING_WARPS), JOINING, 0];
        run(client, &programs.merge, c"attention_merge", cover, buffers, params);
    }
    Ok(())
}
