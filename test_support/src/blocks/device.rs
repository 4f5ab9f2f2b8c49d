//! Tensors and lists on a device, from `f64` vectors, as views and contiguous.

use burn_natten_kernels::{BlockSparse, Operand, Operands, Outputs, Saved, Shape, Strided};
use cubecl::client::Client;
use cubecl::server::Handle;

use crate::Data;
use crate::compare::is_webgpu;
use crate::format::{F32, Format};

/// How tensors that may be views lie in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Layout {
    Contiguous,
    /// `[batch, heads, x, y, z, vector]`
    Swapped,
    /// A part of a larger tensor along every axis, the vectors' included.
    Cropped,
    /// The same, with vectors of 16 bytes that stay whole, samples that follow each other without a gap, and two bytes an element.
    Aligned,
}

pub const LAYOUTS: [Layout; 3] = [Layout::Contiguous, Layout::Swapped, Layout::Cropped];

/// Where the elements of a tensor are, in their order.
pub fn places(shape: Shape, strides: [usize; 5]) -> impl Iterator<Item = usize> {
    (0..shape.elements()).map(move |number| {
        let (mut rest, mut at) = (number / shape.dim, number % shape.dim);
        for (length, stride) in shape.lengths().into_iter().zip(strides).rev() {
            at += rest % length * stride;
            rest /= length;
        }
        at
    })
}

/// A tensor among NaN.
pub fn view(
    client: &Client,
    format: Format,
    values: &[f64],
    shape: Shape,
    layout: Layout,
) -> Strided {
    let [_, z, y, x, heads] = shape.lengths();
    let (strides, offset) = match layout {
        Layout::Contiguous => (shape.strides(), 0),
        Layout::Swapped => {
            let z_step = shape.dim;
            let (y_step, x_step) = (z_step * z, z_step * z * y);
            let head = x_step * x;
            ([head * heads, z_step, y_step, x_step, head], 0)
        }
        Layout::Cropped => {
            // Vectors of 4 stay whole.
            let head = shape.dim.next_multiple_of(4) + 4;
            let x_step = head * (heads + 1);
            let y_step = x_step * (x + 2);
            let z_step = y_step * (y + 1);
            ([z_step * (z + 1), z_step, y_step, x_step, head], y_step + x_step + head)
        }
        Layout::Aligned => {
            let head = shape.dim.next_multiple_of(8) + 8;
            let x_step = head * (heads + 1);
            let y_step = x_step * (x + 2);
            let z_step = y_step * (y + 1);
            ([z_step * z, z_step, y_step, x_step, head], y_step + x_step + head)
        }
    };
    let offset = bound(client, offset * format.elem().size()) / format.elem().size();
    let mut memory = vec![f64::NAN; (offset + shape.extent(strides)).max(4)];
    assert_eq!(values.len(), shape.elements());
    for (place, value) in places(shape, strides).zip(values) {
        memory[offset + place] = *value;
    }
    let handle = format.upload(client, &memory);
    Strided { handle: handle.offset_start((offset * format.elem().size()) as u64), strides }
}

/// Where memory may begin that is handed to kernels, from a number of bytes on: anywhere, but where WGSL binds buffers.
fn bound(client: &Client, bytes: usize) -> usize {
    match is_webgpu() && !cfg!(feature = "vulkan") {
        true => bytes.next_multiple_of(client.properties().memory.alignment as usize),
        false => bytes,
    }
}

pub fn upload_lists(client: &Client, lists: &[i32]) -> Handle {
    let lists = if lists.is_empty() { &[0] } else { lists };
    let bytes: Vec<u8> = lists.iter().flat_map(|entry| entry.to_le_bytes()).collect();
    client.create_from_slice(&bytes)
}

/// Tensors of a problem.
pub fn operands(
    client: &Client,
    format: Format,
    sparse: &BlockSparse,
    data: &Data,
    layout: Layout,
) -> Operands<Strided> {
    let of = |operand: Operand, values: &[f64]| {
        view(client, format, values, operand.shape(&sparse.problem), layout)
    };
    Operands::new(
        of(Operand::Query, &data.query),
        of(Operand::Key, &data.key),
        of(Operand::Value, &data.value),
    )
}

/// What a backward pass reads, with these results of the forward pass.
pub fn saved(
    client: &Client,
    format: Format,
    sparse: &BlockSparse,
    data: &Data,
    [out, lse]: [&[f64]; 2],
    layout: Layout,
) -> Saved<Strided> {
    let (out_shape, lse_shape) = (Shape::out(&sparse.problem), Shape::lse(&sparse.problem));
    let line = Layout::Contiguous;
    Saved {
        operands: operands(client, format, sparse, data, layout),
        outputs: Outputs {
            out: view(client, format, out, out_shape, line),
            lse: view(client, F32, lse, lse_shape, line),
        },
        gradients: Outputs {
            out: view(client, format, &data.dout, out_shape, layout),
            lse: view(client, F32, &data.dlse, lse_shape, line),
        },
        has_out: true,
    }
}
