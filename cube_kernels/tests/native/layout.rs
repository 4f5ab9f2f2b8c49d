//! Tensors that are not contiguous.

use burn_natten_kernels::native::sm90::{Element, Schedule, forward_with};
use burn_natten_kernels::{KernelError, Operands, Problem, Strided};
use cubecl::client::Client;
use test_support::compare::{device, format};
use test_support::{Data, axis, problem};

use crate::run::{planned, run, run_inputs, upload};

/// Tensors of self attention as slices of one buffer `[batch, tokens, slices, heads, dim]`.
pub fn fused<const N: usize>(
    client: &Client,
    element: Element,
    problem: &Problem,
    slices: [&[f64]; N],
) -> [Strided; N] {
    let row = problem.heads * problem.head_dim;
    let rows = problem.batch * problem.queries();
    let values: Vec<f64> = (0..rows)
        .flat_map(|at| slices.iter().flat_map(move |slice| &slice[at * row..][..row]))
        .copied()
        .collect();
    let handle = format(element).upload(client, &values);
    let [x, y, z] = problem.axes.map(|axis| axis.queries);
    let token = N * row;
    let strides = [x * y * z * token, y * z * token, z * token, token, problem.head_dim];
    std::array::from_fn(|index| Strided {
        handle: handle.clone().offset_start((2 * index * row) as u64),
        strides,
    })
}

/// Problems whose tensors can be slices of one buffer.
pub fn fusible() -> [Problem; 5] {
    let space = [axis(5, 3, 1, 1, false), axis(9, 4, 1, 2, false), axis(10, 5, 1, 1, true)];
    [
        problem(&space, 64),
        problem(&space, 128),
        problem(&space[1..], 40),
        problem(&[axis(300, 40, 1, 1, true)], 128),
        problem(&[axis(300, 10, 1, 12, false)], 64),
    ]
}

#[test]
fn slices_of_a_fused_projection() {
    let Some(client) = device() else { return };
    for problem in fusible() {
        for element in [Element::F16, Element::Bf16] {
            let data = Data::random(&problem, 5, format(element).round);
            let schedule = planned(&problem, element);
            let (out, lse) = run(&client, &schedule, &problem, &data);
            let [query, key, value] =
                fused(&client, element, &problem, [&data.query, &data.key, &data.value]);
            let inputs = Operands::new(query, key, value);
            let (fused_out, fused_lse) = run_inputs(&client, &schedule, &problem, &inputs);
            assert!(out == fused_out && lse == fused_lse, "{schedule}: {problem:?}");
        }
    }
}

/// Whether a launch was refused for the layout of a tensor.
pub fn is_layout(error: &Option<KernelError>, tensor: &str) -> bool {
    matches!(error, Some(KernelError::Layout { name, .. }) if *name == tensor)
}

type Change<'a> = &'a dyn Fn(&mut Operands<Strided>);

/// The error of a launch with one tensor's strides changed.
fn refused(
    client: &Client,
    schedule: &Schedule,
    problem: &Problem,
    change: impl Fn(&mut Operands<Strided>),
) -> Option<KernelError> {
    let data = Data::random(problem, 5, format(schedule.element).round);
    let mut inputs = upload(client, schedule.element, problem, &data);
    change(&mut inputs);
    let outputs = format(schedule.element).poisoned_outputs(client, problem);
    forward_with(client, schedule, problem, &inputs, &outputs).err()
}

#[test]
fn what_tma_cannot_read_is_refused() {
    let Some(client) = device() else { return };
    let space = [axis(5, 3, 1, 1, false), axis(9, 4, 1, 1, false), axis(10, 5, 1, 1, false)];
    let problem = problem(&space, 64).with_additional(3);
    let schedule = planned(&problem, Element::Bf16);
    let refused =
        |change: &dyn Fn(&mut Operands<Strided>)| refused(&client, &schedule, &problem, change);
    assert_eq!(refused(&|_| {}), None);
    let cases: [(&'static str, Change<'_>); 6] = [
        ("query", &|inputs| inputs.query.strides = [0; 5]),
        ("query", &|inputs| inputs.query.strides[4] = 4),
        ("key", &|inputs| inputs.key.strides[3] -= 4),
        ("key", &|inputs| inputs.key.strides[2] = 0),
        // A gap between samples, which are one dimension with the slowest axis.
        ("value", &|inputs| inputs.value.strides[0] -= 8),
        ("additional key", &|inputs| {
            if let Some(more) = &mut inputs.additional {
                more.key.strides[3] -= 1;
            }
        }),
    ];
    for (name, change) in cases {
        let error = refused(change);
        assert!(is_layout(&error, name), "{name}: {error:?}");
    }
}

#[test]
fn what_lies_outside_its_buffer_is_refused() {
    let Some(client) = device() else { return };
    let plane = [axis(9, 4, 1, 1, false), axis(10, 5, 1, 1, false)];
    let problem = problem(&plane, 64).with_additional(3);
    let schedule = planned(&problem, Element::Bf16);
    let cases: [(&'static str, Change<'_>); 3] = [
        ("query", &|inputs| inputs.query.strides[2] *= 2),
        ("value", &|inputs| inputs.value.handle = inputs.value.handle.clone().offset_start(16)),
        ("additional value", &|inputs| {
            if let Some(more) = &mut inputs.additional {
                more.value.strides[0] += 8;
            }
        }),
    ];
    for (tensor, change) in cases {
        let error = refused(&client, &schedule, &problem, change);
        let is_buffer = matches!(error, Some(KernelError::Buffer { name, .. }) if name == tensor);
        assert!(is_buffer, "{tensor}: {error:?}");
    }
    let data = Data::random(&problem, 5, format(Element::Bf16).round);
    let inputs = upload(&client, Element::Bf16, &problem, &data);
    let mut outputs = format(Element::Bf16).poisoned_outputs(&client, &problem);
    outputs.lse = client.empty(4);
    let error = forward_with(&client, &schedule, &problem, &inputs, &outputs).err();
    assert!(matches!(error, Some(KernelError::Buffer { name: "lse", .. })), "{error:?}");
}

/// Where a single sample or an axis of one element leaves a stride unused, it may be anything.
#[test]
fn unused_strides_do_not_matter() {
    let Some(client) = device() else { return };
    let plane = [axis(9, 4, 1, 1, false), axis(10, 5, 1, 1, false)];
    let problem = problem(&plane, 64).with_batch(1).with_heads(1).with_heads_kv(1);
    let schedule = planned(&problem, Element::F16);
    let data = Data::random(&problem, 5, format(Element::F16).round);
    let expected = run(&client, &schedule, &problem, &data);
    let mut inputs = upload(&client, Element::F16, &problem, &data);
    for tensor in [&mut inputs.query, &mut inputs.key, &mut inputs.value] {
        (tensor.strides[0], tensor.strides[1], tensor.strides[4]) = (3, 0, 1);
    }
    assert!(run_inputs(&client, &schedule, &problem, &inputs) == expected);
}
