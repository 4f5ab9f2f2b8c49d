//! Launches of every kernel that knows no make of GPU: those of the Portable tier, and those on cooperative matrices.

use burn_natten_kernels::portable::unfused::{DotsInputs, LineTile, Tokens, dots_with};
use burn_natten_kernels::portable::unfused::{offsets, spread, sums};
use burn_natten_kernels::portable::{
    BackwardPlan, Limits, Way, backward_with, blocks, forward_with, plan, plan_backward,
};
use burn_natten_kernels::sparse::{Selected, Selection, select_blocks};
use burn_natten_kernels::tensor_core::{Capability, Choice, backward, forward};
use burn_natten_kernels::{
    Axis, BlockSparse, KernelError, Operand, Operands, Outputs, Problem, Saved, Shape, Strided,
};
use cubecl::client::Client;
use cubecl::server::Handle;

use super::{Absent, Launch};
use crate::format::{F32, Format};

/// A launch, and what was asked for.
pub struct Named {
    pub name: String,
    pub launch: Launch,
}

/// Problems that differ in what kernels are specialised by: ranks, causality, vectors, what is added.
pub fn problems() -> Vec<(&'static str, Problem)> {
    let axis = |length, kernel_size, is_causal| {
        Axis::neighborhood(length, kernel_size).with_causal(is_causal)
    };
    let (image, plane) = (axis(56, 7, false), [axis(40, 9, false), axis(50, 9, true)]);
    let mut part = axis(900, 99, true).with_origin(60);
    part.queries = 400;
    let strided = axis(64, 16, false).with_stride(4).with_dilation(2);
    vec![
        ("nat", Problem::new([image; 2], 2, 32).with_batch(2)),
        ("nat with a bias", Problem::new([image; 2], 4, 32).with_bias(true)),
        ("line", Problem::new([axis(900, 99, true)], 4, 64).with_heads_kv(2)),
        ("part of a line", Problem::new([part], 4, 64).with_bias(true)),
        ("dense", Problem::new([Axis::dense(4096, 4096, false)], 8, 128)),
        ("odd heads", Problem::new([axis(900, 99, false)], 2, 7).with_head_dim_v(5)),
        ("wide heads", Problem::new(plane, 2, 192).with_head_dim_v(128)),
        ("additional tokens", Problem::new(plane, 4, 64).with_heads_kv(2).with_additional(30)),
        (
            "additional tokens, a bias",
            Problem::new(plane, 4, 64).with_additional(30).with_bias(true),
        ),
        ("strides", Problem::new([strided, axis(50, 9, true)], 2, 64)),
        ("space", Problem::new([axis(16, 5, true), axis(24, 9, false), axis(24, 9, false)], 2, 64)),
        ("space with a bias", Problem::new([axis(9, 3, false); 3], 4, 32).with_bias(true)),
    ]
}

/// What a device is asked for in a type, as far as its name has all of `parts`: every operator, by rows, by tiles and on cooperative matrices, where it has them.
///
/// # Panics
///
/// Where a launch is refused: no kernel may be left out.
pub fn everything(device: &Absent, format: Format, parts: &[String]) -> Vec<Named> {
    let client = &device.client;
    let limits = Limits { allows_tiles: true, ..Limits::of(client) };
    let mut all = vec![];
    let mut keep = |name: String, result: Result<(), KernelError>| {
        result.unwrap_or_else(|error| panic!("{name}: {error}"));
        let launches = device.launches();
        let name = format!("{name}, {:?}", format.kind);
        if parts.iter().all(|part| name.contains(part.as_str())) {
            all.extend(launches.into_iter().map(|launch| Named { name: name.clone(), launch }));
        }
    };
    for (name, problem) in &problems() {
        let tensors = Tensors::new(client, problem, format);
        for (by, ways) in [
            ("rows", (Way::Rows, BackwardPlan::ROWS)),
            ("tiles", (plan(problem, &limits), plan_backward(problem, &limits))),
        ] {
            keep(format!("{name}, by {by}"), tensors.both(client, problem, format, &ways));
        }
        if Capability::of(client).is_some() && format.kind != F32.kind {
            keep(format!("{name}, by matrices"), tensors.by_matrices(client, problem, format));
        }
        if !problem.has_origin() {
            keep(format!("{name}, unfused"), tensors.unfused(client, problem, format));
        }
    }
    for causal in [false, true] {
        let name = format!("block-sparse, causal {causal}");
        keep(name, block_sparse(client, format, causal));
    }
    keep("selection".into(), selection(client, format));
    all
}

/// Both passes of a problem by rows.
///
/// # Errors
///
/// Why the device is refused.
pub fn launch_rows(client: &Client, problem: &Problem, format: Format) -> Result<(), KernelError> {
    let tensors = Tensors::new(client, problem, format);
    tensors.both(client, problem, format, &(Way::Rows, BackwardPlan::ROWS))
}

/// Memory of a problem's tensors, of which a device that is not there has none.
struct Tensors {
    saved: Saved<Strided>,
    gradients: Operands<Option<Handle>>,
}

fn tensor(client: &Client, format: Format, shape: Shape) -> Strided {
    Strided::contiguous(memory(client, format, shape.elements()), shape)
}

fn memory(client: &Client, format: Format, elements: usize) -> Handle {
    client.empty(elements.max(1) * format.elem().size())
}

impl Tensors {
    fn new(client: &Client, problem: &Problem, format: Format) -> Self {
        let (out, lse) = (Shape::out(problem), Shape::lse(problem));
        let rows = || Outputs { out: tensor(client, format, out), lse: tensor(client, F32, lse) };
        let of = |operand: Operand| Strided {
            strides: operand.strides(problem),
            ..tensor(client, format, operand.shape(problem))
        };
        Self {
            saved: Saved {
                operands: Operands::of(problem).map(|operand, ()| of(operand)),
                outputs: rows(),
                gradients: rows(),
                has_out: true,
            },
            gradients: Operands::of(problem).map(|operand, ()| Some(of(operand).handle)),
        }
    }

    fn outputs(&self) -> Outputs<Handle> {
        self.saved.outputs.as_ref().map(|tensor| tensor.handle.clone())
    }

    fn both(
        &self,
        client: &Client,
        problem: &Problem,
        format: Format,
        (forward, backward): &(Way, BackwardPlan),
    ) -> Result<(), KernelError> {
        let (elem, outputs) = (format.elem(), self.outputs());
        forward_with(client, forward, problem, elem, &self.saved.operands, &outputs)?;
        backward_with(client, backward, problem, elem, &self.saved, &self.gradients)
    }

    fn by_matrices(
        &self,
        client: &Client,
        problem: &Problem,
        format: Format,
    ) -> Result<(), KernelError> {
        let (elem, outputs, choice) = (format.elem(), self.outputs(), Choice::Modelled);
        forward(client, problem, elem, choice, &self.saved.operands, &outputs)?;
        backward(client, problem, elem, choice, &self.saved, &self.gradients)
    }

    fn unfused(
        &self,
        client: &Client,
        problem: &Problem,
        format: Format,
    ) -> Result<(), KernelError> {
        let elem = format.elem();
        let Operands { query, key, additional, bias, .. } = &self.saved.operands;
        let tokens = Tokens { space: key, additional: additional.as_ref().map(|more| &more.key) };
        let bias = bias.as_ref().map(|bias| &bias.handle);
        let inputs = DotsInputs { rows: query, tokens, bias };
        let weights = memory(client, format, problem.weights());
        let hidden = f32::NEG_INFINITY;
        let lines = LineTile::plan(problem, &Limits::of(client), elem.size());
        for tile in [None, lines] {
            dots_with(client, tile, problem, elem, hidden, &inputs, &weights)?;
        }
        let read = Strided::contiguous(weights, Shape::weights(problem));
        sums(client, problem, elem, &read, &tokens, &query.handle)?;
        let written = tokens.map(|tensor| &tensor.handle);
        spread(client, problem, elem, &read, query, &written)?;
        bias.map_or(Ok(()), |bias| offsets(client, problem, elem, &read.handle, bias))
    }
}

fn block_sparse(client: &Client, format: Format, is_causal: bool) -> Result<(), KernelError> {
    let problem = Problem::new([Axis::dense(600, 700, is_causal)], 4, 64).with_heads_kv(2);
    let sparse = BlockSparse::new(problem, [8], [16]).with_lists(2, 5);
    let tensors = Tensors::new(client, &problem, format);
    let lists = memory(client, F32, sparse.list_elements());
    let (elem, outputs) = (format.elem(), tensors.outputs());
    blocks::forward(client, &sparse, elem, &tensors.saved.operands, &lists, &outputs)?;
    blocks::backward(client, &sparse, elem, &tensors.saved, &lists, &tensors.gradients)
}

fn selection(client: &Client, format: Format) -> Result<(), KernelError> {
    let mut of = Selection::new(4096, 8, 64);
    of.heads_kv = 2;
    of.cmp_top = Some(2);
    let [query, key] = of.shapes().map(|shape| tensor(client, format, shape));
    let list = |entries: usize| memory(client, F32, of.lists() * entries);
    let lists = Selected { blocks: list(of.num_selected), compressed: of.cmp_top.map(list) };
    select_blocks(client, &of, format.elem(), &query, &key, &lists)
}
