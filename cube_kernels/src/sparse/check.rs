//! What launches of block-sparse attention refuse.

use cubecl::server::Handle;

use super::{Selected, Selection};
use crate::view::check_buffer;
use crate::{BlockSparse, KernelError, Strided};

/// Fails if a problem is none that the kernels know, or its lists are too small.
pub(crate) fn check_lists(sparse: &BlockSparse, lists: &Handle) -> Result<(), KernelError> {
    check_sizes(sparse).map_err(KernelError::Problem)?;
    check_buffer("blocks", lists, size_of::<i32>() * sparse.list_elements())
}

/// Fails if a selection is none, or a query, compressed keys or lists do not lie in their buffers.
pub(crate) fn check_selection(
    selection: &Selection,
    element: usize,
    tensors: [&Strided; 2],
    lists: &Selected<Handle>,
) -> Result<(), KernelError> {
    selection.check().map_err(KernelError::Problem)?;
    let names = ["query", "compressed key"];
    for ((name, tensor), shape) in names.into_iter().zip(tensors).zip(selection.shapes()) {
        tensor.check(name, shape, element)?;
    }
    let bytes = |entries: usize| size_of::<i32>() * selection.lists() * entries;
    check_buffer("blocks", &lists.blocks, bytes(selection.num_selected))?;
    match (&lists.compressed, selection.cmp_top) {
        (Some(lists), Some(top)) => check_buffer("super-blocks", lists, bytes(top)),
        (None, None) => Ok(()),
        _ => {
            let reason = "there has to be a buffer for lists of super-blocks where cmp_top is set, and nowhere else";
            Err(KernelError::Problem(reason.into()))
        }
    }
}

fn check_sizes(sparse: &BlockSparse) -> Result<(), String> {
    let BlockSparse { problem, query_block, key_block, list_heads, steps, .. } = sparse;
    let (heads, heads_kv) = (problem.heads, problem.heads_kv);
    if problem.additional > 0 || problem.has_bias {
        return Err("block-sparse attention has neither additional tokens nor a bias".into());
    }
    if heads == 0 || heads_kv == 0 || !heads.is_multiple_of(heads_kv) {
        let bound = "heads_kv has to be at least 1 and to divide heads";
        return Err(format!("{bound}, which are {heads}; got {heads_kv}"));
    }
    if *list_heads != heads && *list_heads != heads_kv {
        let known = format!("heads, {heads}, or heads_kv, {heads_kv}");
        return Err(format!("list_heads has to be {known}; got {list_heads}"));
    }
    for (index, axis) in problem.axes.iter().enumerate() {
        if !axis.is_dense() {
            return Err(format!("axes of block-sparse attention are dense; got {axis:?}"));
        }
        let (query, key, step) = (query_block[index], key_block[index], steps[index]);
        if query == 0 || key == 0 || step == 0 {
            let got = format!("{query_block:?}, {key_block:?} and {steps:?}");
            return Err(format!("blocks and steps have to be at least 1; got {got}"));
        }
        if axis.keys.checked_mul(step).is_none_or(|end| end > i32::MAX as usize) {
            let keys = axis.keys;
            return Err(format!("{keys} keys with a step of {step} end behind 2^31 tokens"));
        }
    }
    let keys = sparse.key_blocks();
    if keys > i32::MAX as usize {
        return Err(format!("lists of 32-bit numbers cannot name {keys} blocks of keys"));
    }
    Ok(())
}
