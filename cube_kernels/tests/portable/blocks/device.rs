//! Block-sparse attention on a device, from and to `f64` vectors, of views and of contiguous tensors.

use burn_natten_kernels::BlockSparse;
use burn_natten_kernels::portable::blocks::{backward, forward};
use cubecl::client::Client;
use test_support::Data;
use test_support::blocks::{Layout, Sparse, operands, saved, upload_lists};
use test_support::format::Format;

/// Both passes, into poisoned buffers.
pub fn run(
    client: &Client,
    format: Format,
    sparse: &BlockSparse,
    lists: &[i32],
    data: &Data,
    layout: Layout,
) -> Sparse {
    let (elem, problem) = (format.elem(), &sparse.problem);
    let lists = upload_lists(client, lists);
    let outputs = format.poisoned_outputs(client, problem);
    let inputs = operands(client, format, sparse, data, layout);
    forward(client, sparse, elem, &inputs, &lists, &outputs).expect("forward is launched");
    let (out, lse) = format.download_outputs(client, problem, &outputs);
    let saved = saved(client, format, sparse, data, [&out, &lse], layout);
    let gradients = format.poisoned_gradients(client, problem);
    backward(client, sparse, elem, &saved, &lists, &gradients).expect("backward is launched");
    let mut all = format.download_gradients(client, problem, &gradients).into_iter();
    let mut next = || all.next().map(|(_, values)| values).unwrap_or_default();
    Sparse { out, lse, dq: next(), dk: next(), dv: next() }
}
