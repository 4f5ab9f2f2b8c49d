//! Launches of the forward kernels, which all architectures' take alike.

use std::mem::offset_of;
use std::sync::Arc;

use cubecl::client::Client;
use cubecl::server::Handle;

use super::Cut;
use super::bias::{Bias, BiasParams};
use super::compile::Cubin;
use super::grid::{Grid, Space, check_layout, grids, parameters};
use super::launch::{Argument, Buffer, DeviceInfo, launch};
use crate::view::{check_operands, check_outputs};
use crate::{KernelError, KeyValue, MAX_RANK, Operand, Operands, Outputs, Problem, Strided};

/// Bytes of an element.
pub(super) const ELEMENT: usize = 2;

/// Whether a launch can read and write these tensors.
///
/// # Errors
///
/// [`KernelError`] that says why not.
pub(super) fn check(
    cut: &Cut,
    problem: &Problem,
    inputs: &Operands<Strided>,
    outputs: &Outputs<Handle>,
) -> Result<(), KernelError> {
    check_operands(problem, inputs, ELEMENT)?;
    check_outputs(problem, outputs, ELEMENT)?;
    check_layouts(cut, problem, inputs)
}

/// Enqueues a kernel on tensors that are [checked](check).
pub(super) fn enqueue(
    client: &Client,
    device: &DeviceInfo,
    (cut, cubin): (Cut, &Arc<Cubin>),
    problem: &Problem,
    inputs: &Operands<Strided>,
    outputs: &Outputs<Handle>,
) {
    let bias = inputs.bias.as_ref().map(|bias| Bias::new(client, problem, &bias.handle, &[]));
    for grid in grids(cut, problem, device) {
        let kernel = grid.kernel(cubin, c"attention_forward");
        let buffers = buffers(inputs, outputs, bias.as_ref());
        launch(client, kernel, buffers, arguments(&grid, inputs, bias.as_ref()));
    }
}

/// The layouts of what both passes read.
pub(super) fn check_layouts(
    cut: &Cut,
    problem: &Problem,
    operands: &Operands<Strided>,
) -> Result<(), KernelError> {
    // Boxes of it are never loaded.
    let boxed = operands.iter().filter(|(operand, _)| *operand != Operand::Bias);
    boxed.into_iter().try_for_each(|(operand, tensor)| {
        check_layout(operand.name(), tensor, operand.shape(problem), problem, cut)
    })
}

/// Buffers of a launch, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    Query,
    Key,
    Value,
    MoreKey,
    MoreValue,
    Out,
    Lse,
    Entries,
    Sums,
}

pub(super) fn buffers(
    inputs: &Operands<Strided>,
    outputs: &Outputs<Handle>,
    bias: Option<&Bias>,
) -> Vec<Buffer> {
    let Operands { query, key, value, additional, .. } = inputs;
    // The kernel takes the maps of additional tokens in any case.
    let (more_key, more_value) =
        additional.as_ref().map_or((key, value), |more| (&more.key, &more.value));
    let read = [query, key, value, more_key, more_value].map(|tensor| Buffer::read(&tensor.handle));
    let written = [&outputs.out, &outputs.lse].map(Buffer::written);
    let bias = Bias::buffers(bias, &query.handle);
    read.into_iter().chain(written).chain(bias).collect()
}

/// The kernel's `Params`. Addresses are filled in when it is enqueued.
#[repr(C)]
#[derive(Clone, Copy)]
struct Params {
    pointers: [u64; 7],
    strides: [[i64; 5]; 3],
    more_strides: [[i64; 3]; 2],
    space: Space,
    group_size: i32,
    additional: i32,
    scale_log2: f32,
    shift: [i32; MAX_RANK],
    bias: BiasParams,
}

// Seven addresses, 21 strides, the space and 6 more words of four bytes, and what belongs to a bias.
const _: () = assert!(size_of::<Params>() == 8 * (7 + 21) + 4 * (34 + 6) + size_of::<BiasParams>());

pub(super) fn arguments(
    grid: &Grid,
    inputs: &Operands<Strided>,
    bias: Option<&Bias>,
) -> Vec<Argument> {
    let Operands { query, key, value, additional, .. } = inputs;
    let problem = grid.problem;
    let (dim, dim_v) = (problem.head_dim, problem.head_dim_v);
    let mut maps = vec![
        grid.query_map(Slot::Query as usize, query, dim),
        grid.key_map(Slot::Key as usize, key, dim),
        grid.key_map(Slot::Value as usize, value, dim_v),
    ];
    match additional {
        Some(KeyValue { key, value }) => maps.extend([
            grid.map_more(Slot::MoreKey as usize, key, dim),
            grid.map_more(Slot::MoreValue as usize, value, dim_v),
        ]),
        None => maps.extend([maps[1], maps[2]]),
    }
    let params = Params {
        pointers: [0; 7],
        strides: [query, key, value].map(words),
        more_strides: more_strides(additional),
        space: grid.space(),
        group_size: problem.group_size() as i32,
        additional: problem.additional as i32,
        scale_log2: (problem.scale * std::f64::consts::LOG2_E) as f32,
        shift: grid.shift(),
        bias: Bias::params(bias, grid),
    };
    use Slot::*;
    let pointers = [Out, Lse, Query, Key, Value, MoreKey, MoreValue].map(|slot| slot as usize);
    // SAFETY: the assertion above counts every byte.
    let params = unsafe { parameters(params, &pointers) };
    let (at, slots) = (offset_of!(Params, bias), [Entries as usize, Sums as usize]);
    let params = Bias::address(bias, params, at, slots, 0);
    maps.into_iter().map(Argument::TensorMap).chain([params]).collect()
}

/// The strides of a tensor as the kernels take them.
pub(super) fn words(tensor: &Strided) -> [i64; 5] {
    tensor.strides.map(|stride| stride as i64)
}

/// Strides of the additional key and value: batch, token, head.
pub(super) fn more_strides(additional: &Option<KeyValue<Strided>>) -> [[i64; 3]; 2] {
    let of = |tensor: &Strided| {
        let [batch, _, _, token, head] = words(tensor);
        [batch, token, head]
    };
    additional.as_ref().map_or([[0; 3]; 2], |more| [of(&more.key), of(&more.value)])
}
