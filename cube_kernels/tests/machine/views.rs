//! Tensors that are not contiguous.

use burn_natten_kernels::native::sm90::Element;
use burn_natten_kernels::{Operands, Problem, Strided};
use cubecl::client::Client;
use test_support::compare::format;
use test_support::oracle::compute;
use test_support::tier::{BackwardTier, upload_all};
use test_support::{Data, axis, problem};

use crate::run::Policy;
use crate::ways::{OnMachine, client, forward, hopper, planned};

const ELEMENT: Element = Element::Bf16;

/// Tensors of one shape in a buffer `[batch, heads, tokens, slices, dim]`, with NaN behind each token's slices: heads lie outside
/// of tokens, and nothing is contiguous but vectors.
fn by_heads<const N: usize>(
    client: &Client,
    problem: &Problem,
    tensors: [&[f64]; N],
) -> [Strided; N] {
    let Problem { batch, heads, head_dim: dim, .. } = *problem;
    let tokens = problem.queries();
    let token = (N + 1) * dim;
    let mut values = vec![f64::NAN; batch * heads * tokens * token];
    for (slice, tensor) in tensors.iter().enumerate() {
        for (row, vector) in tensor.chunks(dim).enumerate() {
            let (at, head) = (row / heads, row % heads);
            let place = (at / tokens * heads + head) * tokens + at % tokens;
            values[place * token + slice * dim..][..dim].copy_from_slice(vector);
        }
    }
    let handle = format(ELEMENT).upload(client, &values);
    let [_, y, x] = problem.axes.map(|axis| axis.queries);
    let strides = [heads * tokens * token, y * x * token, x * token, token, tokens * token];
    std::array::from_fn(|slice| Strided {
        handle: handle.clone().offset_start((2 * slice * dim) as u64),
        strides,
    })
}

/// Inputs and cotangents as views give the bits that contiguous ones give.
#[test]
fn views_of_all_tensors() {
    let Some(machine) = hopper(Policy::Late) else { return };
    let client = client();
    let plane = [axis(9, 4, 1, 2, false), axis(10, 5, 1, 1, true)];
    for problem in [problem(&[axis(90, 9, 2, 1, false)], 64), problem(&plane, 64)] {
        let data = Data::random(&problem, 5, format(ELEMENT).round);
        let exact = compute(&problem, &data, format(ELEMENT).round);
        let mut saved = upload_all(&client, ELEMENT, &problem, &data, &exact);
        let schedule = planned(&problem, ELEMENT);
        let run = |inputs: &Operands<Strided>| {
            forward(&machine, &client, &schedule, &problem, inputs)
                .unwrap_or_else(|e| panic!("{e}"))
        };
        let way = OnMachine::plans(&problem, ELEMENT).remove(0);
        let contiguous = run(&saved.operands);
        let gradients = OnMachine::gradients(&client, ELEMENT, &way, &problem, &saved);
        let tensors = [&data.query, &data.key, &data.value, &exact.out, &data.dout];
        let [query, key, value, out, dout] =
            by_heads(&client, &problem, tensors.map(Vec::as_slice));
        saved.operands = Operands::new(query, key, value);
        (saved.outputs.out, saved.gradients.out) = (out, dout);
        assert!(run(&saved.operands) == contiguous, "{problem:?}");
        let viewed = OnMachine::gradients(&client, ELEMENT, &way, &problem, &saved);
        assert!(viewed == gradients, "{problem:?}");
    }
}
