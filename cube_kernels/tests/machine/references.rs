//! Scores that grow from step to step, for which the softmax raises what rows' weights refer to.

use burn_natten_kernels::Axis;
use burn_natten_kernels::Problem;
use burn_natten_kernels::native::sm90::Element;
use test_support::compare::format;
use test_support::{Data, axis, problem};

use crate::run::{Change, Policy};
use crate::ways::{changed, check_one_forward, client, forward, hopper, planned};

/// With it a row is wrong that the fast path cannot be trusted with.
const NO_REPAIR: Change = Change { from: "repair_row(params, tile, at, lane);", to: "" };

/// Three warpgroups in turn, two with vectors of 128, and pipelines of one; masks by position, one-hot ones and none. In the last two there
/// are rows that see nothing of the first step, beside others of their warps that do.
fn problems() -> [Problem; 4] {
    let one = |problem: Problem| problem.with_batch(1).with_heads(1).with_heads_kv(1);
    [
        one(problem(&[Axis::dense(70, 400, false)], 64)),
        one(problem(&[Axis::dense(300, 300, true)], 128)),
        one(problem(&[axis(24, 13, 1, 1, false), axis(20, 7, 1, 1, false)], 64)),
        one(problem(&[axis(24, 13, 1, 1, false), axis(24, 9, 1, 1, false)], 128)),
    ]
}

/// Scores of 64 keys exceed those of the 64 before by `growth` natural logarithms.
fn growing(problem: &Problem, element: Element, growth: f64) -> Data {
    let round = format(element).round;
    let mut data = Data::random(problem, 21, round);
    for vector in data.query.chunks_mut(problem.head_dim) {
        vector[0] = round(1.0 / problem.scale);
    }
    for (token, vector) in data.key.chunks_mut(problem.head_dim).enumerate() {
        vector[0] = round(growth * token as f64 / 64.0);
    }
    data
}

/// By what weights bear, by what they do in one step but not in two, and by what every step raises: without a row that is computed again.
/// Then by more than float32 holds, of which rows are.
#[test]
fn scores_that_grow_from_step_to_step() {
    let Some(machine) = hopper(Policy::Late) else { return };
    let without = changed(&machine, NO_REPAIR);
    let client = client();
    for (number, problem) in problems().into_iter().enumerate() {
        let growths = [
            (&without, 0.0),
            (&without, 1.0),
            (&without, 4.0),
            (&without, 20.0),
            (&machine, 40.0),
            (&machine, 120.0),
        ];
        // In turn: every problem in both types, every growth with vectors of either length in both.
        for (step, (machine, growth)) in growths.into_iter().enumerate() {
            let element = [Element::Bf16, Element::F16][(number / 2 + step) % 2];
            let schedule = planned(&problem, element);
            let data = growing(&problem, element, growth);
            check_one_forward(machine, &client, &problem, &schedule, &data)
                .unwrap_or_else(|how| panic!("{schedule}, by {growth}: {how}"));
        }
    }
}

/// A bias hides by -10000 what rows see first, which they must not refer to.
#[test]
fn what_a_finite_bias_hides() {
    let Some(machine) = hopper(Policy::Late) else { return };
    let machine = changed(&machine, NO_REPAIR);
    let client = client();
    for element in [Element::Bf16, Element::F16] {
        let axes = [axis(24, 13, 1, 1, false), axis(20, 7, 1, 1, false)];
        let problem = problem(&axes, 64).with_batch(1).with_bias(true);
        let schedule = planned(&problem, element);
        let mut data = Data::random(&problem, 23, format(element).round);
        // Of every head, distances of the slower axis up to -2.
        let of_head = data.bias.len() / problem.heads;
        for bias in data.bias.chunks_mut(of_head) {
            bias[..of_head * 11 / 25].fill(-10000.0);
        }
        check_one_forward(&machine, &client, &problem, &schedule, &data)
            .unwrap_or_else(|how| panic!("{schedule}: {how}"));
    }
}

/// A warp looks at all of its rows at once, and yet each is summed up as if it were alone.
#[test]
fn rows_do_not_depend_on_their_neighbors() {
    let Some(machine) = hopper(Policy::Late) else { return };
    let client = client();
    // Of two problems with vectors of 64, and of two with 128, one each.
    let elements = [Element::Bf16, Element::F16, Element::F16, Element::Bf16];
    for (element, problem) in elements.into_iter().zip(problems()) {
        let format = format(element);
        let schedule = planned(&problem, element);
        let mut data = Data::random(&problem, 22, format.round);
        let mut even_rows = |factor: f64| {
            for vector in data.query.chunks_mut(problem.head_dim).skip(1).step_by(2) {
                vector.iter_mut().for_each(|x| *x *= factor);
            }
            let inputs = format.operands(&client, &problem, &data);
            let (out, lse) = forward(&machine, &client, &schedule, &problem, &inputs)
                .unwrap_or_else(|fault| panic!("{schedule}: {fault}"));
            let rows = out.chunks(problem.head_dim_v).zip(lse).step_by(2);
            rows.map(|(out, lse)| (out.to_vec(), lse)).collect::<Vec<_>>()
        };
        let alone = even_rows(1.0);
        for factor in [32.0, f64::NAN] {
            assert_eq!(alone, even_rows(factor), "{schedule}, {factor}");
        }
    }
}
