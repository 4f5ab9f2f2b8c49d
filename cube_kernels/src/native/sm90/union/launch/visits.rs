//! The forward pass that goes from block to block.

use std::sync::Arc;

use cubecl::client::Client;
use cubecl::server::Handle;

use super::super::Union;
use super::quotient::quotient;
use super::{PART, Walk, find_parts, strides};
use crate::native::compile::Cubin;
use crate::native::grid::parameters;
use crate::native::launch::{Buffer, Kernel, launch};
use crate::native::sm90::inverse::{Items, invert_lists};
use crate::{BlockSparse, KernelError, Operands, Outputs, Strided};

/// Threads of the kernel that visits blocks, and of the one that puts results together, and warps of that.
const VISITING: usize = 256;
const MERGING: usize = 128;
const MERGING_WARPS: usize = MERGING / 32;

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
    listed: i32,
    blocks: i32,
    strides: [[i64; 3]; 3],
    keys: i32,
    heads_kv: i32,
    magic: u32,
    shift: i32,
    first_pair: i32,
    origin: i32,
    step: i32,
    scale_log2: f32,
}

const _: () = assert!(size_of::<VisitParams>() == 8 * (8 + 1 + 9) + 4 * 8);

/// Those of the kernel that puts results together.
#[repr(C)]
#[derive(Clone, Copy)]
struct MergeParams {
    pointers: [u64; 8],
    strides: [[i64; 3]; 3],
    queries: i32,
    keys: i32,
    heads_kv: i32,
    entries: i32,
    blocks: i32,
    first_pair: i32,
    pairs: i32,
    origin: i32,
    step: i32,
    scale_log2: f32,
}

const _: () = assert!(size_of::<MergeParams>() == 8 * (8 + 9) + 4 * 10);

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
    let walk = Walk { of, sparse };
    let problem = &sparse.problem;
    let (pairs, blocks) = (problem.batch * problem.heads_kv, sparse.key_blocks());
    let (queries, entries) = (problem.queries(), sparse.entries);
    let listed = queries * entries;
    if pairs * listed == 0 {
        return Ok(());
    }
    let inverse = invert_lists(client, &programs.inverse, sparse, lists, Items::Entries)?;
    let [most, _] = of.most_parts(blocks, listed);
    let parts = client.empty(PART * pairs * most);
    let slots = client.empty(size_of::<i32>() * pairs * blocks);
    find_parts(client, &programs.parts, &inverse, [pairs, listed, blocks], [&parts, &slots]);

    // The samples and key heads of a launch, of which there are as few as need be, and all about as long.
    let at_once = (of.results / of.bytes_of_visits(listed).max(1)).clamp(1, pairs);
    let at_once = pairs.div_ceil(pairs.div_ceil(at_once));
    let rows = at_once * listed * of.group;
    let partial = client.empty(2 * rows * problem.head_dim_v);
    let partial_lse = client.empty(size_of::<f32>() * rows);
    let Operands { query, key, value, .. } = inputs;
    let tensors = [query, key, value].map(strides);
    let scale_log2 = (problem.scale * std::f64::consts::LOG2_E) as f32;
    let [origin, step] = [walk.origin(), walk.step() as i32];
    let [q, k, heads_kv, e] =
        [queries, problem.keys(), problem.heads_kv, entries].map(|number| number as i32);
    let (magic, shift) = quotient(entries as u32);
    for first_pair in (0..pairs).step_by(at_once) {
        let now = at_once.min(pairs - first_pair);
        let params = VisitParams {
            pointers: [0; 8],
            listed: listed as i32,
            blocks: blocks as i32,
            strides: tensors,
            keys: k,
            heads_kv,
            magic,
            shift,
            first_pair: first_pair as i32,
            origin,
            step,
            scale_log2,
        };
        // SAFETY: the assertion above counts every byte.
        let params = unsafe { parameters(params, &[0, 1, 2, 3, 4, 5, 6, 6]) };
        let params = params.behind(7, size_of::<u32>() * inverse.starts);
        let kernel = Kernel {
            cubin: programs.visits.clone(),
            entry: c"attention_forward",
            grid: (now * most) as u32,
            block: VISITING as u32,
            shared_memory: of.visits_memory() as u32,
        };
        let buffers = vec![
            Buffer::written(&partial),
            Buffer::written(&partial_lse),
            Buffer::read(&query.handle),
            Buffer::read(&key.handle),
            Buffer::read(&value.handle),
            Buffer::read(&parts),
            Buffer::read(&inverse.handle),
        ];
        launch(client, kernel, buffers, vec![params]);

        let params = MergeParams {
            pointers: [0; 8],
            strides: tensors,
            queries: q,
            keys: k,
            heads_kv,
            entries: e,
            blocks: blocks as i32,
            first_pair: first_pair as i32,
            pairs: now as i32,
            origin,
            step,
            scale_log2,
        };
        // SAFETY: the assertion above counts every byte.
        let params = unsafe { parameters(params, &[0, 1, 2, 3, 4, 5, 6, 7]) };
        let kernel = Kernel {
            cubin: programs.merge.clone(),
            entry: c"attention_merge",
            grid: (now * queries * of.group).div_ceil(MERGING_WARPS) as u32,
            block: MERGING as u32,
            shared_memory: 0,
        };
        let buffers = vec![
            Buffer::written(&outputs.out),
            Buffer::written(&outputs.lse),
            Buffer::read(&query.handle),
            Buffer::read(&key.handle),
            Buffer::read(&value.handle),
            Buffer::read(&partial),
            Buffer::read(&partial_lse),
            Buffer::read(lists),
        ];
        launch(client, kernel, buffers, vec![params]);
    }
    Ok(())
}
