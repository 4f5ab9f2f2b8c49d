//! Tensors that are not contiguous: inputs and cotangents with their axes in another order in memory, and with NaN around them.

use burn_natten_kernels::native::Element;
use burn_natten_kernels::{Axis, Operand, Operands, Problem, Shape, Strided};
use cubecl::client::Client;
use test_support::compare::format;
use test_support::oracle::compute;
use test_support::tier::{BackwardTier, upload_all};
use test_support::{Data, axis, problem};

use super::ways::{OnBlackwell, Way, blackwell, forward, planned, planned_backward};
use crate::run::Policy;
use crate::ways::client;

const ELEMENT: Element = Element::Bf16;

/// Sample, axes, head and vector: their order in memory, the vector being last, and which of them have a margin of NaN.
#[derive(Clone, Copy, Debug)]
struct Layout {
    order: [usize; 5],
    margins: [usize; 6],
}

impl Layout {
    fn apply(&self, client: &Client, tensor: &Strided, shape: Shape) -> Strided {
        let [z, y, x] = shape.tokens;
        let extents = [shape.batch, z, y, x, shape.heads, shape.dim];
        let padded: Vec<_> = (0..6).map(|i| extents[i] + 2 * self.margins[i]).collect();
        // In elements, of each of them.
        let (mut strides, mut length) = ([1; 6], padded[5]);
        for &dim in self.order.iter().rev() {
            strides[dim] = length;
            length *= padded[dim];
        }
        let first: usize = (0..6).map(|i| strides[i] * self.margins[i]).sum();
        let old = format(ELEMENT).download(client, &tensor.handle, shape.elements());
        let mut values = vec![f64::NAN; length];
        for (number, value) in old.into_iter().enumerate() {
            let (mut rest, mut at) = (number, first);
            for dim in (0..6).rev() {
                at += rest % extents[dim] * strides[dim];
                rest /= extents[dim];
            }
            values[at] = value;
        }
        let handle = format(ELEMENT).upload(client, &values).offset_start((2 * first) as u64);
        let [batch, z, y, x, head, _] = strides;
        Strided { handle, strides: [batch, z, y, x, head] }
    }
}

const CONTIGUOUS: [usize; 5] = [0, 1, 2, 3, 4];

/// Those of one sample: a gap between samples is refused.
fn layouts() -> Vec<Layout> {
    let margin =
        |dim: usize| std::array::from_fn(|i| if i == dim { 8 * (i / 5) + i % 5 } else { 0 });
    let crops = [1, 2, 3, 4, 5].map(|dim| Layout {
        order: CONTIGUOUS,
        margins: if dim == 5 { [0, 0, 0, 0, 0, 8] } else { margin(dim) },
    });
    let orders =
        [[0, 4, 1, 2, 3], [0, 1, 2, 4, 3], [4, 0, 3, 2, 1], [0, 2, 1, 3, 4], [0, 3, 1, 4, 2]];
    let swaps = orders.map(|order| Layout { order, margins: [0; 6] });
    let all = Layout { order: [0, 3, 4, 1, 2], margins: [0, 1, 2, 3, 1, 8] };
    crops.into_iter().chain(swaps).chain([all]).collect()
}

/// The same bits as of contiguous tensors.
fn check(problems: &[Problem], layouts: &[Layout]) {
    let Some(machine) = blackwell(Policy::Late) else { return };
    let client = client();
    for problem in problems {
        let data = Data::random(problem, 5, format(ELEMENT).round);
        let exact = compute(problem, &data, format(ELEMENT).round);
        let schedule = planned(problem, ELEMENT);
        let run = |inputs: &Operands<Strided>| {
            forward(&machine, &client, &schedule, problem, inputs).unwrap_or_else(|e| panic!("{e}"))
        };
        let way = Way { machine, plan: planned_backward(problem, ELEMENT) };
        let saved = upload_all(&client, ELEMENT, problem, &data, &exact);
        let results = run(&saved.operands);
        let gradients = OnBlackwell::gradients(&client, ELEMENT, &way, problem, &saved);
        for layout in layouts {
            let mut viewed = upload_all(&client, ELEMENT, problem, &data, &exact);
            let operands = &mut viewed.operands;
            for (tensor, operand) in [
                (&mut operands.query, Operand::Query),
                (&mut operands.key, Operand::Key),
                (&mut operands.value, Operand::Value),
            ] {
                *tensor = layout.apply(&client, tensor, operand.shape(problem));
            }
            for tensor in [&mut viewed.outputs.out, &mut viewed.gradients.out] {
                *tensor = layout.apply(&client, tensor, Shape::out(problem));
            }
            assert!(run(&viewed.operands) == results, "{layout:?}: {problem:?}");
            let again = OnBlackwell::gradients(&client, ELEMENT, &way, problem, &viewed);
            assert!(again == gradients, "{layout:?}: {problem:?}");
        }
    }
}

#[test]
fn a_view_of_all_tensors() {
    let plane = [axis(9, 4, 1, 2, false), axis(10, 5, 1, 1, true)];
    check(&[problem(&plane, 64).with_batch(1)], &layouts()[10..]);
}

#[test]
#[ignore = "minutes"]
fn every_view() {
    let space = [axis(5, 3, 1, 1, true), axis(7, 4, 2, 1, false), axis(6, 5, 1, 1, false)];
    let line = problem(&[Axis::dense(150, 70, true)], 128);
    let problems = [
        line,
        problem(&space[1..], 40).with_head_dim_v(72),
        problem(&space, 64).with_heads(4).with_heads_kv(2),
    ];
    check(&problems.map(|problem| problem.with_batch(1)), &layouts());
}
