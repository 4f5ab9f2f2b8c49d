//! The selection of native sparse attention on a device.

use cubecl::client::Client;
use cubecl::server::Handle;

use super::forward::hopper;
use super::program::Program;
use super::{Element, SelectSchedule};
use crate::native::grid::parameters;
use crate::native::launch::{Argument, Buffer, Kernel, MapElement, TensorMap, launch};
use crate::sparse::{Selected, Selection, check_selection};
use crate::view::check_buffer;
use crate::{KernelError, Shape, Strided};

/// [Selects blocks](crate::sparse::select_blocks) by the tensor cores, in f16 or bf16.
///
/// `lse` is the logsumexp `[batch, rows, heads]` of attention to the compressed keys, in f32, if there has been one: without it the
/// keys are walked over twice.
///
/// Returns when the work is enqueued; the first use of a schedule compiles it. No workspace. A list depends on what its first query
/// sees and on the logsumexps of its rows, and on nothing else: not on how many queries there are, nor on what other rows are computed
/// beside it.
///
/// # Errors
///
/// [`KernelError`] if nothing was launched.
pub fn select_blocks(
    client: &Client,
    selection: &Selection,
    element: Element,
    query: &Strided,
    key: &Strided,
    lse: Option<&Handle>,
    lists: &Selected<Handle>,
) -> Result<(), KernelError> {
    let device = hopper(client)?;
    check_selection(selection, 2, [query, key], lists)?;
    let [query_shape, key_shape] = selection.shapes();
    if key_shape.elements() == 0 {
        return Err(KernelError::Problem("there are no compressed keys".into()));
    }
    if let Some(lse) = lse {
        let rows = selection.batch * selection.rows * selection.heads;
        check_buffer("logsumexp", lse, size_of::<f32>() * rows)?;
    }
    check_layout("query", query, query_shape)?;
    check_layout("compressed key", key, key_shape)?;
    let both = [Some((&lists.blocks, false)), lists.compressed.as_ref().map(|of| (of, true))];
    let kernels = both.into_iter().flatten().map(|(lists, is_super)| {
        let multiprocessors = device.multiprocessors as usize;
        let schedule = SelectSchedule::plan(selection, element, is_super, multiprocessors);
        let schedule = schedule.map_err(KernelError::Problem)?;
        let kernel = Kernel {
            cubin: Program::Select(schedule).load(&device)?,
            entry: c"select_blocks",
            grid: schedule.ctas(selection) as u32,
            block: 128 * schedule.warpgroups as u32,
            shared_memory: schedule.shared_memory() as u32,
        };
        Ok((kernel, lists, is_super))
    });
    let kernels: Vec<_> = kernels.collect::<Result<_, KernelError>>()?;
    for (kernel, lists, is_super) in kernels.into_iter().filter(|(kernel, ..)| kernel.grid > 0) {
        let buffers = vec![
            Buffer::written(lists),
            Buffer::read(&query.handle),
            Buffer::read(&key.handle),
            Buffer::read(lse.unwrap_or(&query.handle)),
        ];
        let map = Argument::TensorMap(key_map(element, key, key_shape));
        let params = params(selection, query, lse.is_some(), is_super);
        launch(client, kernel, buffers, vec![map, params]);
    }
    Ok(())
}

/// The kernel's `Params`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    pointers: [u64; 3],
    strides: [i64; 3],
    batch: i32,
    heads_kv: i32,
    tiles: i32,
    rows: i32,
    has_lse: i32,
    offset: i32,
    query_tile: i32,
    cmp_block: i32,
    cmp_stride: i32,
    size: i32,
    num_init: i32,
    num_local: i32,
    blocks: i32,
    entries: i32,
    scale_log2: f32,
    signs: u32,
}

const _: () = assert!(size_of::<Params>() == 8 * 6 + 4 * 16);

fn params(selection: &Selection, query: &Strided, has_lse: bool, is_super: bool) -> Argument {
    let (size, blocks, entries) = match is_super {
        true => {
            (selection.cmp_group, selection.super_blocks(), selection.cmp_top.unwrap_or_default())
        }
        false => (selection.slc_block, selection.blocks(), selection.num_selected),
    };
    let [batch, _, _, row, head] = query.strides.map(|stride| stride as i64);
    let params = Params {
        pointers: [0; 3],
        strides: [batch, row, head],
        batch: selection.batch as i32,
        heads_kv: selection.heads_kv as i32,
        tiles: selection.tiles() as i32,
        rows: selection.rows as i32,
        has_lse: i32::from(has_lse),
        offset: (selection.tokens - selection.rows) as i32,
        query_tile: selection.query_tile as i32,
        cmp_block: selection.cmp_block as i32,
        cmp_stride: selection.cmp_stride as i32,
        size: size as i32,
        num_init: selection.num_init as i32,
        num_local: selection.num_local as i32,
        blocks: blocks as i32,
        entries: entries as i32,
        scale_log2: (selection.scale.abs() * std::f64::consts::LOG2_E) as f32,
        signs: if selection.scale < 0.0 { 0x8000_8000 } else { 0 },
    };
    // SAFETY: the assertion above counts every byte.
    unsafe { parameters(params, &[0, 1, 3]) }
}

/// Boxes of 64 keys of a sample and a head, 64 elements wide, with zeros behind the ends of both.
fn key_map(element: Element, key: &Strided, shape: Shape) -> TensorMap {
    let [batch, _, _, token, head] = key.strides;
    // The stride of a dimension of one element is never used, but has to be valid.
    let bytes = |stride: usize, size: usize| if size == 1 { 16 } else { 2 * stride as u64 };
    let [_, _, tokens] = shape.tokens;
    TensorMap {
        buffer: 2,
        offset: 0,
        element: match element {
            Element::F16 => MapElement::F16,
            Element::Bf16 => MapElement::Bf16,
        },
        sizes: [shape.dim, tokens, shape.batch, 1, shape.heads].map(|size| size as u64),
        strides: [bytes(token, tokens), bytes(batch, shape.batch), 16, bytes(head, shape.heads)],
        tile: [64, 64, 1, 1, 1],
        steps: [1; 5],
    }
}

/// TMA takes addresses and strides in multiples of 16 bytes; of queries pairs are read.
fn check_layout(name: &'static str, tensor: &Strided, shape: Shape) -> Result<(), KernelError> {
    let taken = tensor.strides.iter().zip(shape.lengths()).filter(|(_, length)| *length > 1);
    let mut strides = taken.map(|(stride, _)| *stride);
    let fits = strides.all(|stride| stride > 0 && stride % 8 == 0 && stride < 1 << 39);
    if !fits || !tensor.handle.offset_start.unwrap_or(0).is_multiple_of(16) {
        let reason = "TMA takes addresses and strides in multiples of 16 bytes";
        return Err(KernelError::Layout { name, reason });
    }
    Ok(())
}
