//! Tensors that are not contiguous.

use burn_natten_kernels::tensor_core::{Choice, forward, forward_with};
use burn_natten_kernels::{KernelError, Operands, Outputs, Problem, Strided};
use cubecl::client::Client;
use cubecl::ir::{ElemType, FloatKind};
use cubecl::server::Handle;
use test_support::compare::{device, format};
use test_support::{Data, axis, problem};

use crate::attend::{attend, dtype, planned, upload};
use crate::ways::{Element, elements, half};

/// Query, key and value of self attention as slices of one buffer `[batch, tokens, 3, heads, dim]`.
fn fused(client: &Client, element: Element, problem: &Problem, data: &Data) -> Operands<Strided> {
    let row = problem.heads * problem.head_dim;
    let rows = problem.batch * problem.queries();
    let slices = [&data.query, &data.key, &data.value];
    let values: Vec<f64> = (0..rows)
        .flat_map(|at| slices.into_iter().flat_map(move |slice| &slice[at * row..][..row]))
        .copied()
        .collect();
    let handle = format(element).upload(client, &values);
    let [z, y, x] = problem.axes.map(|axis| axis.queries);
    let token = 3 * row;
    let strides = [z * y * x * token, y * x * token, x * token, token, problem.head_dim];
    let size = if element == Element::Tf32 { 4 } else { 2 };
    let [query, key, value] = [0, 1, 2].map(|index| Strided {
        handle: handle.clone().offset_start(size * index * row as u64),
        strides,
    });
    Operands::new(query, key, value)
}

#[test]
fn slices_of_a_fused_projection() {
    let Some(client) = device() else { return };
    let space = [axis(5, 3, 1, 1, false), axis(9, 4, 1, 2, false), axis(10, 5, 1, 1, true)];
    for problem in [
        problem(&space, 64),
        problem(&space[1..], 40),
        problem(&space[1..], 36),
        problem(&[axis(300, 40, 1, 1, true)], 128),
        problem(&[axis(300, 10, 1, 12, false)], 7),
    ] {
        for element in elements(&client) {
            let data = Data::random(&problem, 5, format(element).round);
            let inputs = upload(&client, element, &problem, &data);
            let run = |inputs: &Operands<Strided>| {
                let blueprints = planned(&client, element, &problem, inputs).into_iter();
                let run =
                    |blueprint| (blueprint, attend(&client, element, &blueprint, &problem, inputs));
                blueprints.map(run).collect::<Vec<_>>()
            };
            let fused = fused(&client, element, &problem, &data);
            for ((_, expected), (blueprint, actual)) in run(&inputs).into_iter().zip(run(&fused)) {
                assert!(actual == expected, "{blueprint}: {problem:?}");
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let Some(client) = device() else { return };
    let element = half(&client);
    let problem = problem(&[axis(30, 4, 1, 1, false)], 64);
    let data = Data::random(&problem, 5, format(element).round);
    let inputs = upload(&client, element, &problem, &data);
    let blueprint = planned(&client, element, &problem, &inputs)[0];
    let rows = problem.batch * problem.queries() * problem.heads;
    let outputs = Outputs { out: client.empty(2 * rows * 64), lse: client.empty(4 * rows) };
    let run = |inputs: &Operands<Strided>, outputs: &Outputs<Handle>| {
        forward_with(&client, &blueprint, &problem, dtype(element), inputs, outputs)
    };
    assert_eq!(run(&inputs, &outputs), Ok(()));
    let short = Outputs { lse: client.empty(4), ..outputs.clone() };
    assert!(matches!(run(&inputs, &short), Err(KernelError::Buffer { name: "lse", .. })));
    let mut wide = inputs.clone();
    wide.key.strides[3] *= 2;
    assert!(matches!(run(&wide, &outputs), Err(KernelError::Buffer { name: "key", .. })));
    let more = problem.with_additional(3);
    let result = forward(&client, &more, dtype(element), Choice::Modelled, &inputs, &outputs);
    assert_eq!(result, Err(KernelError::Additional(3)));
    // Products round f32 only where that is said.
    let f32 = ElemType::Float(FloatKind::F32);
    let result = forward(&client, &problem, f32, Choice::Modelled, &inputs, &outputs);
    assert!(
        matches!(result, Err(KernelError::ElementType { got, .. }) if got == f32),
        "{result:?}"
    );
    if !elements(&client).contains(&Element::Tf32) {
        return;
    }
    // As tf32, elements have four bytes, of which there are two here.
    let result =
        forward(&client, &problem, dtype(Element::Tf32), Choice::Modelled, &inputs, &outputs);
    assert!(matches!(result, Err(KernelError::Buffer { name: "query", .. })), "{result:?}");
}
