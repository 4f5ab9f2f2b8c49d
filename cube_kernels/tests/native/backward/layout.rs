//! Tensors that are not contiguous.

use burn_natten_kernels::native::sm90::{Element, backward_with};
use burn_natten_kernels::{KernelError, Operands, Problem, Saved, Shape, Strided};
use cubecl::client::Client;
use test_support::compare::{device, format};
use test_support::oracle::compute;
use test_support::tier::{BackwardTier, upload_all};
use test_support::{Data, Results, axis, problem};

use super::run::planned;
use crate::layout::{fused, fusible, is_layout};
use crate::ways::Native;

fn prepare(
    client: &Client,
    element: Element,
    problem: &Problem,
) -> (Data, Results, Saved<Strided>) {
    let data = Data::random(problem, 5, format(element).round);
    let exact = compute(problem, &data, format(element).round);
    let inputs = upload_all(client, element, problem, &data, &exact);
    (data, exact, inputs)
}

#[test]
fn slices_of_fused_tensors() {
    let Some(client) = device() else { return };
    for problem in fusible() {
        for element in [Element::F16, Element::Bf16] {
            let plan = planned(&problem, element);
            let (data, exact, mut inputs) = prepare(&client, element, &problem);
            let expected = Native::gradients(&client, element, &plan, &problem, &inputs);
            let [query, key, value] =
                fused(&client, element, &problem, [&data.query, &data.key, &data.value]);
            inputs.operands = Operands::new(query, key, value);
            [inputs.outputs.out, inputs.gradients.out] =
                fused(&client, element, &problem, [&exact.out, &data.dout]);
            let actual = Native::gradients(&client, element, &plan, &problem, &inputs);
            assert!(actual == expected, "{}: {problem:?}", Native::names(&plan));
        }
    }
}

/// The error of a launch with some tensor changed.
fn refused(
    client: &Client,
    problem: &Problem,
    inputs: &Saved<Strided>,
    change: impl Fn(&mut Saved<Strided>),
) -> Option<KernelError> {
    let mut inputs = inputs.clone();
    change(&mut inputs);
    let plan = planned(problem, Element::Bf16);
    let outputs = format(Element::Bf16).poisoned_gradients(client, problem);
    backward_with(client, &plan, problem, &inputs, &outputs).err()
}

type Change<'a> = &'a dyn Fn(&mut Saved<Strided>);

#[test]
fn what_tma_cannot_read_is_refused() {
    let Some(client) = device() else { return };
    let space = [axis(5, 3, 1, 1, false), axis(9, 4, 1, 1, false), axis(10, 5, 1, 1, false)];
    let problem = problem(&space, 64).with_additional(3);
    let (_, _, inputs) = prepare(&client, Element::Bf16, &problem);
    let refused = |change: Change<'_>| refused(&client, &problem, &inputs, change);
    let elements = Shape::out(&problem).elements() + 1;
    let shifted = format(Element::Bf16).poisoned(&client, elements).offset_start(2);
    assert_eq!(refused(&|_| {}), None);
    let cases: [(&'static str, Change<'_>); 7] = [
        ("query", &|inputs| inputs.operands.query.strides = [0; 5]),
        ("key", &|inputs| inputs.operands.key.strides[3] -= 4),
        // A gap between samples, which are one dimension with the slowest axis.
        ("value", &|inputs| inputs.operands.value.strides[0] -= 8),
        ("out", &|inputs| inputs.outputs.out.strides[4] = 4),
        ("dout", &|inputs| inputs.gradients.out.strides[2] = 0),
        ("dout", &|inputs| {
            inputs.gradients.out.handle = shifted.clone();
        }),
        ("additional key", &|inputs| {
            if let Some(more) = &mut inputs.operands.additional {
                more.key.strides[3] -= 1;
            }
        }),
    ];
    for (name, change) in cases {
        let error = refused(change);
        assert!(is_layout(&error, name), "{name}: {error:?}");
    }
}

/// The rows of two axes, with a token full of NaN behind each line.
fn with_gaps(client: &Client, problem: &Problem, values: &[f64]) -> Strided {
    let [_, y, z] = problem.axes.map(|axis| axis.queries);
    let token = problem.heads * problem.head_dim;
    let line = (z + 1) * token;
    let gap = vec![f64::NAN; token];
    let lines = values.chunks(z * token);
    let values: Vec<f64> = lines.flat_map(|values| values.iter().chain(&gap)).copied().collect();
    let handle = format(Element::Bf16).upload(client, &values);
    Strided { handle, strides: [y * line, y * line, line, token, problem.head_dim] }
}

/// TMA steps over gaps. Where there are additional tokens all queries have to be one line.
#[test]
fn gaps_between_lines() {
    let Some(client) = device() else { return };
    let plane = problem(&[axis(9, 4, 1, 1, false), axis(10, 5, 1, 1, false)], 64);
    let plan = planned(&plane, Element::Bf16);
    let (data, exact, contiguous) = prepare(&client, Element::Bf16, &plane);
    let mut inputs = contiguous.clone();
    inputs.operands.query = with_gaps(&client, &plane, &data.query);
    inputs.outputs.out = with_gaps(&client, &plane, &exact.out);
    inputs.gradients.out = with_gaps(&client, &plane, &data.dout);
    let run = |inputs| Native::gradients(&client, Element::Bf16, &plan, &plane, inputs);
    assert!(run(&inputs) == run(&contiguous), "{}", Native::names(&plan));

    let gaps = inputs;
    let problem = plane.with_additional(3);
    let (_, _, inputs) = prepare(&client, Element::Bf16, &problem);
    let cases: [(&'static str, Change<'_>); 3] = [
        ("query", &|inputs| inputs.operands.query = gaps.operands.query.clone()),
        ("out", &|inputs| inputs.outputs.out = gaps.outputs.out.clone()),
        ("dout", &|inputs| inputs.gradients.out = gaps.gradients.out.clone()),
    ];
    for (name, change) in cases {
        let error = refused(&client, &problem, &inputs, change);
        assert!(is_layout(&error, name), "{name}: {error:?}");
    }
}

/// Where a single sample or an axis of one element leaves a stride unused, it may be anything.
#[test]
fn unused_strides_do_not_matter() {
    let Some(client) = device() else { return };
    let plane = [axis(9, 4, 1, 1, false), axis(10, 5, 1, 1, false)];
    for additional in [0, 3] {
        let problem = problem(&plane, 64)
            .with_batch(1)
            .with_heads(1)
            .with_heads_kv(1)
            .with_additional(additional);
        let plan = planned(&problem, Element::F16);
        let (_, _, mut inputs) = prepare(&client, Element::F16, &problem);
        let expected = Native::gradients(&client, Element::F16, &plan, &problem, &inputs);
        let Saved { operands, outputs, gradients, .. } = &mut inputs;
        let Operands { query, key, value, .. } = operands;
        for tensor in [query, key, value, &mut outputs.out, &mut gradients.out] {
            (tensor.strides[0], tensor.strides[1], tensor.strides[4]) = (3, 0, 1);
        }
        let actual = Native::gradients(&client, Element::F16, &plan, &problem, &inputs);
        assert!(actual == expected, "{}", Native::names(&plan));
    }
}
